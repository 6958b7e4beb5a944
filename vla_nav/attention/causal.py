"""Plain causal attention over sequences behind one another: the baseline that trees are held to.

    tokens      a a a a b b c c c        cu_lengths 0 4 6 9
    a sees a, b sees b, c sees c, each up to itself

Axis legend: T tokens of all sequences, S sequences, n tokens of one, H query heads, Hkv key/value
heads, D head dim.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch.nn.functional import scaled_dot_product_attention


def causal_varlen(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_lengths: torch.Tensor,
    max_length: int,
    scale: float | None = None,
) -> torch.Tensor:
    """q (T, H, D), k and v (T, Hkv, D), cu_lengths (S + 1,) int32 on the same device: (T, H, D).

    FlashAttention 4 on a GPU, one sequence at a time on a CPU; differentiable in q, k and v.
    """
    if q.device.type == "cuda":
        from vla_nav.attention.flash import varlen

        return varlen(q, k, v, cu_lengths, max_length, scale)
    bounds = cu_lengths.tolist()
    outs = []
    for start, stop in pairwise(bounds):
        queries, keys, values = (x[start:stop].transpose(0, 1)[None] for x in (q, k, v))
        out = scaled_dot_product_attention(
            queries, keys, values, is_causal=True, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
        )
        outs.append(out[0].transpose(0, 1))
    return torch.cat(outs)


def causal_batched(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The same over a batch of equal lengths: q (S, n, H, D), k and v (S, n, Hkv, D)."""
    if q.device.type == "cuda":
        from vla_nav.attention.flash import batched

        return batched(q, k, v)
    queries, keys, values = (x.transpose(1, 2) for x in (q, k, v))
    out = scaled_dot_product_attention(
        queries, keys, values, is_causal=True, enable_gqa=q.shape[2] != k.shape[2]
    )
    return out.transpose(1, 2)
