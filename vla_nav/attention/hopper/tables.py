"""What the Hopper kernels read beside queries and keys: spans, and the order of tiles.

Spans (`mask.py` compares with them): subtree_end[k] - k, with the sign bit flipped.

Tiles: groups of falling length, every head's share of a group together.

    tiles by length   a b c | d e | f g h i      groups hold half of the work, then half of the rest
    order             head 0: a b c, head 1: a b c, ..., head 0: d e, head 1: d e, ...

Longest first keeps the last programs short. Heads stay together within a group because tiles of one
head read the same queries or keys at about the same time, which the L2 cache then holds.

Axis legend: K joint keys, J tiles of a head, H heads.
"""

from __future__ import annotations

import numpy as np
import torch

from vla_nav.tree.types import Int32Array, IntArray

SIGN = -(1 << 31)
_SHARES = (0.4, 0.7, 0.9)  # of the work, where a group ends: 3 % from the best order in simulation
MAX_TILES = 1 << 16  # an item is one int32: 16 bits of tile, 15 of head


def spans(end: Int32Array) -> Int32Array:
    """(K,) of joint subtree ends (K,); a key that nobody sees has end 0."""
    return np.maximum(end - np.arange(len(end), dtype=np.int32), 0) ^ np.int32(SIGN)


def tile_groups(work: IntArray) -> tuple[IntArray, tuple[int, ...]]:
    """(J,) tiles by falling `work`, and where groups of them end (the last is J)."""
    order = np.argsort(-work, kind="stable")
    done = np.cumsum(work[order])
    ends = {int(np.searchsorted(done, share * done[-1])) + 1 for share in _SHARES}
    return order.astype(np.int32), tuple(sorted({*ends, len(work)}))


def items(order: torch.Tensor, ends: tuple[int, ...], num_heads: int) -> torch.Tensor:
    """(J * H,) int32, head << 16 | tile, in order; on the device of `order` (J,) int32."""
    heads = torch.arange(num_heads, device=order.device, dtype=torch.int32)[:, None] << 16
    starts = (0, *ends[:-1])
    return torch.cat([(heads | order[a:b]).flatten() for a, b in zip(starts, ends, strict=True)])
