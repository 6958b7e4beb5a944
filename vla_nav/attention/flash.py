"""Attention over a pack through FlashAttention 4: the fast path on Hopper GPUs.

    loader worker   plan(packed)            spans, block lists in both directions, order of tiles
    device          plan.to("cuda")         the same tensors, used by every layer
    every layer     attend(q, k, v, plan)   two custom operators, opaque to torch.compile

The kernels are the package's own (extra `hopper`, pinned), with the tree mask and the order of
tiles put into them (`hopper/`). They take tensors of any length, so nothing is compiled again for
another pack. Rows and keys are filled up to whole blocks of 128 (`whole_blocks.py`).

Axis legend: B batch, Q own tokens, P prefix tokens, K joint keys, H query heads, Hkv key heads,
D head dim; J rows of a list.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from importlib.util import find_spec
from typing import Any

import torch

from vla_nav.attention.blocks import Rows, block_lists, longest_row, padded_rows, query_lists
from vla_nav.attention.hopper.tables import MAX_TILES, items, spans, tile_groups
from vla_nav.attention.types import Backend, check_shapes
from vla_nav.attention.whole_blocks import BLOCK_SIZE, filled_up, joint_ends, whole_blocks
from vla_nav.errors import UserError
from vla_nav.tree.packing import PackedTree

_QUERY_BLOCK = 64  # of the backward pass
_SMALL_KEY_BLOCK = 64  # of both passes, where D > 128
_DTYPES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, eq=False)
class Direction:
    """Lists of one pass: counts (1, 1, J) and indices (1, 1, J, width) int32 of partial and of full
    blocks; its tiles by falling length (J,) int32, and where groups of them end."""

    partial_counts: torch.Tensor
    partial: torch.Tensor
    full_counts: torch.Tensor
    full: torch.Tensor
    order: torch.Tensor
    ends: tuple[int, ...]

    @staticmethod
    def of(partial: Rows, full: Rows) -> Direction:
        """From rows of partial and full blocks."""
        tensors, work = [], 0
        for rows in (partial, full):
            counts, indices = padded_rows(rows, max(1, longest_row(rows)))
            work = work + counts.astype("int64")
            tensors += [torch.from_numpy(x)[None, None] for x in (counts, indices)]
        order, ends = tile_groups(work)
        return Direction(*tensors, torch.from_numpy(order), ends)

    def map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Direction:
        """`function` of every tensor."""
        tensors = {
            item.name: function(getattr(self, item.name))
            for item in fields(self)
            if item.name != "ends"
        }
        return replace(self, **tensors)

    def halved_rows(self) -> Direction:
        """The same where every row is two of half the size: both hold what the one held."""
        lists = (x.repeat_interleave(2, dim=2) for x in self.lists)
        ends = tuple(2 * end for end in self.ends)
        return Direction(*lists, _halves(self.order), ends)

    def halved_indices(self) -> Direction:
        """The same where every block in a list is two of half the size."""
        counts = (2 * self.partial_counts, 2 * self.full_counts)
        indices = (_halves(self.partial), _halves(self.full))
        return replace(
            self,
            partial_counts=counts[0],
            partial=indices[0],
            full_counts=counts[1],
            full=indices[1],
        )

    @property
    def lists(self) -> tuple[torch.Tensor, ...]:
        """The four tensors of the lists."""
        return self.partial_counts, self.partial, self.full_counts, self.full


@dataclass(frozen=True, eq=False)
class FlashPlan:
    """Q, P, the spans of all keys (K,) int32 and the lists of both passes. What a head
    shape needs of them is derived once and kept."""

    num_tokens: int
    num_prefix: int
    span: torch.Tensor
    forward: Direction
    backward: Direction
    _derived: dict[Any, list[torch.Tensor]] = field(default_factory=dict, repr=False)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> FlashPlan:
        """The same plan on `device`."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> FlashPlan:
        """The same plan in page-locked memory."""
        return self._map(torch.Tensor.pin_memory)

    def tensors(self, num_heads: int, head_dim: int) -> list[torch.Tensor]:
        """Ten tensors for a head shape: lists (the same for every head) and items of the forward,
        then the backward pass."""
        key = (num_heads, head_dim > 128)
        if key not in self._derived:
            forward, backward = self.forward, self.backward
            if head_dim > 128:
                forward, backward = forward.halved_indices(), backward.halved_rows()
            self._derived[key] = [
                tensor
                for side in (forward, backward)
                for tensor in (
                    *(x.expand(1, num_heads, *x.shape[2:]) for x in side.lists),
                    items(side.order, side.ends, num_heads),
                )
            ]
        return self._derived[key]

    def _map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> FlashPlan:
        return FlashPlan(
            self.num_tokens,
            self.num_prefix,
            function(self.span),
            self.forward.map(function),
            self.backward.map(function),
        )


