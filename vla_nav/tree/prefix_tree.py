"""The prefix tree of a set of paths, laid out as one packed sequence.

DFS pre-order, heaviest child first (by tokens; equal weights by the first differing merge key), so
that a heavy path stays contiguous and the order of the given paths does not matter.

    paths  r a b x      tree  r - a - b - x     pack         r  a  b  x  y
           r a b              |                 position     0  1  2  3  1      depth on the path
           r y                y                 subtree_end  5  4  4  4  5
                                                predictor of x = b, of y = r    (the parent's last)

    visible(q, k)  <=>  k <= q < subtree_end[k]

w_i = sum of the coefficients of the paths that supervise token i (design section 3), without 1/K.

Axis legend: T tokens, N nodes, K paths, M targets, S supervised spans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from vla_nav.tree.trie import FrameMerging, Place, Span, TrieNode, merge_paths
from vla_nav.tree.types import BoolArray, FloatArray, Int32Array, IntArray, Path


@dataclass(frozen=True, slots=True, eq=False)
class PrefixTree:
    """Paths merged by longest common prefix, in pack order. Build with `from_paths`.

    Tokens (T,): token_ids int64, frame_index int32 (-1 = text), patch_index int32, position_ids
    int64 (depth), subtree_end int32 (exclusive).
    Nodes (N,): node_start int64 (N+1,), node_parent int64 (-1 = root).
    Paths (K,), in pack order of their ends: path_node, path_coefficient float64, path_source (which
    given path), path_span (last supervised span or -1).
    Targets (M,), in pack order: target_index, predictor_index int64, loss_weights float64.
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
        frame index out of range, or a supervised first token (nothing could predict it).
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
        spans = _number_spans([ends[k].span for k in order])
        weights, is_target = _token_weights(spans, coefficient, node_start, node_parent, num_tokens)
        target_index = np.flatnonzero(is_target)
        predictor_index = target_index - 1
        is_first = position_ids[target_index] == 0
        if is_first.any():
            raise ValueError("the first token of a path is supervised: nothing can predict it")
        # A target that opens its node is predicted by the last token of the parent node.
        node = np.searchsorted(node_start, target_index, side="right") - 1
        opens = node_start[node] == target_index
        predictor_index[opens] = node_start[node_parent[node[opens]] + 1] - 1
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
            loss_weights=weights[target_index],
            span_stop=spans.stop,
            span_length=spans.length,
            span_previous=spans.previous,
            num_frames=num_frames,
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
    """Path numbers by end, coefficient and supervision: independent of the order given."""
    brief = [(end.node.index, path.coefficient) for path, end in zip(paths, ends, strict=True)]
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


def _token_weights(
    spans: _Spans,
    coefficient: FloatArray,
    node_start: IntArray,
    node_parent: IntArray,
    num_tokens: int,
) -> tuple[FloatArray, BoolArray]:
    """(T,) sums of coefficients and (T,) whether any path supervises the token.

    A span's coefficient is the sum over the paths that hold it: those that end on it, and those
    of every span that follows it.
    """
    sums = [0.0] * len(spans.stop)
    for head, value in zip(spans.head.tolist(), coefficient.tolist(), strict=True):
        if head >= 0:
            sums[head] += value
    weights = np.zeros(num_tokens, dtype=np.float64)
    is_target = np.zeros(num_tokens, dtype=np.bool_)
    previous, lengths, stops = spans.previous.tolist(), spans.length.tolist(), spans.stop.tolist()
    nodes = (np.searchsorted(node_start, spans.stop, side="left") - 1).tolist()
    for number in range(len(sums) - 1, -1, -1):
        total = sums[number]
        if previous[number] >= 0:
            sums[previous[number]] += total
        stop, left, node = stops[number], lengths[number], nodes[number]
        while left > 0:  # one round per node that the span touches
            start = max(stop - left, int(node_start[node]))
            weights[start:stop] += total
            is_target[start:stop] = True
            left -= stop - start
            node = int(node_parent[node])
            stop = int(node_start[node + 1])
    return weights, is_target
