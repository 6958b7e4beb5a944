"""The prefix tree of a set of paths, laid out as one packed sequence.

DFS pre-order, heaviest child first (by tokens; equal weights by the first differing merge key), so
that a heavy path stays contiguous and the order of the given paths does not matter.

    paths  r a b x      tree  r - a - b - x     pack         r  a  b  x  y
           r a b              |                 position     0  1  2  3  1      depth on the path
           r y                y                 subtree_end  5  4  4  4  5
                                                predictor of x = b, of y = r    (the parent's last)

    visible(q, k)  <=>  k <= q < subtree_end[k]

w_i = sum of the coefficients c of the paths that supervise token i, without 1/K. Where paths have
advantages A, two more sums per target keep clipped objectives exact on shared prefixes (they are
linear in the positive and in the negative part of A, not in A):

    positive_i = sum of c * max(A, 0)       negative_i = sum of c * min(A, 0)

Axis legend: T tokens, N nodes, K paths, M targets, S supervised spans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from vla_nav.tree.preorder import gather_tokens, lay_out
from vla_nav.tree.spans import number_spans, span_sums, span_tokens
from vla_nav.tree.trie import FrameMerging, Place, Span, merge_paths
from vla_nav.tree.types import Float32Array, FloatArray, Int32Array, IntArray, Path


class PolicyTargets(NamedTuple):
    """What policy-gradient losses need of the M targets: positive and negative (M,) float64, sums
    of c * max(A, 0) and c * min(A, 0) over the supervising paths; log_probs (M,) float32, of the
    policy that sampled the target (NaN where absent)."""

    positive: FloatArray
    negative: FloatArray
    log_probs: Float32Array


@dataclass(frozen=True, slots=True, eq=False)
class PrefixTree:
    """Paths merged by longest common prefix, in pack order. Build with `from_paths`.

    Tokens (T,): token_ids int64, frame_index int32 (-1 = text), patch_index int32, position_ids
    int64 (depth), subtree_end int32 (exclusive); log_probs float32, NaN where absent, or None where
    no token has one.
    Nodes (N,): node_start int64 (N+1,), node_parent int64 (-1 = root).
    Paths (K,), in pack order of their ends: path_node, path_coefficient float64, path_source (which
    given path), path_span (last supervised span or -1), path_advantage float64 or None.
    Targets (M,), in pack order: target_index, predictor_index int64, loss_weights float64; policy:
    more sums per target, exactly where the paths have advantages.
    Spans (S,): span_stop (pack index one past its last token), span_length, span_previous (-1).
    num_frames: how many frames the paths' frame table has.
    """

    token_ids: IntArray
    frame_index: Int32Array
    patch_index: Int32Array
    position_ids: IntArray
    subtree_end: Int32Array
    node_start: IntArray
    node_parent: IntArray
    path_node: IntArray
    path_coefficient: FloatArray
    path_source: IntArray
    path_span: IntArray
    target_index: IntArray
    predictor_index: IntArray
    loss_weights: FloatArray
    span_stop: IntArray
    span_length: IntArray
    span_previous: IntArray
    num_frames: int
    log_probs: Float32Array | None = None
    path_advantage: FloatArray | None = None
    policy: PolicyTargets | None = None

    @property
    def num_tokens(self) -> int:
        """T, the tree's tokens."""
        return len(self.token_ids)

    @property
    def num_paths(self) -> int:
        """K: paths, not leaves; equal paths count twice."""
        return len(self.path_node)

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.node_parent)

    @staticmethod
    def from_paths(
        paths: Sequence[Path],
        *,
        num_frames: int | None = None,
        frame_merging: FrameMerging = "token",
    ) -> PrefixTree:
        """Merge `paths`; the same paths in any order give the same tree.

        num_frames: length of the frame table that the paths' frame_index points into (default:
        the highest index used, plus one). Raises `ValueError` for no paths, an empty path, a
        frame index out of range, a supervised first token (nothing could predict it), or an
        advantage on some paths but not on others.
        """
        if not paths:
            raise ValueError("a prefix tree needs at least one path")
        root, ends = merge_paths(paths, frame_merging)
        order = lay_out(root)
        tokens = gather_tokens(order.pieces)
        num_tokens = len(tokens.token_ids)
        num_used = int(tokens.frame_index.max()) + 1
        if num_frames is None:
            num_frames = max(num_used, 0)
        elif num_used > num_frames:
            raise ValueError(f"frame_index {num_used - 1} is outside a table of {num_frames}")
        node_start = np.array([*order.node_start, num_tokens], dtype=np.int64)
        node_parent = np.array(order.node_parent, dtype=np.int64)
        lengths = np.diff(node_start)
        shift = np.array(order.node_depth, dtype=np.int64) - node_start[:-1]
        position_ids = np.arange(num_tokens, dtype=np.int64) + np.repeat(shift, lengths)

        source = _path_order(paths, ends, position_ids)
        coefficient = np.array([paths[k].coefficient for k in source], dtype=np.float64)
        advantage = _advantages([paths[k] for k in source])
        spans = number_spans([ends[k].span for k in source])
        taught = span_tokens(spans.stop, spans.length, node_start, node_parent)
        is_target = np.zeros(num_tokens, dtype=np.bool_)
        is_target[taught.tokens] = True
        target_index = np.flatnonzero(is_target)
        if (position_ids[target_index] == 0).any():
            raise ValueError("the first token of a path is supervised: nothing can predict it")

        def sums(values: FloatArray) -> FloatArray:
            """(M,) sums of the paths' values (K,) over the paths that supervise each target."""
            per_token = np.repeat(span_sums(spans, values), spans.length)
            total: FloatArray = np.bincount(taught.tokens, per_token, num_tokens).astype(np.float64)
            return total[target_index]

        policy = None
        if advantage is not None:
            policy = PolicyTargets(
                sums(coefficient * np.maximum(advantage, 0)),
                sums(coefficient * np.minimum(advantage, 0)),
                np.full(len(target_index), np.nan, dtype=np.float32)
                if tokens.log_probs is None
                else tokens.log_probs[target_index],
            )
        return PrefixTree(
            token_ids=tokens.token_ids,
            frame_index=tokens.frame_index,
            patch_index=tokens.patch_index,
            position_ids=position_ids,
            subtree_end=np.repeat(np.array(order.node_end, dtype=np.int32), lengths),
            node_start=node_start,
            node_parent=node_parent,
            path_node=np.array([ends[k].node.node for k in source], dtype=np.int64),
            path_coefficient=coefficient,
            path_source=np.array(source, dtype=np.int64),
            path_span=spans.head,
            target_index=target_index,
            predictor_index=_predictors(target_index, node_start, node_parent),
            loss_weights=sums(coefficient),
            span_stop=spans.stop,
            span_length=spans.length,
            span_previous=spans.previous,
            num_frames=num_frames,
            log_probs=tokens.log_probs,
            path_advantage=advantage,
            policy=policy,
        )


