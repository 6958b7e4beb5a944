"""The gated delta rule (arXiv 2412.06464): a decaying memory that overwrites what a key had.

    q, k     of length 1, q scaled by Dk ** -0.5
    S_t    = e^{g_t} S_{t-1} + k_t (beta_t (v_t - e^{g_t} S_{t-1}^T k_t))^T        S (Dk, Dv)
    out_t  = S_t^T q_t

In a chunk the corrections depend on one another through a unit lower triangular system, which
is solved for values and reads at once (the WY form of arXiv 2406.06484):

    A[i, j] = beta_i k_i . k_j e^{g_{j+1} + .. + g_i}   j < i        (I + A) U = beta (V - K_dec S)

Inputs: query, key (B, T, Hk, Dk); value (B, T, H, Dv); decay g = log of the factor, beta (B, T, H);
every query and key head serves H / Hk neighbouring value heads.

Axis legend: B rows, T tokens, N chunks, c tokens of a chunk, H value heads, Hk key heads.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vla_nav.models.hybrid import fused
from vla_nav.models.hybrid.chunks import Chunks, Rule, decays_within, wide

_EPSILON = 1e-6  # of the length of queries and keys


def by_token(inputs: Sequence[Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
    """The definition: (out (B, T, H, Dv), the last state), one token after the other."""
    query, key, value, decay, beta = _heads(inputs)
    outs = []
    for t in range(query.shape[1]):
        state = state * decay[:, t, :, None, None].exp()
        held = torch.einsum("bhkv,bhk->bhv", state, key[:, t])
        change = beta[:, t, :, None] * (value[:, t] - held)
        state = state + key[:, t, :, :, None] * change[:, :, None]
        outs.append(torch.einsum("bhkv,bhk->bhv", state, query[:, t]))
    return torch.stack(outs, dim=1), state


def prepare(inputs: Sequence[Tensor], is_token: Tensor) -> Chunks:
    """Chunks (N, c, ...) without their states."""
    query, key, value, decay, beta = (x.transpose(1, 2) for x in _heads(inputs))  # (N, H, c, ...)
    mask = is_token[:, None].to(decay.dtype)
    decay, beta = decay * mask, beta * mask
    running, within = decays_within(decay)
    transposed = key.transpose(-1, -2)
    system = (beta[..., None] * key) @ transposed * within
    both = beta[..., None] * torch.cat([value, key * running.exp()[..., None]], dim=-1)
    solved = torch.linalg.solve_triangular(system, both, upper=False, unitriangular=True)
    values, reads = solved.split([value.shape[-1], key.shape[-1]], dim=-1)
    last = running[..., -1:]
    return Chunks(
        queries=query * running.exp()[..., None],
        keys=key * (last - running).exp()[..., None],
        values=values,
        scores=query @ transposed * within,
        decay=last.exp()[..., None],
        reads=reads,
    )


def state_shape(inputs: Sequence[Tensor]) -> tuple[int, int, int]:
    """(H, Dk, Dv)."""
    _, key, value, *_ = inputs
    return value.shape[-2], key.shape[-1], value.shape[-1]


def _heads(inputs: Sequence[Tensor]) -> list[Tensor]:
    """The inputs in float32 at least, queries and keys normed and one per value head."""
    query, key, value, decay, beta = map(wide, inputs)
    groups = value.shape[-2] // key.shape[-2]
    query, key = (_unit(x).repeat_interleave(groups, dim=-2) for x in (query, key))
    return [query * query.shape[-1] ** -0.5, key, value, decay, beta]


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + _EPSILON)


GATED_DELTA = Rule("gated delta rule", by_token, prepare, state_shape, fused.gated_delta)
