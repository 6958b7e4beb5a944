"""Weights as a compiled layer takes them: in the compute dtype, side by side where it pays.

    parameters (float32)   q.weight (n_q, E)   k.weight (n_k, E)   v.weight (n_v, E)
    joint, bfloat16        [ q ; k ; v ]  (n_q + n_k + n_v, E)     one matrix product

Made at the first use in an optimiser step and kept for all its packs, passes and recomputations:
under mixed precision one cast per weight and step instead of one per layer call, of the same
numbers. Dropped when an optimiser of the process has stepped; made anew where a parameter was
written to, moved or frozen. Gradients reach the parameters through autograd, so that accumulation
and hooks (the exchange between ranks) see what they always saw.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook


class Group(NamedTuple):
    """Weights (n, E) and biases (n,) of linear layers with one input: one of each where joined."""

    weights: tuple[Tensor, ...]
    biases: tuple[Tensor | None, ...]


class StepWeights:
    """The groups of one layer, kept for a step. A copy of it (of its model) starts empty."""

    def __init__(self, *, is_joined: bool) -> None:
        self.is_joined = is_joined
        self._kept: dict[int, tuple[Any, Group]] = {}
        _count_steps()

    def group(self, linears: Sequence[Any], dtype: torch.dtype, *, is_apart: bool = False) -> Group:
        """The weights of `linears` in `dtype`; is_apart: not joined in any case."""
        is_joined = self.is_joined and len(linears) > 1 and not is_apart
        pairs = [(linear.weight, linear.bias) for linear in linears]
        parameters = [x for pair in pairs for x in pair if x is not None]
        if all(x.dtype == dtype for x in parameters) and not is_joined:
            return Group(*zip(*pairs, strict=True))
        state = (_steps.taken, dtype, *map(_state, parameters))
        key = id(linears[0])
        kept = self._kept.get(key)
        if kept is None or kept[0] != state:
            self._kept.pop(key, None)  # its memory first
            with torch.enable_grad():  # a pass without gradients may be the first of the step
                kept = state, self._made(linears, dtype, is_joined)
            self._kept[key] = kept
        return kept[1]

    def _made(self, linears: Sequence[Any], dtype: torch.dtype, is_joined: bool) -> Group:
        weights = tuple(linear.weight for linear in linears)
        biases = tuple(linear.bias for linear in linears if linear.bias is not None)
        if is_joined:
            bias = _Joined.apply(dtype, *biases) if biases else None
            return Group((_Joined.apply(dtype, *weights),), (bias,))
        return Group(
            tuple(weight.to(dtype) for weight in weights),
            tuple(None if x.bias is None else x.bias.to(dtype) for x in linears),
        )

    def __deepcopy__(self, memo: Any) -> StepWeights:
        return StepWeights(is_joined=self.is_joined)

    def __getstate__(self) -> dict[str, Any]:
        return {"is_joined": self.is_joined, "_kept": {}}


class _Joined(torch.autograd.Function):
    """Rows of all inputs in one tensor of `dtype`: each is read once and written once."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *parts: Tensor) -> Tensor:
        ctx.sizes, ctx.dtypes = [len(part) for part in parts], [part.dtype for part in parts]
        joined = parts[0].new_empty(sum(ctx.sizes), *parts[0].shape[1:], dtype=dtype)
        for part, place in zip(parts, joined.split(ctx.sizes), strict=True):
            place.copy_(part)
        return joined

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        parts = gradient.split(ctx.sizes)
        return None, *(part.to(dtype) for part, dtype in zip(parts, ctx.dtypes, strict=True))


class _Steps:
    """Optimiser steps of this process. Fused optimisers leave no mark on their parameters."""

    taken = 0


_steps = _Steps()


@cache
def _count_steps() -> None:
    def count(*_: Any) -> None:
        _steps.taken += 1

    register_optimizer_step_post_hook(count)


def _state(parameter: Tensor) -> tuple[Any, ...]:
    return parameter.data_ptr(), parameter._version, parameter.requires_grad
