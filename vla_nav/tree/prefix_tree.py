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
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from vla_nav.tree.trie import FrameMerging, Place, Span, TrieNode, merge_paths
from vla_nav.tree.types import BoolArray, Float32Array, FloatArray, Int32Array, IntArray, Path


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
        layout = _lay_out(root)
        pieces = layout.pieces
        token_ids = np.concatenate([p.segment.token_ids[_slice(p)] for p in pieces])
        frame_index = np.concatenate([p.segment.frame_index[_slice(p)] for p in pieces])
        patch_index = np.concatenate([p.segment.patch_index[_slice(p)] for p in pieces])
        num_used = int(frame_index.max()) + 1
        if num_frames is None:
            num_frames = max(num_used, 0)
        elif num_used > num_frames:
            raise ValueError(f"frame_index {num_used - 1} is outside a table of {num_frames}")
        num_tokens = len(token_ids)
        node_start = np.array([*layout.node_start, num_tokens], dtype=np.int64)
        node_parent = np.array(layout.node_parent, dtype=np.int64)
        lengths = np.diff(node_start)
        shift = np.array(layout.node_depth, dtype=np.int64) - node_start[:-1]
        position_ids = np.arange(num_tokens, dtype=np.int64) + np.repeat(shift, lengths)
        subtree_end = np.repeat(np.array(layout.node_end, dtype=np.int32), lengths)

        order = _path_order(paths, ends)
        coefficient = np.array([paths[k].coefficient for k in order], dtype=np.float64)
        advantage = _advantages([paths[k] for k in order])
        spans = _number_spans([ends[k].span for k in order])
        columns = [coefficient]
        if advantage is not None:
            columns += [coefficient * advantage.clip(0), coefficient * advantage.clip(None, 0)]
        weights, is_target = _token_sums(spans, columns, node_start, node_parent, num_tokens)
        target_index = np.flatnonzero(is_target)
        predictor_index = target_index - 1
        is_first = position_ids[target_index] == 0
        if is_first.any():
            raise ValueError("the first token of a path is supervised: nothing can predict it")
        # A target that opens its node is predicted by the last token of the parent node.
        node = np.searchsorted(node_start, target_index, side="right") - 1
        opens = node_start[node] == target_index
        predictor_index[opens] = node_start[node_parent[node[opens]] + 1] - 1
        log_probs = _log_probs(pieces)
        policy = None
        if advantage is not None:
            absent = np.full(len(target_index), np.nan, np.float32)
            policy = PolicyTargets(
                weights[1][target_index],
                weights[2][target_index],
                absent if log_probs is None else log_probs[target_index],
            )
        return PrefixTree(
            token_ids=token_ids,
            frame_index=frame_index,
            patch_index=patch_index,
            position_ids=position_ids,
            subtree_end=subtree_end,
            node_start=node_start,
            node_parent=node_parent,
            path_node=np.array([ends[k].node.node for k in order], dtype=np.int64),
            path_coefficient=coefficient,
            path_source=np.array(order, dtype=np.int64),
            path_span=spans.head,
            target_index=target_index,
            predictor_index=predictor_index,
            loss_weights=weights[0][target_index],
            span_stop=spans.stop,
            span_length=spans.length,
            span_previous=spans.previous,
            num_frames=num_frames,
            log_probs=log_probs,
            path_advantage=advantage,
            policy=policy,
        )


class _Layout(NamedTuple):
    """Trie nodes in pack order, and the nodes (maximal unbranched runs) that they form."""

    pieces: list[TrieNode]
    node_start: list[int]
    node_parent: list[int]
    node_depth: list[int]
    node_end: list[int]


class _Spans(NamedTuple):
    """Supervised spans numbered so that `previous` is always the smaller number; head (K,)."""

    head: IntArray
    stop: IntArray
    length: IntArray
    previous: IntArray


def _slice(piece: TrieNode) -> slice:
    return slice(piece.start, piece.start + piece.length)


def _lay_out(root: TrieNode) -> _Layout:
    """Weigh the subtrees, then walk pre-order, heaviest child first."""
    walk, stack = [], [root]
    while stack:
        piece = stack.pop()
        piece.weight = piece.length
        walk.append(piece)
        stack.extend(piece.children.values())
    for piece in reversed(walk):
        if piece.parent is not None:
            piece.parent.weight += piece.weight

    layout = _Layout([], [], [], [], [])
    index = 0
    stack = _lightest_first(root)
    while stack:
        piece = stack.pop()
        parent = piece.parent
        assert parent is not None
        piece.index = index
        piece.depth = parent.depth + parent.length
        if parent is root or parent.is_path_end or len(parent.children) > 1:
            piece.node = len(layout.node_start)
            layout.node_start.append(index)
            layout.node_parent.append(parent.node)
            layout.node_depth.append(piece.depth)
            layout.node_end.append(index + piece.weight)
        else:
            piece.node = parent.node
        layout.pieces.append(piece)
        index += piece.length
        stack.extend(_lightest_first(piece))
    return layout


