"""Attention over a pack through FlashAttention 4: the fast path on Hopper GPUs.

    loader worker   plan(packed)            spans, block lists in both directions
    device          plan.to("cuda")         for a head shape, once: order of tiles, bits of masks
    every layer     attend(q, k, v, plan)   outside of graphs that torch.compile makes

The kernels are the package's own (extra `hopper`, pinned), with the tree mask and the order of
tiles put into them (`hopper/`). They take tensors of any length, so nothing is compiled again for
another pack. Rows and keys are filled up to whole blocks of 128 (`whole_blocks.py`).

Axis legend: B batch, Q own tokens, P prefix tokens, K joint keys, H query heads, Hkv key heads,
D head dim; J rows of a list.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.autograd.function import once_differentiable

from vla_nav.attention.blocks import (
    Rows,
    block_lists,
    longest_row,
    padded_rows,
    query_lists,
    repeated,
    transposed,
)
from vla_nav.attention.hopper.bits import fragment_bits
from vla_nav.attention.hopper.tables import (
    MAX_TILES,
    backward_items,
    forward_items,
    packed_rows,
    spans,
)
from vla_nav.attention.types import Backend, check_shapes
from vla_nav.attention.whole_blocks import BLOCK_SIZE, filled_up, joint_ends, whole_blocks
from vla_nav.errors import UserError
from vla_nav.tree.packing import PackedTree
from vla_nav.tree.types import Int32Array, IntArray

_QUERY_BLOCK = 64  # of the backward pass
_SMALL_KEY_BLOCK = 64  # of both passes, where D > 128
_DTYPES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, eq=False)
class Direction:
    """lists of one pass: counts (1, 1, J) and indices (1, 1, J, width) int32 of partial, then of
    full blocks. On the host: work, blocks of a tile (J,) int64, and the partial rows once more."""

    lists: tuple[torch.Tensor, ...]
    work: IntArray
    partial: Rows

    @staticmethod
    def of(partial: Rows, full: Rows) -> Direction:
        """From rows of partial and full blocks."""
        tensors = []
        for rows in (partial, full):
            counts, indices = padded_rows(rows, max(1, longest_row(rows)))
            tensors += [torch.from_numpy(x)[None, None] for x in (counts, indices)]
        return Direction(tuple(tensors), np.diff(partial.offsets) + np.diff(full.offsets), partial)

    def map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Direction:
        """`function` of every tensor."""
        return Direction(tuple(map(function, self.lists)), self.work, self.partial)

    def divided_rows(self, parts: int) -> Direction:
        """The same where every row is `parts` smaller ones: each holds what the one held."""
        if parts == 1:
            return self
        lists = (x.repeat_interleave(parts, dim=2) for x in self.lists)
        return Direction(tuple(lists), np.repeat(self.work, parts), repeated(self.partial, parts))

    def halved_indices(self) -> Direction:
        """The same where every block in a list is two of half the size."""
        partial_counts, partial, full_counts, full = self.lists
        lists = (2 * partial_counts, _halves(partial), 2 * full_counts, _halves(full))
        indices = (2 * self.partial.indices[:, None] + np.arange(2, dtype=np.int32)).ravel()
        return Direction(lists, 2 * self.work, Rows(2 * self.partial.offsets, indices))


class Tables(NamedTuple):
    """What the kernels read of a plan: bits, lists, items and first entries of the forward pass,
    then spans, lists, items and slots of the backward one. split: the tiles that have a slot, where
    they are not the first."""

    tensors: list[torch.Tensor]
    num_slots: int
    split: torch.Tensor | None


@dataclass(frozen=True, eq=False)
class FlashPlan:
    """Q, P, the spans of all keys (K,) int32, the lists of both passes with query blocks of 64
    tokens, and the joint subtree ends (K,) on the host. What a head shape needs of them is derived
    once and kept."""

    num_tokens: int
    num_prefix: int
    span: torch.Tensor
    forward: Direction
    backward: Direction
    end: Int32Array
    _derived: dict[Any, Tables] = field(default_factory=dict, repr=False)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> FlashPlan:
        """The same plan on `device`."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> FlashPlan:
        """The same plan in page-locked memory."""
        return self._map(torch.Tensor.pin_memory)

    def tables(self, num_heads: int, num_kv_heads: int, head_dim: int) -> Tables:
        """For a head shape; the lists are the same for every head."""
        key = (num_heads, num_kv_heads, head_dim > 128)
        if key not in self._derived:
            self._derived[key] = self._tables(*key)
        return self._derived[key]

    def _tables(self, num_heads: int, num_kv_heads: int, is_wide: bool) -> Tables:
        device, group = self.span.device, num_heads // num_kv_heads
        num_rows, key_block = packed_rows(group), BLOCK_SIZE
        if num_rows <= _QUERY_BLOCK:
            forward = self.forward.divided_rows(_QUERY_BLOCK // num_rows)
        else:
            forward = self._whole_rows()
        backward = self.backward
        if is_wide:
            forward, backward = forward.halved_indices(), backward.divided_rows(2)
            key_block = _SMALL_KEY_BLOCK
        first_row = len(self.end) - whole_blocks(self.num_tokens)
        counts = np.diff(forward.partial.offsets)
        tiles = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        bits = fragment_bits(
            _on(device, tiles + np.int32(first_row // num_rows)),
            _on(device, forward.partial.indices),
            self.span,
            num_rows=num_rows,
            key_block=key_block,
        )
        processors = (
            torch.cuda.get_device_properties(device).multi_processor_count
            if device.type == "cuda"
            else 1
        )
        items, slots = backward_items(backward.work, num_heads, group, processors)
        split = np.flatnonzero(slots >= 0)
        tensors = [
            bits,
            *(x.expand(1, num_heads, *x.shape[2:]) for x in forward.lists),
            _on(device, forward_items(forward.work, num_heads * num_rows // BLOCK_SIZE)),
            _on(device, forward.partial.offsets[:-1].astype(np.int32)),
            self.span,
            *(x.expand(1, num_heads, *x.shape[2:]) for x in backward.lists),
            _on(device, items),
            _on(device, slots),
        ]
        is_first = len(split) == 0 or split[-1] == len(split) - 1
        return Tables(tensors, len(split), None if is_first else _on(device, split))

    def _whole_rows(self) -> Direction:
        """Forward lists with query blocks of 128 tokens, for heads that share no keys."""
        first_row = len(self.end) - whole_blocks(self.num_tokens)
        lists = block_lists(self.end, num_prefix=first_row, block_size=BLOCK_SIZE)
        device = self.span.device
        return Direction.of(lists.kv_partial, lists.kv_full).map(lambda x: x.to(device))

    def _map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> FlashPlan:
        return FlashPlan(
            self.num_tokens,
            self.num_prefix,
            function(self.span),
            self.forward.map(function),
            self.backward.map(function),
            self.end,
        )


def plan(packed: PackedTree) -> FlashPlan:
    """Spans, block lists and order of tiles of the pack, filled up to whole blocks."""
    end, first_row = joint_ends(packed)
    if len(end) // _SMALL_KEY_BLOCK > MAX_TILES:
        raise UserError(
            f"attention=flash takes up to {MAX_TILES * _SMALL_KEY_BLOCK:,} keys at once, got "
            f"{len(end):,}; set training.partition.tokens"
        )
    by_key = query_lists(end, num_prefix=first_row, block_size=BLOCK_SIZE, query_block=_QUERY_BLOCK)
    num_rows = (len(end) - first_row) // _QUERY_BLOCK
    return FlashPlan(
        len(packed.subtree_end),
        len(packed.prefix_end),
        torch.from_numpy(spans(end)),
        Direction.of(*(transposed(rows, num_rows) for rows in by_key)),
        Direction.of(*by_key),
        end,
    )


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    plan: FlashPlan,
    scale: float | None = None,
) -> torch.Tensor:
    """q (B, Q, H, D), k and v (B, P+Q, Hkv, D) -> (B, Q, H, D). 16 bits, Hopper only."""
    BACKEND.check_device(q.device)
    heads, kv_heads = check_shapes(q, k, v, plan.num_tokens, plan.num_prefix)
    _require(q)
    q, k, v = filled_up(q, k, v, plan.num_prefix)
    tables = plan.tables(heads, kv_heads, q.shape[-1])
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    each = [(q, k, v)] if len(q) == 1 else zip(q[:, None], k[:, None], v[:, None], strict=True)
    outs: list[torch.Tensor] = [_TreeAttention.apply(*one, tables, scale) for one in each]
    out = outs[0] if len(outs) == 1 else torch.cat(outs)
    return out[:, : plan.num_tokens]


def varlen(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_lengths: torch.Tensor,
    max_length: int,
    scale: float | None = None,
) -> torch.Tensor:
    """`causal.causal_varlen` through the package's own function."""
    _require(q)
    from flash_attn.cute.interface import flash_attn_varlen_func

    return _first(
        flash_attn_varlen_func(
            q,
            k,
            v,
            cu_seqlens_q=cu_lengths,
            cu_seqlens_k=cu_lengths,
            max_seqlen_q=max_length,
            max_seqlen_k=max_length,
            softmax_scale=scale,
            causal=True,
        )
    )


def batched(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """`causal.causal_batched` through the package's own function."""
    _require(q)
    from flash_attn.cute.interface import flash_attn_func

    return _first(flash_attn_func(q, k, v, causal=True))


def _first(found: Any) -> torch.Tensor:
    """The output, alone or before other results."""
    out: torch.Tensor = found[0] if isinstance(found, tuple) else found
    return out


def _require(q: torch.Tensor) -> None:
    """Raise `UserError` where the kernels are not there, or not for these tensors."""
    _require_kernels(q.device, q.dtype, q.shape[-1])


@cache
def _require_kernels(device: torch.device, dtype: torch.dtype, dim: int) -> None:
    if find_spec("flash_attn") is None:
        raise UserError(
            "attention=flash needs FlashAttention 4 (pip install 'vla-nav[hopper]'); or use "
            "attention=flex"
        )
    if torch.cuda.get_device_capability(device)[0] != 9:
        raise UserError(
            f"attention=flash runs on Hopper GPUs, got {torch.cuda.get_device_name(device)}; use "
            "attention=flex"
        )
    if dtype not in _DTYPES:
        raise UserError(
            f"attention=flash computes in bfloat16 or float16, got {dtype}; set "
            "trainer.precision=bf16-mixed, or use attention=flex"
        )
    if not (dim % 8 == 0 and (dim <= 128 or dim == 256)):
        raise UserError(
            f"attention=flash takes head dims that are multiples of 8 up to 128, or 256, got {dim}"
            "; use attention=flex"
        )


class _TreeAttention(torch.autograd.Function):
    """q (1, Q, H, D), k and v (1, K, Hkv, D) -> (1, Q, H, D)."""

    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        tables: Tables,
        scale: float,
    ) -> torch.Tensor:
        from vla_nav.attention.hopper import kernels

        bits, *lists = tables.tensors[:7]
        out, lse = kernels.forward(q, k, v, bits, kernels.Lists(*lists), scale)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.tables, ctx.scale = tables, scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        from vla_nav.attention.hopper import kernels

        tables: Tables = ctx.tables
        span, *lists = tables.tensors[7:]
        slots = tables.num_slots if tables.split is None else tables.split
        q, k, v, out, lse = ctx.saved_tensors
        gradients = kernels.backward(
            q, k, v, out, lse, dout, span, kernels.Lists(*lists), slots, ctx.scale
        )
        return (*gradients, None, None)


def _on(device: torch.device, array: IntArray | Int32Array) -> torch.Tensor:
    return torch.from_numpy(array).to(device, non_blocking=True)


def _halves(index: torch.Tensor) -> torch.Tensor:
    """Every block i of the last axis as blocks 2i and 2i + 1."""
    return torch.stack([2 * index, 2 * index + 1], dim=-1).flatten(-2)


_opaque: Any = torch.compiler.disable
BACKEND = Backend("flash", plan, _opaque(attend), whole_blocks, ("cuda",), whole_blocks)
