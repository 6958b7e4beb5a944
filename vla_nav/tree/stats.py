"""What a tree saves, before any training: tokens, attended pairs and the honest bound on time.

    N_flat = sum of path lengths      N_tree = tokens of the tree      POR = 1 - N_tree / N_flat
    pairs flat = sum over paths of n(n+1)/2      pairs tree = sum over tree tokens of (depth + 1)
    FLOPs = (6 * linear + recurrent) * tokens + 12 * pairs * H * D * L + 6 * head * predictors
            (+ vision)

A forward-backward step; `linear` and `head` are parameters of the backbone's matrices and of the
LM head; L counts attention layers, `recurrent` is what a token costs in all recurrent ones. The
FLOP bound is lower than the token bound: a chain of S equal steps gives (S+1)/2 on tokens and about
S/3 on pairs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from vla_nav.tree.prefix_tree import PrefixTree
from vla_nav.tree.types import IntArray


@dataclass(frozen=True, slots=True)
class TreeStats:
    """Counts of one tree, or of many added up; `frames` counts frame encodings."""

    num_trees: int
    num_paths: int
    num_flat_tokens: int
    num_tree_tokens: int
    num_flat_pairs: int
    num_tree_pairs: int
    num_flat_predictors: int
    num_tree_predictors: int
    num_flat_frames: int
    num_tree_frames: int

    @property
    def potential_overlap(self) -> float:
        """POR = 1 - N_tree / N_flat, in [0, 1)."""
        return 1 - self.num_tree_tokens / self.num_flat_tokens

    @property
    def token_bound(self) -> float:
        """N_flat / N_tree, at least 1."""
        return self.num_flat_tokens / self.num_tree_tokens

    def __add__(self, other: TreeStats) -> TreeStats:
        return TreeStats(
            *(getattr(self, name) + getattr(other, name) for name in TreeStats.__slots__)
        )


@dataclass(frozen=True, slots=True)
class FlopModel:
    """What a model costs: parameters in matrices, attention shape (num_layers: those of attention),
    FLOPs of encoding one frame (0 where features are cached) and of one token in the recurrences of
    all layers, both forward and backward."""

    linear_parameters: int
    head_parameters: int
    num_layers: int
    num_heads: int
    head_dim: int
    frame_flops: float = 0.0
    recurrent_flops: float = 0.0

    def flops(self, *, tokens: int, pairs: int, predictors: int, frames: int) -> float:
        """Forward plus backward."""
        width = self.num_heads * self.head_dim * self.num_layers
        return (
            (6.0 * self.linear_parameters + self.recurrent_flops) * tokens
            + 12.0 * pairs * width
            + 6.0 * self.head_parameters * predictors
            + self.frame_flops * frames
        )


def tree_stats(tree: PrefixTree) -> TreeStats:
    """The counts of one tree, without flattening it: O(T + K)."""
    end = tree.node_start[tree.path_node + 1] - 1
    lengths = tree.position_ids[end] + 1  # (K,) path lengths
    frames_before, frames_tree = _frames_on_path(tree)
    return TreeStats(
        num_trees=1,
        num_paths=tree.num_paths,
        num_flat_tokens=int(lengths.sum()),
        num_tree_tokens=tree.num_tokens,
        num_flat_pairs=int((lengths * (lengths + 1) // 2).sum()),
        num_tree_pairs=int((tree.position_ids + 1).sum()),
        num_flat_predictors=_flat_predictors(tree),
        num_tree_predictors=len(np.unique(tree.predictor_index)),
        num_flat_frames=int(frames_before[tree.path_node].sum()),
        num_tree_frames=frames_tree,
    )


def total_stats(stats: Iterable[TreeStats]) -> TreeStats:
    """The sum over trees. Raises `ValueError` for none."""
    parts = list(stats)
    if not parts:
        raise ValueError("no tree to add up")
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def flop_bound(stats: TreeStats, model: FlopModel) -> float:
    """FLOPs of the flat paths over those of the tree."""
    flat = model.flops(
        tokens=stats.num_flat_tokens,
        pairs=stats.num_flat_pairs,
        predictors=stats.num_flat_predictors,
        frames=stats.num_flat_frames,
    )
    tree = model.flops(
        tokens=stats.num_tree_tokens,
        pairs=stats.num_tree_pairs,
        predictors=stats.num_tree_predictors,
        frames=stats.num_tree_frames,
    )
    return flat / tree


def _flat_predictors(tree: PrefixTree) -> int:
    """Supervised tokens summed over the paths."""
    totals: list[int] = []
    for length, previous in zip(
        tree.span_length.tolist(), tree.span_previous.tolist(), strict=True
    ):
        totals.append(length + (totals[previous] if previous >= 0 else 0))
    return sum(totals[head] for head in tree.path_span.tolist() if head >= 0)


def _frames_on_path(tree: PrefixTree) -> tuple[IntArray, int]:
    """(N,) frame encodings that a flat path ending at each node needs; and the tree's frames.

    A flat path encodes a frame once for every run of its tokens, the tree each frame once.
    """
    frame = tree.frame_index
    before = np.arange(-1, tree.num_tokens - 1)  # the token before each on its path, -1 = none
    starts, parent = tree.node_start[:-1], tree.node_parent
    before[starts] = np.where(parent >= 0, tree.node_start[parent + 1] - 1, -1)
    opens = (frame >= 0) & ((before < 0) | (frame != frame[before]))
    running = np.concatenate([[0], np.cumsum(opens)])
    in_node = running[tree.node_start[1:]] - running[tree.node_start[:-1]]
    on_path = in_node.copy()
    for node, parent in enumerate(tree.node_parent.tolist()):
        if parent >= 0:
            on_path[node] += on_path[parent]
    return on_path, len(np.unique(frame[frame >= 0]))
