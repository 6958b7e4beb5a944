"""Root-mean-square norms in float64, so that nothing in a float64 proof rounds to float32.

    y = w * x / sqrt(mean(x^2) + eps)          all in the dtype of x

The norms of transformers compute in float32 whatever the dtype: a float64 model then agrees with
its flat paths to 1e-7 only. With these in their place only the order of sums is left (1e-15).
Rotary angles stay float32, but depend on the position alone, so both sides hold the same ones.
"""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import Tensor, nn

Model = TypeVar("Model", bound=nn.Module)


class Float64Norm(nn.Module):
    """The norm above with the weight and epsilon of a transformers norm."""

    def __init__(self, stock: nn.Module) -> None:
        super().__init__()
        self.weight, self.eps = stock.weight, stock.variance_epsilon

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)


def float64_norms(model: Model) -> Model:
    """A float64 copy of `model` in which every transformers norm is replaced."""
    exact = copy.deepcopy(model).double()
    for module in list(exact.modules()):
        for name, child in list(module.named_children()):
            if hasattr(child, "variance_epsilon"):
                setattr(module, name, Float64Norm(child))
    return exact
