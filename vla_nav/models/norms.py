"""Root-mean-square norms in one kernel instead of transformers' chain of six operations.

    y = w * x / sqrt(mean(x^2) + eps)          computed in float32 (float64 where x is), cast once
    y = (1 + w) * ...                          `zero_centred` (Qwen3.5)

On a GPU the chain is bound by memory and by launches: every operation reads and writes all
activations, in float32. torch's fused kernel reads once and writes once. It also keeps bfloat16
activations in bfloat16 under autocast, where the chain's float32 weight makes them float32.

Gated norms (of recurrent layers) stay transformers' own:

    y = w * x / sqrt(mean(x^2) + eps) * silu(gate)            `gated_after` (Qwen3.5)
    y = w * norm of x * silu(gate), mean over groups          `gated_before` (Bamba)
"""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor, nn
from torch.nn import functional as F

NormKind = Literal["plain", "zero_centred", "gated_after", "gated_before"]

_KINDS: dict[str, NormKind] = {
    "Qwen3_5RMSNorm": "zero_centred",
    "Qwen3_5RMSNormGated": "gated_after",
    "BambaRMSNormGated": "gated_before",
}


def norm_kind(module: nn.Module) -> NormKind | None:
    """What a transformers norm computes; None for every other module."""
    named = _KINDS.get(type(module).__name__)
    if named is not None or isinstance(module, FusedNorm):
        return named
    return "plain" if hasattr(module, "variance_epsilon") else None


def norm_epsilon(module: Any) -> float:
    """The epsilon of a transformers norm."""
    return float(module.eps if hasattr(module, "eps") else module.variance_epsilon)


class FusedNorm(nn.Module):
    """A transformers norm's weight and epsilon through `torch.nn.functional.rms_norm`."""

    def __init__(self, stock: nn.Module) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = stock.weight, norm_epsilon(stock)
        self.is_zero_centred = norm_kind(stock) == "zero_centred"

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D) in the dtype of x."""
        weight = (1.0 + self.weight if self.is_zero_centred else self.weight).to(x.dtype)
        return F.rms_norm(x, weight.shape, weight, self.variance_epsilon)


def fuse_norms(model: nn.Module) -> None:
    """Replace every transformers norm without a gate in `model`; weights and their names stay."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if norm_kind(child) in ("plain", "zero_centred"):
                setattr(module, name, FusedNorm(child))
