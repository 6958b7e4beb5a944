"""Path -> its targets: what losses on whole sequences need beside the sums per target.

    tree  r - [a - b]        path 0 (r a b) supervises a b     offsets  0 2 4
              |              path 1 (r a c) supervises a c     targets  0 1 0 2     (numbers of
              [c]                                                                    targets, 0 = a)

A target that several paths supervise is in several rows. With `supervise: own` there are as many
entries as supervised tokens; with `all` as many as the flat paths have.

Axis legend: K paths of all trees, M targets of the pack, L entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from vla_nav.tree.prefix_tree import PrefixTree
from vla_nav.tree.preorder import ranges
from vla_nav.tree.spans import span_tokens
from vla_nav.tree.types import IntArray


class PathTargets(NamedTuple):
    """Compressed rows in pack order of the paths: path k supervises targets
    targets[offsets[k] : offsets[k+1]], root to leaf.

    offsets (K+1,), targets (L,), row (L,) = k of each entry, tree (K,), all int64; coefficient and
    advantage (K,) float32 (advantage NaN where the tree has none).
    """

    offsets: torch.Tensor
    targets: torch.Tensor
    row: torch.Tensor
    tree: torch.Tensor
    coefficient: torch.Tensor
    advantage: torch.Tensor

    def to(self, device: torch.device | str, non_blocking: bool = False) -> PathTargets:
        """The same rows on `device`."""
        return PathTargets(*(part.to(device, non_blocking=non_blocking) for part in self))

    def pin_memory(self) -> PathTargets:
        """The same rows in page-locked memory."""
        return PathTargets(*(part.pin_memory() for part in self))


def path_targets(trees: Sequence[PrefixTree]) -> PathTargets:
    """The rows of a pack of `trees`, in the order in which they are packed. O(K + L)."""
    lengths, targets, coefficients, advantages = [], [], [], []
    first = 0
    for tree in trees:
        length, entries = _rows_of(tree)
        lengths.append(length)
        targets.append(entries + first)
        coefficients.append(tree.path_coefficient)
        advantage = tree.path_advantage
        advantages.append(np.full(tree.num_paths, np.nan) if advantage is None else advantage)
        first += len(tree.target_index)
    per_path = np.concatenate(lengths)
    num_paths = [tree.num_paths for tree in trees]
    return PathTargets(
        torch.from_numpy(np.concatenate([[0], np.cumsum(per_path)])),
        torch.from_numpy(np.concatenate(targets)),
        torch.from_numpy(np.repeat(np.arange(len(per_path)), per_path)),
        torch.from_numpy(np.repeat(np.arange(len(trees)), num_paths)),
        torch.from_numpy(np.concatenate(coefficients).astype(np.float32)),
        torch.from_numpy(np.concatenate(advantages).astype(np.float32)),
    )


def _rows_of(tree: PrefixTree) -> tuple[IntArray, IntArray]:
    """(K,) numbers of targets, and the targets of all paths one behind the other."""
    spans = span_tokens(tree.span_stop, tree.span_length, tree.node_start, tree.node_parent)
    number = np.searchsorted(tree.target_index, spans.tokens)  # of the targets in the tree
    previous = tree.span_previous.tolist()
    held: list[int] = []  # spans of all paths, each path's from root to leaf
    counts: list[int] = []
    for last in tree.path_span.tolist():
        chain = []
        while last >= 0:
            chain.append(last)
            last = previous[last]
        held.extend(reversed(chain))
        counts.append(len(chain))
    rows = np.array(held, dtype=np.int64)
    entries = number[ranges(spans.offsets[rows], spans.offsets[rows + 1])]
    path = np.repeat(np.arange(len(counts)), counts)
    lengths = np.bincount(path, tree.span_length[rows], len(counts)).astype(np.int64)
    return lengths, entries
