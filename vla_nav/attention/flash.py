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

from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from vla_nav.attention.flash_plan import FlashPlan, Tables, plan
from vla_nav.attention.types import Backend, check_shapes
from vla_nav.attention.whole_blocks import filled_up, whole_blocks
from vla_nav.errors import UserError

_DTYPES = (torch.bfloat16, torch.float16)


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


_opaque: Any = torch.compiler.disable
BACKEND = Backend("flash", plan, _opaque(attend), whole_blocks, ("cuda",), whole_blocks)
