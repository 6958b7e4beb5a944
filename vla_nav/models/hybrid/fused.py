"""Recurrences of a whole pack by fused kernels: stages of flash-linear-attention, states our way.

    inside chunks    all chunks of the pack in one launch per stage, each a sequence of its own
    between chunks   state_kernels.py, one launch per round

    gated delta   norm, sum decays, WY form -> states pass -> outputs      (and back in reverse)
    Mamba-2       sum decays                -> states pass -> outputs      linear attention with one
                                                                           decay per head

Products are in the dtype of the queries (bfloat16 in training), sums and states in float32. The
backward pass computes h again, as flash-linear-attention does, so what is kept of a layer does not
grow with the number of branch points.

The stages are functions inside the package, not its public calls, whose states can be had and whose
gradients can be given at a sequence's end alone; the extra `hybrid` therefore names the releases
that have them.

Axis legend: T tokens, C chunks, S branch states, G gateway states, H value heads, Hk key heads.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from vla_nav.errors import UserError
from vla_nav.tree.heavy_paths import CHUNK
from vla_nav.tree.run_table import RunTable

KERNELS = ("auto", "fla", "torch")
_LARGEST_KEY = 256  # a state is held in registers whole in this direction


def uses_fused(kernels: str, device: str, dtype: torch.dtype) -> bool:
    """Whether a recurrence runs by fused kernels on this device: under `auto` on every GPU, but for
    float64, which they do not compute in. Raises `UserError` where they are asked for in vain."""
    if kernels == "torch" or (kernels == "auto" and (device != "cuda" or dtype == torch.float64)):
        return False
    if device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        raise UserError(
            "models.backbone.kernels=fla: the kernels are for GPUs, and this runs on the CPU; set "
            "models.backbone.kernels=auto"
        )
    if dtype == torch.float64:
        raise UserError(
            "models.backbone.kernels=fla: the kernels do not compute in float64; set "
            "models.backbone.kernels=auto"
        )
    stages()
    return True


def gated_delta(
    inputs: Sequence[Tensor], initial: Tensor, table: RunTable
) -> tuple[Tensor, Tensor]:
    """(out (T, H, V), branch states (S, H, K, V)) of the rule's inputs (T, ...).

    initial (1 + G, H, K, V) float32: zero, and the states that runs of a partition start from.
    """
    query, key, value, decay, beta = inputs
    _check_sizes(key, value)
    dtype = query.dtype
    out, branches = _GatedDelta.apply(
        *(x.to(dtype).contiguous()[None] for x in (query, key, value)),
        decay.float().contiguous()[None],
        beta.float().contiguous()[None],
        initial.contiguous(),
        table,
    )
    return out[0], branches


def mamba2(inputs: Sequence[Tensor], initial: Tensor, table: RunTable) -> tuple[Tensor, Tensor]:
    """As `gated_delta`."""
    query, key, value, decay = inputs
    _check_sizes(key, value)
    dtype = query.dtype
    out, branches = _Mamba2.apply(
        *(x.to(dtype).contiguous()[None] for x in (query, key, value)),
        decay.float().contiguous()[None],
        initial.contiguous(),
        table,
    )
    return out[0], branches


def fused_conv(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The causal conv over a sequence, (1, T, C) -> (1, T, C) in the dtype of x."""
    out: Tensor = stages().causal_conv1d(x.contiguous(), weight.contiguous(), bias)[0]
    return out


class _GatedDelta(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, g: Any, beta: Any, initial: Any, table: Any):
        fla, at = stages(), _at(table)
        q, q_scale = fla.l2norm_fwd(q)
        k, k_scale = fla.l2norm_fwd(k)
        g = fla.chunk_local_cumsum(g, chunk_size=CHUNK, scale=fla.RCP_LN2, **at)
        w, u, within = fla.chunk_gated_delta_rule_fwd_intra(k=k, v=v, g=g, beta=beta, **at)
        h, v_new, branches = fla.pass_states_along(k, u, w, g, initial, table, dtype=k.dtype)
        out = fla.chunk_fwd_o(q=q, k=k, v=v_new, h=h, g=g, scale=k.shape[-1] ** -0.5, **at)
        ctx.save_for_backward(q, q_scale, k, k_scale, v, g, beta, within, initial)
        ctx.table = table
        ctx.set_materialize_grads(False)
        return out, branches

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None):
        fla, at, table = stages(), _at(ctx.table), ctx.table
        q, q_scale, k, k_scale, v, g, beta, within, initial = ctx.saved_tensors
        do, exports = _whole(gradients, v)
        scale = k.shape[-1] ** -0.5
        w, u = fla.recompute_w_u_fwd(k=k, v=v, beta=beta, A=within, g=g, **at)
        h, v_new, _ = fla.pass_states_along(k, u, w, g, initial, table, dtype=k.dtype)
        dv = fla.chunk_bwd_dv_local(q=q, k=k, g=g, do=do, scale=scale, **at)
        dh, dv, dh0 = fla.pass_gradients_along(
            q, k, w, g, do, dv, exports, table, scale=scale, dtype=k.dtype
        )
        dq, dk, dw, dg = fla.chunk_bwd_dqkwg(
            q=q, k=k, v=v_new, w=w, g=g, h=h, dv=dv, do=do, dh=dh, scale=scale, **at
        )
        more_dk, dv, dbeta, more_dg = fla.prepare_wy_repr_bwd(
            k=k, v=v, beta=beta, g=g, A=within, dw=dw, du=dv, **at
        )
        dg = fla.chunk_local_cumsum(dg + more_dg, chunk_size=CHUNK, reverse=True, **at)
        return (
            fla.l2norm_bwd(q, q_scale, dq.contiguous()),
            fla.l2norm_bwd(k, k_scale, (dk + more_dk).contiguous()),
            dv,
            dg,
            dbeta,
            _of_initial(ctx, 5, dh0, initial),
            None,
        )