def _lightest_first(piece: TrieNode) -> list[TrieNode]:
    """The children for a stack: heaviest last. Siblings always differ in their merge keys."""
    if len(piece.children) < 2:
        return list(piece.children.values())
    keyed = [
        (-child.weight, isinstance(key, tuple), key, child) for key, child in piece.children.items()
    ]
    keyed.sort(key=itemgetter(0, 1, 2), reverse=True)
    return [child for *_, child in keyed]


def _path_order(paths: Sequence[Path], ends: list[Place]) -> list[int]:
    """Path numbers by end, coefficient, advantage and supervision: in whatever order given."""
    brief = [
        (end.node.index, path.coefficient, path.advantage or 0.0)
        for path, end in zip(paths, ends, strict=True)
    ]
    if len(set(brief)) == len(brief):
        return sorted(range(len(brief)), key=brief.__getitem__)
    full = [(*key, _supervised(end.span)) for key, end in zip(brief, ends, strict=True)]
    return sorted(range(len(full)), key=full.__getitem__)


def _supervised(span: Span | None) -> list[tuple[int, int]]:
    found = []
    while span is not None:
        found.append((span.node.depth + span.node.length, span.length))
        span = span.previous
    return found


def _number_spans(heads: list[Span | None]) -> _Spans:
    number: dict[int, int] = {}  # id(span) -> number
    head: list[int] = []
    stop: list[int] = []
    length: list[int] = []
    previous: list[int] = []
    for last in heads:
        chain = []
        span = last
        while span is not None and id(span) not in number:
            chain.append(span)
            span = span.previous
        for link in reversed(chain):
            number[id(link)] = len(stop)
            stop.append(link.node.index + link.node.length)
            length.append(link.length)
            previous.append(-1 if link.previous is None else number[id(link.previous)])
        head.append(-1 if last is None else number[id(last)])
    return _Spans(*(np.array(column, dtype=np.int64) for column in (head, stop, length, previous)))


def _advantages(paths: Sequence[Path]) -> FloatArray | None:
    """(K,) advantages, or None where no path has one."""
    values = [path.advantage for path in paths if path.advantage is not None]
    if values and len(values) < len(paths):
        raise ValueError(
            f"all paths of a tree have an advantage or none has: {len(values)} of {len(paths)} have"
        )
    return np.array(values, dtype=np.float64) if values else None


def _log_probs(pieces: list[TrieNode]) -> Float32Array | None:
    """(T,) log-probabilities of the tokens, or None where none has any."""
    if all(piece.segment.log_probs is None for piece in pieces):
        return None
    parts = []
    for piece in pieces:
        given = piece.segment.log_probs
        absent = np.full(piece.length, np.nan, np.float32)
        parts.append(absent if given is None else given[_slice(piece)])
    return np.concatenate(parts)


def _token_sums(
    spans: _Spans,
    columns: list[FloatArray],
    node_start: IntArray,
    node_parent: IntArray,
    num_tokens: int,
) -> tuple[list[FloatArray], BoolArray]:
    """For each column (K,) the (T,) sums over the paths that supervise the token; and (T,) whether
    any path does.

    A span's value is the sum over the paths that hold it: those that end on it, and those of every
    span that follows it.
    """
    sums = np.zeros((len(spans.stop), len(columns)))
    has_span = spans.head >= 0
    for k, column in enumerate(columns):
        np.add.at(sums[:, k], spans.head[has_span], column[has_span])
    previous = spans.previous.tolist()
    for last in range(len(previous) - 1, -1, -1):
        if previous[last] >= 0:
            sums[previous[last]] += sums[last]
    is_target = np.zeros(num_tokens, dtype=np.bool_)
    found = [np.zeros(num_tokens) for _ in columns]
    number, stop, left = np.arange(len(spans.stop)), spans.stop, spans.length
    node = np.searchsorted(node_start, stop, side="left") - 1
    while len(number):  # one round per node that a span touches
        start = np.maximum(stop - left, node_start[node])
        index = _ranges(start, stop)
        is_target[index] = True
        for k, total in enumerate(found):
            values = np.repeat(sums[number, k], stop - start)
            total += np.bincount(index, weights=values, minlength=num_tokens)
        left = left - (stop - start)
        more = left > 0
        number, left, node = number[more], left[more], node_parent[node[more]]
        stop = node_start[node + 1]
    return found, is_target


def _ranges(start: IntArray, stop: IntArray) -> IntArray:
    """start[0] .. stop[0] - 1, start[1] .. stop[1] - 1, ... one behind the other."""
    lengths = stop - start
    before = np.cumsum(lengths) - lengths
    within: IntArray = np.arange(int(lengths.sum()), dtype=np.int64)
    return within + np.repeat(start - before, lengths)
