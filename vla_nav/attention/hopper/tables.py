"""What the Hopper kernels read beside queries and keys: spans, and the order of tiles.

Spans (`mask.py` compares with them): subtree_end[k] - k, with the sign bit flipped.

Tiles: groups of falling length, every head's share of a group together.

    tiles by length   a b c | d e | f g h i      groups hold 40 % of the work, 30 %, 20 % and 10 %
    order             head 0: a b c, head 1: a b c, ..., head 0: d e, head 1: d e, ...

Longest first keeps the last programs short. Heads stay together within a group because tiles of one
head read the same queries or keys at about the same time, which the L2 cache then holds.

In the backward pass a tile of keys is either *split* over the query heads of its key head, which
add up its gradients in float32 accumulators, or *merged*: one program goes through all of them and
writes the gradients itself. Merging saves programs that are short (the keys of a leaf are seen by
itself alone); splitting keeps long ones apart. A split tile has a slot in the accumulators.

    tiles    0 1 2 3 4 5         0, 1, 2 long
    slots    0 1 2 . . .         . is -1: merged

Axis legend: K joint keys, J tiles of a head, H query heads, Hkv key heads, G = H / Hkv.
"""

from __future__ import annotations

import numpy as np

from vla_nav.tree.types import Int32Array, IntArray

SIGN = -(1 << 31)
MAX_TILES = 1 << 16  # an item is one int32: 16 bits of tile, 15 of head
_SHARES = (0.4, 0.7, 0.9)  # of the work, where a group ends: 3 % from the best order in simulation
_MERGED_SHARE = 1 / 8  # of a processor's work: the longest merged tile


def packed_rows(group: int) -> int:
    """Tokens of a forward tile of 128 rows: the query heads of a key head share its keys, where
    their number divides it."""
    return 128 // group if 128 % group == 0 and group <= 64 else 128


def spans(end: Int32Array) -> Int32Array:
    """(K,) of joint subtree ends (K,); a key that nobody sees has end 0."""
    return np.maximum(end - np.arange(len(end), dtype=np.int32), 0) ^ np.int32(SIGN)


def forward_items(work: IntArray, num_heads: int) -> Int32Array:
    """(J H,) head << 16 | tile in order, from the work (J,) of a tile; heads as the kernel counts
    them, key heads where a tile holds all their query heads."""
    return _items(work, np.ones(len(work), dtype=bool), num_heads, group=1)


def backward_items(
    work: IntArray, num_heads: int, group: int, num_processors: int
) -> tuple[Int32Array, Int32Array]:
    """Items as in the forward pass, and slots (J,) int32; a merged tile's head is its first one."""
    share = work.sum() * num_heads / num_processors
    is_split = (group * work > _MERGED_SHARE * share) | (group == 1)
    slots = np.where(is_split, np.cumsum(is_split) - 1, -1).astype(np.int32)
    return _items(work, is_split, num_heads, group), slots


def _items(
    work: IntArray, is_split: np.ndarray[tuple[int], np.dtype[np.bool_]], num_heads: int, group: int
) -> Int32Array:
    length = np.where(is_split, work, group * work)
    order = np.argsort(-length, kind="stable")
    done = np.cumsum((work * group)[order])
    ends = [int(np.searchsorted(done, share * done[-1])) + 1 for share in _SHARES]
    first_heads = np.arange(0, num_heads, group)[:, None] << 16
    parts = []
    for tiles in np.split(order, np.minimum(ends, len(order))):
        split, merged = tiles[is_split[tiles]], tiles[~is_split[tiles]]
        of_key_head = np.concatenate([*(split | head << 16 for head in range(group)), merged])
        falling = np.argsort(-length[of_key_head & 0xFFFF], kind="stable")
        parts.append((first_heads + of_key_head[falling]).ravel())
    return np.concatenate(parts).astype(np.int32)