def _predictors(target_index: IntArray, node_start: IntArray, node_parent: IntArray) -> IntArray:
    """(M,) the token before each target on its path: for a target that opens its node, the last
    token of the parent node."""
    predictor = target_index - 1
    node = np.searchsorted(node_start, target_index, side="right") - 1
    opens = node_start[node] == target_index
    predictor[opens] = node_start[node_parent[node[opens]] + 1] - 1
    return predictor


def _path_order(paths: Sequence[Path], ends: list[Place], position_ids: IntArray) -> list[int]:
    """Path numbers by end, coefficient, advantage and supervision: in whatever order given."""
    brief = [
        (end.node.index, path.coefficient, path.advantage or 0.0)
        for path, end in zip(paths, ends, strict=True)
    ]
    if len(set(brief)) == len(brief):
        return sorted(range(len(brief)), key=brief.__getitem__)
    full = [
        (*key, _supervised(end.span, position_ids)) for key, end in zip(brief, ends, strict=True)
    ]
    return sorted(range(len(full)), key=full.__getitem__)


def _supervised(span: Span | None, position_ids: IntArray) -> list[tuple[int, int]]:
    """(depth of the last token, length) of every span of a path, last first."""
    found = []
    while span is not None:
        last = span.node.index + span.node.length - 1
        found.append((int(position_ids[last]), span.length))
        span = span.previous
    return found


def _advantages(paths: Sequence[Path]) -> FloatArray | None:
    """(K,) advantages, or None where no path has one."""
    values = [path.advantage for path in paths if path.advantage is not None]
    if values and len(values) < len(paths):
        raise ValueError(
            f"all paths of a tree have an advantage or none has: {len(values)} of {len(paths)} have"
        )
    return np.array(values, dtype=np.float64) if values else None
