"""Trie -> pack order: depth-first pre-order, heaviest child first, unbranched runs joined to nodes.

    trie       r - a - b - c *         pieces    r | a | b | c | x          (slices of segments)
               |                       nodes     r | a   b   c | x          node_start  0 1 4
               x *                     weight    5   3   2   1   1          node_parent -1 0 0

A node ends where paths part or a path ends (*). Equal weights are ordered by merge key, so the
order depends on nothing but the paths. Three passes over the trie; everything per token is a gather
from one table of the segments used, each of which is copied once however many pieces show it.

Axis legend: T tokens, N nodes, S segments used, n tokens of a segment.
"""

from __future__ import annotations

from operator import itemgetter
from typing import NamedTuple

import numpy as np

from vla_nav.tree.trie import TrieNode
from vla_nav.tree.types import Float32Array, Int32Array, IntArray, Segment, joined_log_probs


class Preorder(NamedTuple):
    """Trie nodes in pack order, and the nodes that they form: node_start and node_parent (N,) (-1 =
    root), node_depth (N,) tokens before it on its path, node_end (N,) end of its subtree."""

    pieces: list[TrieNode]
    node_start: list[int]
    node_parent: list[int]
    node_depth: list[int]
    node_end: list[int]


class Tokens(NamedTuple):
    """The tree's tokens (T,), as in a segment."""

    token_ids: IntArray
    frame_index: Int32Array
    patch_index: Int32Array
    log_probs: Float32Array | None


def lay_out(root: TrieNode) -> Preorder:
    """Weigh the subtrees, then walk them; sets `index` and `node` of every trie node."""
    _weigh(root)
    pieces: list[TrieNode] = []
    node_start: list[int] = []
    node_parent: list[int] = []
    node_depth: list[int] = []
    node_end: list[int] = []
    node_stop: list[int] = []  # end of the node's own tokens
    root.node = -1
    index, number = 0, 0
    stack = _lightest_first(root)
    while stack:
        piece = stack.pop()
        assert piece.parent is not None
        above = piece.parent.node
        node_start.append(index)
        node_parent.append(above)
        node_depth.append(
            0 if above < 0 else node_depth[above] + node_stop[above] - node_start[above]
        )
        node_end.append(index + piece.weight)
        while True:  # the run of pieces that is one node
            piece.index = index
            piece.node = number
            pieces.append(piece)
            index += piece.length
            children = piece.children
            if len(children) != 1 or piece.is_path_end:
                break
            (piece,) = children.values()
        node_stop.append(index)
        number += 1
        if children:
            stack.extend(_lightest_first(piece))
    return Preorder(pieces, node_start, node_parent, node_depth, node_end)


def gather_tokens(pieces: list[TrieNode]) -> Tokens:
    """The tokens of the pieces, one behind the other."""
    row: dict[int, int] = {}  # id(segment) -> its first row in the table
    segments: list[Segment] = []
    starts: list[int] = []
    size = 0
    for piece in pieces:
        segment = piece.segment
        first = row.get(id(segment))
        if first is None:
            row[id(segment)] = first = size
            segments.append(segment)
            size += segment.merge_keys.length
        starts.append(first + piece.start)
    table = Tokens(
        np.concatenate([segment.token_ids for segment in segments]),
        np.concatenate([segment.frame_index for segment in segments]),
        np.concatenate([segment.patch_index for segment in segments]),
        joined_log_probs(segments),
    )
    start = np.array(starts, dtype=np.int64)
    stop = start + np.array([piece.length for piece in pieces], dtype=np.int64)
    if stop[-1] == size and start[0] == 0 and np.array_equal(start[1:], stop[:-1]):
        return table  # whole segments, each used once
    index = ranges(start, stop)
    return Tokens(
        table.token_ids[index],
        table.frame_index[index],
        table.patch_index[index],
        None if table.log_probs is None else table.log_probs[index],
    )


def ranges(start: IntArray, stop: IntArray) -> IntArray:
    """start[0] .. stop[0] - 1, start[1] .. stop[1] - 1, ... one behind the other."""
    lengths = stop - start
    before = np.cumsum(lengths) - lengths
    index: IntArray = np.repeat(start - before, lengths)
    index += np.arange(len(index))
    return index


def _weigh(root: TrieNode) -> None:
    """Set `weight`, the tokens of each subtree."""
    walk, stack = [], [root]
    while stack:
        piece = stack.pop()
        walk.append(piece)
        piece.weight = piece.length
        if piece.children:
            stack.extend(piece.children.values())
    for piece in reversed(walk):
        if piece.parent is not None:
            piece.parent.weight += piece.weight


def _lightest_first(piece: TrieNode) -> list[TrieNode]:
    """The children for a stack: heaviest last. Siblings always differ in their merge keys."""
    if len(piece.children) < 2:
        return list(piece.children.values())
    keyed = [
        (-child.weight, isinstance(key, tuple), key, child) for key, child in piece.children.items()
    ]
    keyed.sort(key=itemgetter(0, 1, 2), reverse=True)
    return [child for *_, child in keyed]
