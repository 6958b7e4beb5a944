"""Plain causal attention over equally long sequences, by the faster of two kernels.

    varlen    the sequences behind one another, (S n, H, D)     as flat paths are trained
    batched   the same numbers as a batch, (S, n, H, D)         another scheduler: long tiles first

Axis legend: S sequences, n tokens of each, H query heads, Hkv key/value heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vla_nav.attention.causal import causal_batched, causal_varlen


def causal_kernels(
    q: Tensor, k: Tensor, v: Tensor, num_sequences: int
) -> dict[str, Callable[[], Tensor]]:
    """Both over the same q (S n, H, D), k and v (S n, Hkv, D)."""
    length = len(q) // num_sequences
    cu_lengths = torch.arange(num_sequences + 1, device=q.device, dtype=torch.int32) * length

    def varlen() -> Tensor:
        return causal_varlen(q, k, v, cu_lengths, length)

    def batched() -> Tensor:
        parts = (x.unflatten(0, (num_sequences, length)) for x in (q, k, v))
        return causal_batched(*parts).flatten(0, 1)

    return {"varlen": varlen, "batched": batched}
