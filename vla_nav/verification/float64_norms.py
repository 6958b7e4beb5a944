"""Root-mean-square norms in float64, so that nothing in a float64 proof rounds to float32.

    y = w * x / sqrt(mean(x^2) + eps)          all in the dtype of x; kinds: models/norms.py

The norms of transformers compute in float32 whatever the dtype: a float64 model then agrees with
its flat paths to 1e-7 only. With these in their place only the order of sums is left (1e-15).
Rotary angles stay float32, but depend on the position alone, so both sides hold the same ones.
"""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vla_nav.models.norms import FusedNorm, norm_epsilon, norm_kind

Model = TypeVar("Model", bound=nn.Module)


class Float64Norm(nn.Module):
    """The norm above with the weight and epsilon of a transformers norm."""

    def __init__(self, stock: nn.Module) -> None:
        super().__init__()
        self.weight, self.eps, self.kind = stock.weight, norm_epsilon(stock), norm_kind(stock)
        if isinstance(stock, FusedNorm):
            self.kind = "zero_centred" if stock.is_zero_centred else "plain"
        self.group_size = getattr(stock, "group_size", stock.weight.shape[0])

    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        """(..., D) -> (..., D)."""
        if self.kind == "gated_before":
            assert gate is not None
            x = x * F.silu(gate)
        groups = x.unflatten(-1, (-1, self.group_size))
        scale = torch.rsqrt(groups.square().mean(-1, keepdim=True) + self.eps)
        weight = 1.0 + self.weight if self.kind == "zero_centred" else self.weight
        y = weight * (groups * scale).flatten(-2)
        if self.kind == "gated_after":
            assert gate is not None
            y = y * F.silu(gate)
        return y


def float64_norms(model: Model) -> Model:
    """A float64 copy of `model` in which every transformers norm is replaced."""
    exact = copy.deepcopy(model).double()
    for module in list(exact.modules()):
        for name, child in list(module.named_children()):
            if norm_kind(child) is not None or isinstance(child, FusedNorm):
                setattr(module, name, Float64Norm(child))
    return exact
