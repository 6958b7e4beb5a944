"""The recurrence of Mamba-2 (arXiv 2405.21060): linear attention with one decay per head.

    S_t    = e^{g_t} S_{t-1} + k_t v_t^T         S (Dk, Dv), Dk the state size, Dv the head size
    out_t  = S_t^T q_t

    q = C, k = B   shared by the heads of a group         g = dt A
    v = dt x                                              dt = softplus(raw + bias), clamped

The skip D x is no part of the recurrence; the mixer adds it.

Inputs: query, key (B, T, G, Dk); value (B, T, H, Dv); decay g (B, T, H).

Axis legend: B rows, T tokens, N chunks, c tokens of a chunk, H heads, G groups of heads.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vla_nav.models.hybrid import fused
from vla_nav.models.hybrid.chunks import Chunks, Rule, decays_within, wide


def by_token(inputs: Sequence[Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
    """The definition: (out (B, T, H, Dv), the last state), one token after the other."""
    query, key, value, decay = _heads(inputs)
    outs = []
    for t in range(query.shape[1]):
        state = state * decay[:, t, :, None, None].exp()
        state = state + key[:, t, :, :, None] * value[:, t, :, None]
        outs.append(torch.einsum("bhkv,bhk->bhv", state, query[:, t]))
    return torch.stack(outs, dim=1), state


def prepare(inputs: Sequence[Tensor], is_token: Tensor) -> Chunks:
    """Chunks (N, c, ...) without their states."""
    query, key, value, decay = (x.transpose(1, 2) for x in _heads(inputs))  # (N, H, c, ...)
    mask = is_token[:, None].to(decay.dtype)
    decay, value = decay * mask, value * mask[..., None]
    running, within = decays_within(decay)
    last = running[..., -1:]
    return Chunks(
        queries=query * running.exp()[..., None],
        keys=key * (last - running).exp()[..., None],
        values=value,
        scores=query @ key.transpose(-1, -2) * within,
        decay=last.exp()[..., None],
        reads=None,
    )


def state_shape(inputs: Sequence[Tensor]) -> tuple[int, int, int]:
    """(H, Dk, Dv)."""
    _, key, value, _ = inputs
    return value.shape[-2], key.shape[-1], value.shape[-1]


def _heads(inputs: Sequence[Tensor]) -> list[Tensor]:
    """The inputs in float32 at least, queries and keys one per head."""
    query, key, value, decay = map(wide, inputs)
    groups = value.shape[-2] // key.shape[-2]
    query, key = (x.repeat_interleave(groups, dim=-2) for x in (query, key))
    return [query, key, value, decay]


MAMBA2 = Rule("Mamba-2", by_token, prepare, state_shape, fused.mamba2)