def plan(packed: PackedTree) -> FlashPlan:
    """Spans, block lists and order of tiles of the pack, filled up to whole blocks."""
    end, first_row = joint_ends(packed)
    if len(end) // _SMALL_KEY_BLOCK > MAX_TILES:
        raise UserError(
            f"attention=flash takes up to {MAX_TILES * _SMALL_KEY_BLOCK:,} keys at once, got "
            f"{len(end):,}; set training.partition.tokens"
        )
    lists = block_lists(end, num_prefix=first_row, block_size=BLOCK_SIZE)
    q_partial, q_full = query_lists(
        end, num_prefix=first_row, block_size=BLOCK_SIZE, query_block=_QUERY_BLOCK
    )
    return FlashPlan(
        len(packed.subtree_end),
        len(packed.prefix_end),
        torch.from_numpy(spans(end)),
        Direction.of(lists.kv_partial, lists.kv_full),
        Direction.of(q_partial, q_full),
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
    heads, _ = check_shapes(q, k, v, plan.num_tokens, plan.num_prefix)
    _require(q)
    q, k, v = filled_up(q, k, v, plan.num_prefix)
    tables = [plan.span, *plan.tensors(heads, q.shape[-1])]
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if len(q) == 1:
        out = _forward(q, k, v, tables, scale)[0]
    else:
        each = (x.split(1) for x in (q, k, v))
        out = torch.cat([_forward(*one, tables, scale)[0] for one in zip(*each, strict=True)])
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

    found = flash_attn_varlen_func(
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
    return found[0] if isinstance(found, tuple) else found


def _require(q: torch.Tensor) -> None:
    """Raise `UserError` where the kernels are not there, or not for these tensors."""
    if find_spec("flash_attn") is None:
        raise UserError(
            "attention=flash needs FlashAttention 4 (pip install 'vla-nav[hopper]'); or use "
            "attention=flex"
        )
    if torch.cuda.get_device_capability(q.device)[0] != 9:
        raise UserError(
            f"attention=flash runs on Hopper GPUs, got {torch.cuda.get_device_name(q.device)}; use "
            "attention=flex"
        )
    if q.dtype not in _DTYPES:
        raise UserError(
            f"attention=flash computes in bfloat16 or float16, got {q.dtype}; set "
            "trainer.precision=bf16-mixed, or use attention=flex"
        )
    dim = q.shape[-1]
    if not (dim % 8 == 0 and (dim <= 128 or dim == 256)):
        raise UserError(
            f"attention=flash takes head dims that are multiples of 8 up to 128, or 256, got {dim}"
            "; use attention=flex"
        )


@torch.library.custom_op("vla_nav::tree_attention", mutates_args=())
def _forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, tables: list[torch.Tensor], scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """out (1, Q, H, D) and lse (1, H, Q); tables: span, then `FlashPlan.tensors`."""
    from vla_nav.attention.hopper import kernels

    return kernels.forward(q, k, v, tables[0], kernels.Lists(*tables[1:6]), scale)


@_forward.register_fake
def _(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, tables: list[torch.Tensor], scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    lse = q.new_empty(q.shape[0], q.shape[2], q.shape[1], dtype=torch.float32)
    return torch.empty_like(q), lse


@torch.library.custom_op("vla_nav::tree_attention_backward", mutates_args=())
def _backward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    dout: torch.Tensor,
    tables: list[torch.Tensor],
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dq, dk and dv."""
    from vla_nav.attention.hopper import kernels

    lists = kernels.Lists(*tables[6:11])
    return kernels.backward(q, k, v, out, lse, dout, tables[0], lists, scale)


@_backward.register_fake
def _(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    dout: torch.Tensor,
    tables: list[torch.Tensor],
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    q, k, v, tables, scale = inputs
    out, lse = output
    ctx.save_for_backward(q, k, v, out, lse)
    ctx.mark_non_differentiable(lse)
    ctx.tables, ctx.scale = tables, scale


def _gradients(ctx: Any, dout: torch.Tensor, _: torch.Tensor | None) -> tuple[Any, ...]:
    gradients = _backward(*ctx.saved_tensors, dout, ctx.tables, ctx.scale)
    return (*gradients, [None] * len(ctx.tables), None)


_forward.register_autograd(_gradients, setup_context=_keep)


def _halves(index: torch.Tensor) -> torch.Tensor:
    """Every block i of the last axis as blocks 2i and 2i + 1."""
    return torch.stack([2 * index, 2 * index + 1], dim=-1).flatten(-2)


BACKEND = Backend("flash", plan, attend, whole_blocks, ("cuda",), whole_blocks)
