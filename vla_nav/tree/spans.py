"""Which path supervises what: chains of supervised spans, shared by the paths of one trunk.

    path 0   r a [x y]            spans   0: [x y]            previous -1      path_span  0 0 1
    path 1   r a [x y]                    1: [y] after 2      previous  2
    path 2   r [a] b [y]                  2: [a]              previous -1

A path holds its last span and all that come before it on the chain. So sums over the supervising
paths of every token take one step per span, not one per path and token: a span's value is that of
the paths that end on it, plus those of every span that follows it.

Axis legend: T tokens, N nodes, K paths, S spans, n tokens of a span.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from vla_nav.tree.preorder import ranges
from vla_nav.tree.trie import Span
from vla_nav.tree.types import FloatArray, IntArray


class Spans(NamedTuple):
    """head (K,): last span of each path or -1. stop (S,): pack index one past a span's last token;
    length (S,); previous (S,), -1 or always the smaller number."""

    head: IntArray
    stop: IntArray
    length: IntArray
    previous: IntArray


class SpanTokens(NamedTuple):
    """Compressed rows: span s has pack indices tokens[offsets[s] : offsets[s+1]], ascending."""

    offsets: IntArray
    tokens: IntArray


def number_spans(heads: Sequence[Span | None]) -> Spans:
    """The spans that the paths' last ones lead to, in the order in which paths reach them."""
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
    return Spans(*(np.array(column, dtype=np.int64) for column in (head, stop, length, previous)))


def span_tokens(
    stop: IntArray, length: IntArray, node_start: IntArray, node_parent: IntArray
) -> SpanTokens:
    """The tokens of spans (S,): up to their node's start, then on from the end of its parent.

    nodes  0: r a   1: x y   2: z      the span of 3 tokens that ends at y   ->   a x y
    """
    number = np.arange(len(stop))
    node = np.searchsorted(node_start, stop, side="left") - 1
    left = length
    rows, starts, stops = [], [], []
    while len(number):  # one round per node that a span touches; nearly always one
        start = np.maximum(stop - left, node_start[node])
        rows.append(number)
        starts.append(start)
        stops.append(stop)
        left = left - (stop - start)
        more = left > 0
        number, left, node = number[more], left[more], node_parent[node[more]]
        stop = node_start[node + 1]
    offsets = np.concatenate([[0], np.cumsum(length)])
    if len(rows) <= 1:
        return SpanTokens(offsets, ranges(starts[0], stops[0]) if rows else offsets[:0])
    row, start, stop = (np.concatenate(parts) for parts in (rows, starts, stops))
    order = np.lexsort((start, row))  # ancestors come before descendants in the pack
    return SpanTokens(offsets, ranges(start[order], stop[order]))


def span_sums(spans: Spans, values: FloatArray) -> FloatArray:
    """(S,) sums over the paths that hold a span, of the paths' values (K,)."""
    sums = [0.0] * len(spans.stop)
    for head, value in zip(spans.head.tolist(), values.tolist(), strict=True):
        if head >= 0:
            sums[head] += value
    previous = spans.previous.tolist()
    for number in range(len(sums) - 1, -1, -1):
        if previous[number] >= 0:
            sums[previous[number]] += sums[number]
    return np.array(sums, dtype=np.float64)
