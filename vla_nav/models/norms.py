"""Root-mean-square norms in one kernel instead of transformers' chain of six operations.

    y = w * x / sqrt(mean(x^2) + eps)          computed in float32 (float64 where x is), cast once

On a GPU the chain is bound by memory and by launches: every operation reads and writes all
activations, in float32. torch's fused kernel reads once and writes once. It also keeps bfloat16
activations in bfloat16 under autocast, where the chain's float32 weight makes them float32.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class FusedNorm(nn.Module):
    """A transformers norm's weight and epsilon through `torch.nn.functional.rms_norm`."""

    def __init__(self, stock: nn.Module) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = stock.weight, stock.variance_epsilon

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D) in the dtype of x."""
        weight = self.weight.to(x.dtype)
        return F.rms_norm(x, weight.shape, weight, self.variance_epsilon)


def fuse_norms(model: nn.Module) -> None:
    """Replace every transformers norm in `model`; weights and their names stay."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if hasattr(child, "variance_epsilon") and not isinstance(child, FusedNorm):
                setattr(module, name, FusedNorm(child))
