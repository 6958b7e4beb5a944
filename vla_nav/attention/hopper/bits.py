"""Which scores of partial blocks are visible, as bits in the order of the tensor cores' fragments.

A thread of the forward kernel holds, of each of its rows, 32 scores of a tile of 128 keys (16 of
one of 64), at columns 8 i + 2 lane + {0, 1}; lane is its place among the four threads of a row:

    column   0 1 2 3 4 5 6 7  8 9 ...
    lane     0 0 1 1 2 2 3 3  0 0 ...
    bit      0 1 0 1 0 1 0 1  2 3 ...        words[entry, row, lane], bit 2 i + {0, 1}

so one word masks a row's scores of a tile. They are made on the device, once per pack, for the
partial blocks alone: 2 KiB each.

Axis legend: E entries of the partial lists, R tokens of a tile, C keys of a block, K joint keys.
"""

from __future__ import annotations

import torch

from vla_nav.attention.hopper.tables import SIGN

ROWS = 128  # of a tile: R tokens times the query heads that share a key head
_LANES = 4
_CHUNK = 1024  # entries at a time: 32 MiB of scores with R = 64 and C = 128


def fragment_bits(
    tiles: torch.Tensor, blocks: torch.Tensor, span: torch.Tensor, *, num_rows: int, key_block: int
) -> torch.Tensor:
    """words (E, 128, 4) int32 of entries (tile, block of keys), both (E,) int32.

    span: of all keys (`tables.spans`); num_rows: R; rows of a tile that are the same token of
    several heads follow one another.
    """
    shifts = torch.arange(key_block // _LANES, device=span.device, dtype=torch.int32)
    words = span.new_zeros(max(1, len(tiles)), ROWS, _LANES)
    token = torch.arange(num_rows, device=span.device, dtype=torch.int32)
    key = torch.arange(key_block, device=span.device, dtype=torch.int32)
    for start in range(0, len(tiles), _CHUNK):
        part = slice(start, start + _CHUNK)
        q = tiles[part, None] * num_rows + token  # (E, R), joint: the caller's tiles are
        k = blocks[part, None] * key_block + key  # (E, C)
        distance = q[:, :, None] - k[:, None]  # (E, R, C)
        seen = (distance ^ SIGN) < span[k.long()][:, None]
        by_lane = seen.unflatten(2, (-1, _LANES, 2)).transpose(2, 3).flatten(3)  # (E, R, 4, C / 4)
        bits = (by_lane.int() << shifts).sum(-1, dtype=torch.int32)
        words[part] = bits.repeat_interleave(ROWS // num_rows, dim=1)
    return words
