"""Merging paths by longest common prefix, token by token.

    a b c d          a b - c d *
    a b c    ->          |   *        nodes split where paths part or end (* = a path ends);
    a b x                x *          a node is a slice of one segment

Shared segments are recognised by the identity of their keys before any token is compared (text
segments of one array have the same keys object, supervised or not), and a shared `Trunk` is walked
once. So an episode costs O(segments), not O(sum of path lengths).

Splitting keeps the old object as the *lower* part: whoever holds a node holds the place at that
node's end, and that place never moves.

Frames are atomic only if asked (image attention is bidirectional inside a frame): then all tokens
of a frame in a row merge together or not at all.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple, get_args

import numpy as np

from vla_nav.errors import unknown_name
from vla_nav.tree.types import IntArray, Path, Segment, Trunk

FrameMerging = Literal["token", "atomic"]


class TrieNode:
    """Tokens segment[start:stop], the nodes that follow, and whether a path ends here.

    `lay_out` sets weight (tokens of the subtree), index (place of the first token in the pack) and
    node (number of the prefix tree's node that it belongs to, -1 for the root).
    """

    __slots__ = (
        "children",
        "index",
        "is_path_end",
        "length",
        "node",
        "parent",
        "segment",
        "segment_keys",
        "start",
        "weight",
    )

    weight: int
    index: int
    node: int

    def __init__(
        self,
        segment: Segment,
        segment_keys: IntArray,
        start: int,
        length: int,
        parent: TrieNode | None,
    ) -> None:
        self.segment = segment
        self.segment_keys = segment_keys
        self.start = start
        self.length = length
        self.parent = parent
        self.children: dict[Hashable, TrieNode] = {}
        self.is_path_end = False

    @property
    def keys(self) -> IntArray:
        """(length,) merge keys of this node's tokens."""
        return self.segment_keys[self.start : self.start + self.length]


class Span(NamedTuple):
    """`length` supervised tokens up to the end of `node`; `previous` comes before it on the path.

    All paths that hold a span supervise its tokens; paths of one trunk share the trunk's spans.
    """

    node: TrieNode
    length: int
    previous: Span | None


class Place(NamedTuple):
    """Where a path has got to: the end of `node`, with the supervised spans so far."""

    node: TrieNode
    span: Span | None


def merge_paths(paths: Sequence[Path], frame_merging: FrameMerging) -> tuple[TrieNode, list[Place]]:
    """The trie's empty root, and for each path the place where it ends."""
    if frame_merging not in get_args(FrameMerging):
        raise unknown_name("frame merging", frame_merging, get_args(FrameMerging))
    root = TrieNode(_EMPTY, _EMPTY.keys, 0, 0, None)
    start = Place(root, None)
    known: dict[int, Place] = {}  # id(trunk) -> its end
    atoms: dict[bytes, Segment] = {}
    ends: list[Place] = []
    for path in paths:
        if frame_merging == "atomic":
            place = _walk_atomic(start, _atomic_segments(path, atoms))
        else:
            place = _walk(_trunk_end(path.trunk, start, known), path.segments)
        if place.node is root:
            raise ValueError("a path needs at least one token")
        place.node.is_path_end = True
        ends.append(place)
    return root, ends


def _trunk_end(trunk: Trunk | None, start: Place, known: dict[int, Place]) -> Place:
    """Where `trunk` ends; walks only the links not yet known."""
    links: list[Trunk] = []
    while trunk is not None:
        place = known.get(id(trunk))
        if place is not None:
            break
        links.append(trunk)
        trunk = trunk.parent
    else:
        place = start
    for link in reversed(links):
        place = known[id(link)] = _walk(place, (link.segment,))
    return place


def _walk(place: Place, segments: Iterable[Segment]) -> Place:
    """Read `segments` on from `place`. Nearly all the work of merging is this loop."""
    node, span = place
    for segment in segments:
        keys, first, length = segment.merge_keys
        if length == 0:
            continue
        child = node.children.get(first)
        if child is None:
            child = TrieNode(segment, keys, 0, length, node)
            node.children[first] = child
            node = child
        elif child.segment_keys is keys and child.length == length:
            node = child
        else:
            node = _extend(node, segment, keys)
        if segment.is_supervised:
            span = Span(node, length, span)
    return Place(node, span)


def _walk_atomic(place: Place, segments: Iterable[Segment]) -> Place:
    node, span = place
    for segment in segments:
        node = _extend_atomic(node, segment)
        if segment.is_supervised:
            span = Span(node, len(segment), span)
    return Place(node, span)


def _extend(node: TrieNode, segment: Segment, keys: IntArray) -> TrieNode:
    """The node at whose end `segment` (its merge keys), read on from the end of `node`, ends."""
    position, stop = 0, len(keys)
    while position < stop:
        key = int(keys[position])
        child = node.children.get(key)
        if child is None:
            child = TrieNode(segment, keys, position, stop - position, node)
            node.children[key] = child
            return child
        common = min(child.length, stop - position)
        if child.segment_keys is not keys or child.start != position:
            differs = child.keys[:common] != keys[position : position + common]
            first = int(differs.argmax())
            common = first if differs[first] else common
        if common < child.length:
            child = _split(child, common)
        node = child
        position += common
    return node


def _split(node: TrieNode, length: int) -> TrieNode:
    """Cut the first `length` tokens off `node` into a parent of its own, and return that."""
    assert node.parent is not None
    upper = TrieNode(node.segment, node.segment_keys, node.start, length, node.parent)
    node.parent.children[int(upper.keys[0])] = upper
    node.parent = upper
    node.start += length
    node.length -= length
    upper.children[int(node.keys[0])] = node
    return upper


def _extend_atomic(node: TrieNode, segment: Segment) -> TrieNode:
    """As `_extend`; a frame's run of tokens is one key, so it is shared whole or not at all."""
    if segment.frame_index[0] < 0:
        return _extend(node, segment, segment.keys)
    key = (int(segment.frame_index[0]), segment.patch_index.tobytes())
    child = node.children.get(key)
    if child is None:
        child = TrieNode(segment, segment.keys, 0, len(segment), node)
        node.children[key] = child
    return child


def _atomic_segments(path: Path, atoms: dict[bytes, Segment]) -> list[Segment]:
    """The path cut into runs of one frame (or of text) and one supervision; runs are interned."""
    ids, frame, patch, is_supervised, log_probs = path.tokens()
    if len(ids) == 0:
        return []
    change = (frame[1:] != frame[:-1]) | (
        (is_supervised[1:] != is_supervised[:-1]) & (frame[1:] < 0)
    )
    bounds = [0, *(np.flatnonzero(change) + 1).tolist(), len(ids)]
    runs: list[Segment] = []
    for start, stop in pairwise(bounds):
        supervised = bool(is_supervised[start])
        if frame[start] >= 0 and is_supervised[start:stop].any():
            raise ValueError("a frame's tokens cannot be supervised")
        sampled = None if log_probs is None else log_probs[start:stop]
        run = Segment(ids[start:stop], frame[start:stop], patch[start:stop], supervised, sampled)
        runs.append(atoms.setdefault(run.keys.tobytes() + bytes([supervised]), run))
    return runs


_EMPTY = Segment(np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.int32))