class _Mamba2(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, g: Any, initial: Any, table: Any):
        fla, at = stages(), _at(table)
        g = fla.chunk_local_cumsum(g, chunk_size=CHUNK, scale=fla.RCP_LN2, **at)
        h, _, branches = fla.pass_states_along(k, v, None, g, initial, table, dtype=k.dtype)
        out = fla.chunk_fwd_o(q=q, k=k, v=v, h=h, g=g, scale=1.0, **at)
        ctx.save_for_backward(q, k, v, g, initial)
        ctx.table = table
        ctx.set_materialize_grads(False)
        return out, branches

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None):
        fla, at, table = stages(), _at(ctx.table), ctx.table
        q, k, v, g, initial = ctx.saved_tensors
        do, exports = _whole(gradients, v)
        wide = torch.float32  # decays take their gradient from products of both
        h, _, _ = fla.pass_states_along(k, v, None, g, initial, table, dtype=wide)
        dh, _, dh0 = fla.pass_gradients_along(
            q, k, None, g, do, None, exports, table, scale=1.0, dtype=wide
        )
        dq, dk, _, dg = fla.chunk_bwd_dqkwg(q=q, k=k, v=v, g=g, h=h, do=do, dh=dh, scale=1.0, **at)
        dv = fla.chunk_bwd_dv(q=q, k=k, g=g, do=do, dh=dh, scale=1.0, **at)
        dg = fla.chunk_local_cumsum(dg, chunk_size=CHUNK, reverse=True, **at)
        return dq, dk, dv, dg, _of_initial(ctx, 4, dh0, initial), None


def _at(table: RunTable) -> dict[str, Tensor]:
    """Every chunk as a sequence of its own."""
    return {"cu_seqlens": table.bounds, "chunk_indices": table.pairs}


def _whole(gradients: Sequence[Tensor | None], v: Tensor) -> tuple[Tensor, Tensor | None]:
    """Gradients of out (zeros where there is none) and of branch states, contiguous."""
    do, exports = gradients
    do = torch.zeros_like(v) if do is None else do.to(v.dtype).contiguous()
    return do, None if exports is None else exports.float().contiguous()


def _of_initial(ctx: Any, position: int, dh0: Tensor, initial: Tensor) -> Tensor | None:
    if not ctx.needs_input_grad[position]:
        return None
    sums: Tensor = stages().initial_gradients(dh0, len(initial), ctx.table)
    return sums


@cache
def stages() -> Any:
    """The module fla_stages.py. Raises `UserError` with the remedy where it cannot be had."""
    try:
        return import_module("vla_nav.models.hybrid.fla_stages")
    except ImportError as error:
        raise UserError(
            f"models.backbone.kernels: flash-linear-attention cannot be used here ({error}); "
            "install the extra `hybrid`, or set models.backbone.kernels=torch (much slower)"
        ) from error


def _check_sizes(key: Tensor, value: Tensor) -> None:
    """Raise `UserError` for heads that the kernels do not hold."""
    (num_keys, size), (heads, width) = key.shape[-2:], value.shape[-2:]
    if size > _LARGEST_KEY or size % 2 or width % 2 or heads % num_keys:
        raise UserError(
            f"models.backbone.kernels=fla: {heads} heads over {num_keys} key heads of {size} by "
            f"{width}: sizes must be even, keys at most {_LARGEST_KEY} long, and heads a multiple "
            "of key heads; set models.backbone.kernels=torch"
        )
