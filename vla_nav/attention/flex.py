"""Attention over a pack through FlexAttention: the portable GPU path (Triton).

    loader worker   plan(packed)            block lists in both directions, widths in buckets
    device          plan.to("cuda")         one BlockMask, reused by every layer
    every layer     attend(q, k, v, plan)   one compiled kernel for all lengths

What goes wrong elsewhere, and what is done about it here:

- a mask function that reads past the end where T is no multiple of the block (NaN in backward):
  the plan's `end` always fills whole blocks, and q, k and v are padded to it
  (`whole_blocks.py`);
- a recompilation for every new length: lengths and list widths come from a small set of buckets
  and are dynamic sizes of one compiled function; a prefix's length is a tensor, and packs without
  one keep the mask function that needs none. That makes two graphs per dtype, head shape and
  gradient mode, and a further one where two sizes of the first call are equal by chance (torch
  compiles them as one size; widths are odd, so that they rarely equal another). Beyond _MAX_GRAPHS
  `attend` raises: torch would go on without a kernel, dense;
- lists of partial and of full blocks of different widths: the kernels read both with one stride, so
  full blocks come from wrong rows, or from outside the list;
- block masks derived from a dense T x T mask: never built, the lists come from `blocks.py`;
- FlexAttention has no backward on the CPU: `attend` refuses there and names `sdpa`.

Axis legend: B batch, Q own tokens, P prefix tokens, H query heads, Hkv key/value heads, D head dim;
Jq query blocks, Jk key blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from vla_nav.attention.blocks import block_lists, longest_row, padded_rows
from vla_nav.attention.mask import is_visible
from vla_nav.attention.types import Backend, check_shapes
from vla_nav.attention.whole_blocks import BLOCK_SIZE, filled_up, joint_ends, num_blocks
from vla_nav.tree.packing import PackedTree

_STEPS_PER_DOUBLING = 32  # buckets between n and 2n: at most 1/32 of a pack is padding
_LEAST = 8  # blocks of a pack and of a list: sizes 0 and 1 would be compiled for themselves
_MAX_GRAPHS = 64  # torch's own limit, 8, counts every dtype, head shape and gradient mode


@dataclass(frozen=True, eq=False)
class FlexPlan:
    """Q and P; joint `end` (128 Jk,) int32 and `first_row` () int32, the joint index of row 0, with
    P and Q filled up to whole blocks; counts (1, 1, J) int32 and indices (1, 1, J, width) int32 of
    the partial and full blocks in both directions, J = Jq for `kv_*` and Jk for `q_*`."""

    num_tokens: int
    num_prefix: int
    end: torch.Tensor
    first_row: torch.Tensor
    kv_num_blocks: torch.Tensor
    kv_indices: torch.Tensor
    full_kv_num_blocks: torch.Tensor
    full_kv_indices: torch.Tensor
    q_num_blocks: torch.Tensor
    q_indices: torch.Tensor
    full_q_num_blocks: torch.Tensor
    full_q_indices: torch.Tensor

    @property
    def num_rows(self) -> int:
        """Q, filled up to whole blocks."""
        return self.kv_num_blocks.shape[-1] * BLOCK_SIZE

    @cached_property
    def block_mask(self) -> BlockMask:
        """The block mask on this plan's device, built once."""
        end, first_row = self.end, self.first_row

        def whole_pack(
            b: torch.Tensor, h: torch.Tensor, q_idx: torch.Tensor, kv_idx: torch.Tensor
        ) -> torch.Tensor:
            return is_visible(q_idx, kv_idx, end[kv_idx])

        def behind_prefix(
            b: torch.Tensor, h: torch.Tensor, q_idx: torch.Tensor, kv_idx: torch.Tensor
        ) -> torch.Tensor:
            return is_visible(q_idx + first_row, kv_idx, end[kv_idx])

        return BlockMask(
            seq_lengths=(self.num_rows, len(end)),
            kv_num_blocks=self.kv_num_blocks,
            kv_indices=self.kv_indices,
            full_kv_num_blocks=self.full_kv_num_blocks,
            full_kv_indices=self.full_kv_indices,
            q_num_blocks=self.q_num_blocks,
            q_indices=self.q_indices,
            full_q_num_blocks=self.full_q_num_blocks,
            full_q_indices=self.full_q_indices,
            BLOCK_SIZE=(BLOCK_SIZE, BLOCK_SIZE),
            mask_mod=behind_prefix if self.num_prefix else whole_pack,
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
        tensors: dict[str, Any] = {
            name: function(value)
            for name, value in self.__getstate__().items()
            if isinstance(value, torch.Tensor)
        }
        return replace(self, **tensors)


def padded_length(num_tokens: int) -> int:
    """The smallest bucket that holds `num_tokens`: whole blocks, at least 8, 32 per doubling."""
    return _bucket(max(_LEAST, num_blocks(num_tokens))) * BLOCK_SIZE


def padded_prefix(num_prefix: int) -> int:
    """The smallest bucket that holds a prefix: whole blocks, 32 per doubling; 0 stays 0."""
    return _bucket(num_blocks(num_prefix)) * BLOCK_SIZE if num_prefix else 0


def plan(packed: PackedTree) -> FlexPlan:
    """Block lists of the pack, filled up to whole blocks (module docstring)."""
    end, first_row = joint_ends(packed)
    lists = block_lists(end, num_prefix=first_row, block_size=BLOCK_SIZE)
    # One width for all four: the kernels find a row of the full lists by the partial ones' stride.
    every = (lists.kv_partial, lists.q_partial, lists.kv_full, lists.q_full)
    width = _bucket(max(_LEAST, *map(longest_row, every))) | 1
    while width in (lists.num_query_blocks, lists.num_key_blocks):
        width += 2
    tensors = []
    for rows in every:
        counts, indices = padded_rows(rows, width)
        tensors.append(torch.from_numpy(counts)[None, None])  # (1, 1, J)
        tensors.append(torch.from_numpy(indices)[None, None])  # (1, 1, J, width)
    kv_num, kv_idx, q_num, q_idx, full_kv_num, full_kv_idx, full_q_num, full_q_idx = tensors
    return FlexPlan(
        len(packed.subtree_end),
        len(packed.prefix_end),
        torch.from_numpy(end),
        torch.tensor(first_row, dtype=torch.int32),
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
    """q (B, Q, H, D), k and v (B, P+Q, Hkv, D) -> (B, Q, H, D). CUDA only."""
    BACKEND.check_device(q.device)
    heads, kv_heads = check_shapes(q, k, v, plan.num_tokens, plan.num_prefix)
    q, k, v = filled_up(q, k, v, plan.num_prefix)
    out: torch.Tensor = _compiled()(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        block_mask=plan.block_mask,
        scale=scale,
        enable_gqa=heads != kv_heads,
    )  # (B, H, 128 Jq, D)
    return out.transpose(1, 2)[:, : plan.num_tokens]


def _bucket(count: int) -> int:
    """Round `count` up to one of _STEPS_PER_DOUBLING steps between powers of two."""
    step = max(1, (1 << (count - 1).bit_length()) // (2 * _STEPS_PER_DOUBLING))
    return -(-count // step) * step


@cache
def _compiled() -> Any:
    """FlexAttention compiled once, with dynamic sizes; `fullgraph`: never without its kernel."""
    limits = torch._dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, _MAX_GRAPHS)
    return torch.compile(flex_attention, dynamic=True, fullgraph=True)


BACKEND = Backend("flex", plan, attend, padded_length, ("cuda",), padded_prefix)
