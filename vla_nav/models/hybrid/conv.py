"""The causal depthwise conv before a recurrence, over plain sequences and over the paths of a pack.

    out_t = bias + sum over j < K of weight[:, j] * x_{t - K + 1 + j}        x = 0 before the path

In a pack the token before is the one before it on the path, except at the start of a run: there
the window is gathered (`vla_nav.tree.heavy_paths`), and takes the place of what the plain conv
mixed up.

Axis legend: B rows, T tokens, C channels, K kernel, W windows, G rows that other partitions give.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from vla_nav.models.hybrid.chunks import wide


def causal_conv(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x (B, T, C), weight (C, K), bias (C,) -> (B, T, C), in float32 at least."""
    num_channels, kernel = weight.shape
    padded = F.pad(wide(x).transpose(1, 2), (kernel - 1, 0))
    out = F.conv1d(padded, weight.to(padded.dtype)[:, None], groups=num_channels)
    out = out.transpose(1, 2)
    return out if bias is None else out + bias.to(out.dtype)


PlainConv = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def path_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    joined: Tensor,
    window_row: Tensor,
    window: Tensor,
    plain: PlainConv = causal_conv,
) -> Tensor:
    """x (T, C) of a pack -> (T, C), in the dtype that `plain` gives.

    joined (G + T, C): what `window` (W, >= K) counts, -1 = nothing; window_row (W,) the rows of x
    that have one.
    """
    window = window[:, -weight.shape[1] :]
    seen = wide(joined[window.clamp_min(0)]) * (window >= 0)[..., None]  # (W, K, C)
    taken = torch.einsum("wkc,ck->wc", seen, weight.to(seen.dtype))
    if bias is not None:
        taken = taken + bias.to(taken.dtype)
    out = plain(x[None], weight, bias)[0]
    return out.index_copy(0, window_row, taken.to(out.dtype))
