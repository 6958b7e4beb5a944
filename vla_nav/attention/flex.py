"""Attention over a pack through FlexAttention: the portable GPU path (Triton).

    loader worker   plan(packed)            block lists in both directions, widths in buckets
    device          plan.to("cuda")         one BlockMask, reused by every layer
    every layer     attend(q, k, v, plan)   one compiled kernel for all lengths

What goes wrong elsewhere, and what is done about it here:

- a mask function that reads past the end where T is no multiple of the block (NaN in backward):
  the plan's subtree_end always fills whole blocks, and q, k and v are padded to it;
- a recompilation for every new length: lengths and list widths come from a small set of buckets
  and are dynamic sizes of one compiled function;
- block masks derived from a dense T x T mask: never built, the lists come from `blocks.py`;
- FlexAttention has no backward on the CPU: `attend` refuses there and names `sdpa`.

Axis legend: B batch, T packed tokens, H query heads, Hkv key/value heads, D head dim; J blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import pad

from vla_nav.attention.blocks import block_lists, longest_row, padded_rows
from vla_nav.attention.mask import is_visible
from vla_nav.attention.types import Backend, check_shapes
from vla_nav.tree.packing import PackedTree

BLOCK_SIZE = 128
_STEPS_PER_DOUBLING = 8  # buckets between n and 2n: at most 1/8 of a pack is padding
_LEAST = 8  # blocks of a pack and of a list: sizes 0 and 1 would be compiled for themselves


@dataclass(frozen=True, eq=False)
class FlexPlan:
    """subtree_end (P,) int32, P = T padded to whole blocks; counts (1, 1, J) int32 and indices
    (1, 1, J, width) int32 of the partial and full blocks in both directions."""

    length: int
    subtree_end: torch.Tensor
    kv_num_blocks: torch.Tensor
    kv_indices: torch.Tensor
    full_kv_num_blocks: torch.Tensor
    full_kv_indices: torch.Tensor
    q_num_blocks: torch.Tensor
    q_indices: torch.Tensor
    full_q_num_blocks: torch.Tensor
    full_q_indices: torch.Tensor

    @property
    def num_tokens(self) -> int:
        """T, the pack's length."""
        return self.length

    @property
    def num_prefix(self) -> int:
        """P."""
        return 0

    @cached_property
    def block_mask(self) -> BlockMask:
        """The block mask on this plan's device, built once."""
        subtree_end = self.subtree_end

        def mask_mod(
            b: torch.Tensor, h: torch.Tensor, q_idx: torch.Tensor, kv_idx: torch.Tensor
        ) -> torch.Tensor:
            return is_visible(q_idx, kv_idx, subtree_end[kv_idx])

        size = len(subtree_end)
        return BlockMask(
            seq_lengths=(size, size),
            kv_num_blocks=self.kv_num_blocks,
            kv_indices=self.kv_indices,
            full_kv_num_blocks=self.full_kv_num_blocks,
            full_kv_indices=self.full_kv_indices,
            q_num_blocks=self.q_num_blocks,
            q_indices=self.q_indices,
            full_q_num_blocks=self.full_q_num_blocks,
            full_q_indices=self.full_q_indices,
            BLOCK_SIZE=(BLOCK_SIZE, BLOCK_SIZE),
            mask_mod=mask_mod,
        )

    def to(self, device: torch.device | str, non_blocking: bool = False) -> FlexPlan:
        """The same plan on `device`."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> FlexPlan:
        """The same plan in page-locked memory."""
        return self._map(torch.Tensor.pin_memory)

    def __getstate__(self) -> dict[str, Any]:
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def _map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> FlexPlan:
        values = self.__getstate__()
        length = values.pop("length")
        return FlexPlan(length, **{name: function(value) for name, value in values.items()})


def padded_length(num_tokens: int) -> int:
    """The smallest bucket that holds `num_tokens`: whole blocks, at least 8, 8 per doubling."""
    blocks = max(_LEAST, -(-num_tokens // BLOCK_SIZE))
    return _bucket(blocks) * BLOCK_SIZE


def padded_prefix(num_prefix: int) -> int:
    """The smallest bucket that holds a prefix: whole blocks, 8 buckets per doubling; 0 stays 0."""
    blocks = -(-num_prefix // BLOCK_SIZE)
    return _bucket(blocks) * BLOCK_SIZE if blocks else 0


def plan(packed: PackedTree) -> FlexPlan:
    """Block lists of the pack, padded to whole blocks by tokens that see themselves only."""
    if len(packed.prefix_end):
        raise ValueError("flex plans have no prefix yet")
    length = len(packed.subtree_end)
    size = -(-length // BLOCK_SIZE) * BLOCK_SIZE
    subtree_end = np.arange(1, size + 1, dtype=np.int32)
    subtree_end[:length] = packed.subtree_end.numpy()
    lists = block_lists(subtree_end, block_size=BLOCK_SIZE)
    tensors = []
    # Both directions have one width, so that the compiled kernel sees few shapes.
    for pair in ((lists.kv_partial, lists.q_partial), (lists.kv_full, lists.q_full)):
        width = min(lists.num_blocks, _bucket(max(_LEAST, *map(longest_row, pair))))
        for rows in pair:
            counts, indices = padded_rows(rows, width)
            tensors.append(torch.from_numpy(counts)[None, None])  # (1, 1, J)
            tensors.append(torch.from_numpy(indices)[None, None])  # (1, 1, J, width)
    kv_num, kv_idx, q_num, q_idx, full_kv_num, full_kv_idx, full_q_num, full_q_idx = tensors
    return FlexPlan(
        length,
        torch.from_numpy(subtree_end),
        kv_num_blocks=kv_num,
        kv_indices=kv_idx,
        full_kv_num_blocks=full_kv_num,
        full_kv_indices=full_kv_idx,
        q_num_blocks=q_num,
        q_indices=q_idx,
        full_q_num_blocks=full_q_num,
        full_q_indices=full_q_idx,
    )


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    plan: FlexPlan,
    scale: float | None = None,
) -> torch.Tensor:
    """q (B, T, H, D), k and v (B, T, Hkv, D) -> (B, T, H, D). CUDA only."""
    BACKEND.check_device(q.device)
    heads, kv_heads = check_shapes(q, k, v, plan.num_tokens, plan.num_prefix)
    length = plan.num_tokens
    extra = len(plan.subtree_end) - length
    if extra:
        q, k, v = (pad(x, (0, 0, 0, 0, 0, extra)) for x in (q, k, v))
    out: torch.Tensor = _compiled()(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        block_mask=plan.block_mask,
        scale=scale,
        enable_gqa=heads != kv_heads,
    )  # (B, H, P, D)
    return out.transpose(1, 2)[:, :length]


def _bucket(count: int) -> int:
    """Round `count` up to one of _STEPS_PER_DOUBLING steps between powers of two."""
    step = max(1, (1 << (count - 1).bit_length()) // (2 * _STEPS_PER_DOUBLING))
    return -(-count // step) * step


@cache
def _compiled() -> Any:
    """FlexAttention compiled once, with dynamic sizes."""
    return torch.compile(flex_attention, dynamic=True)


BACKEND = Backend("flex", plan, attend, padded_length, ("cuda",), padded_prefix)
