"""What the Hopper kernels do with the tables they are handed, block by block in float32.

Stands in for `vla_nav.attention.hopper.kernels` (which needs the extra `hopper` and a GPU), so that
plans, tables and the autograd function around them can be held to the reference on any machine:

    forward    a tile's rows see its full blocks, and of its partial ones what their bits say
    backward   a tile of keys is seen by its full blocks, and by partial ones where spans say so;
               every tile of every head is reached by exactly one item
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vla_nav.attention.hopper.tables import SIGN, packed_rows

_QUERY_BLOCK = 64


class Lists(NamedTuple):
    """As `kernels.Lists`."""

    partial_counts: Tensor
    partial: Tensor
    full_counts: Tensor
    full: Tensor
    items: Tensor
    slots: Tensor

    def row(self, tile: int) -> tuple[list[int], list[int]]:
        """Partial and full blocks of a tile."""
        some = self.partial[0, 0, tile, : int(self.partial_counts[0, 0, tile])]
        return some.tolist(), self.full[0, 0, tile, : int(self.full_counts[0, 0, tile])].tolist()


def forward(
    q: Tensor, k: Tensor, v: Tensor, bits: Tensor, lists: Lists, scale: float
) -> tuple[Tensor, Tensor]:
    """out (1, Q, H, D) and lse (1, H, Q)."""
    group = q.shape[2] // k.shape[2]
    rows = packed_rows(group)
    seen = torch.zeros(q.shape[1], k.shape[1], dtype=torch.bool)
    done = [(item >> 16, item & 0xFFFF) for item in lists.items.tolist()]
    num_tiles, num_heads = q.shape[1] // rows, q.shape[2] * rows // 128
    assert sorted(done) == [(h, tile) for h in range(num_heads) for tile in range(num_tiles)]
    keys = _key_block(q)
    for tile in range(num_tiles):
        mine = seen[tile * rows : (tile + 1) * rows].unflatten(1, (-1, keys))  # a view
        partial, full = lists.row(tile)
        mine[:, full] = True
        for place, block in enumerate(partial):
            words = bits[int(lists.slots[tile]) + place].long()  # (128, 4)
            assert torch.equal(words, words[:: 128 // rows].repeat_interleave(128 // rows, dim=0))
            for bit in range(keys // 4):
                columns = 8 * (bit // 2) + bit % 2 + 2 * torch.arange(4)
                mine[:, block, columns] = (words[:: 128 // rows] >> bit & 1).bool()
    scores = _scores(q, k, scale).masked_fill(~seen, -torch.inf)
    lse = scores.logsumexp(-1)
    share = (scores - lse[..., None]).exp()
    return torch.einsum("bhqk,bkhd->bqhd", share, _wide(v, group)).to(q.dtype), lse


def backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    dout: Tensor,
    span: Tensor,
    lists: Lists,
    split: Tensor | int,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dk and dv."""
    group, keys = q.shape[2] // k.shape[2], _key_block(q)
    num_tiles = k.shape[1] // keys
    done = []
    for item in lists.items.tolist():
        head, tile = item >> 16, item & 0xFFFF
        is_merged = int(lists.slots[tile]) < 0
        done += [(head + i, tile) for i in range(group if is_merged else 1)]
    assert sorted(done) == [(h, tile) for h in range(q.shape[2]) for tile in range(num_tiles)]
    slots = lists.slots[lists.slots >= 0]
    with_slot = (lists.slots >= 0).nonzero()[:, 0]
    assert torch.equal(slots, torch.arange(len(slots), dtype=slots.dtype))
    assert torch.equal(with_slot, torch.arange(split) if isinstance(split, int) else split)
    row = torch.arange(k.shape[1] - q.shape[1], k.shape[1], dtype=torch.int32)
    distance = row[:, None] - torch.arange(k.shape[1], dtype=torch.int32)
    visible = (distance ^ SIGN) < span
    seen = torch.zeros_like(visible)
    for tile in range(num_tiles):
        partial, full = lists.row(tile)
        columns = slice(tile * keys, (tile + 1) * keys)
        for block in partial:
            some = slice(block * _QUERY_BLOCK, (block + 1) * _QUERY_BLOCK)
            seen[some, columns] = visible[some, columns]
        seen[:, columns].unflatten(0, (-1, _QUERY_BLOCK))[full] = True
    scores = _scores(q, k, scale).masked_fill(~seen, -torch.inf)
    share, grad = (scores - lse[..., None]).exp(), dout.float()
    delta = (grad * out.float()).sum(-1).transpose(1, 2)[..., None]
    pull = share * (torch.einsum("bqhd,bkhd->bhqk", grad, _wide(v, group)) - delta) * scale
    dq = torch.einsum("bhqk,bkhd->bqhd", pull, _wide(k, group))
    dk = torch.einsum("bhqk,bqhd->bkhd", pull, q.float())
    dv = torch.einsum("bhqk,bqhd->bkhd", share, grad)
    dk, dv = (x.unflatten(2, (-1, group)).sum(3) for x in (dk, dv))
    return dq.to(q.dtype), dk.to(q.dtype), dv.to(q.dtype)


def _key_block(q: Tensor) -> int:
    return 128 if q.shape[-1] <= 128 else 64


def _wide(x: Tensor, group: int) -> Tensor:
    return x.repeat_interleave(group, dim=2).float()


def _scores(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """(B, H, Q, K)."""
    group = q.shape[2] // k.shape[2]
    return torch.einsum("bqhd,bkhd->bhqk", q.float(), _wide(k, group)) * scale
