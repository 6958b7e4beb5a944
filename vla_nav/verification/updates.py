"""One optimiser step of a model that has its gradients: what two ways of training are compared by.

gradients    every trainable tensor, zeros where nothing reached it
parameters   the same tensors after one AdamW step, which takes gradients and is not linear
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vla_nav.verification.report import Finding, compare, worst

MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


class Update(NamedTuple):
    """Gradients and stepped values by parameter name."""

    gradients: dict[str, Tensor]
    parameters: dict[str, Tensor]


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimiser of the step check."""
    return torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.01)


def take_step(model: nn.Module, make_optimizer: MakeOptimizer = adamw) -> Update:
    """Step `model` with the gradients that it holds."""
    trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
    gradients = {
        name: torch.zeros_like(value) if value.grad is None else value.grad.clone()
        for name, value in trained.items()
    }
    make_optimizer(list(trained.values())).step()
    return Update(gradients, {name: value.detach() for name, value in trained.items()})


def compare_updates(
    found: Update, expected: Update, *, gradients: float, parameters: float
) -> list[Finding]:
    """The worst tensor of each kind; `gradients` and `parameters` are bounds.

    Some gradients are zero in truth (a bias of attention keys): what both sides hold is rounding,
    below `gradients` of all gradients together. Such a tensor is held to that share of them, and
    its step, which divides rounding by rounding, is not compared.
    """
    assert found.gradients.keys() == expected.gradients.keys()
    total = _norm(list(expected.gradients.values()))
    by_gradient, by_parameter = [], []
    for name, theirs in expected.gradients.items():
        ours = found.gradients[name]
        one = compare(name, ours, theirs, gradients)
        if 0 < max(_norm([ours]), _norm([theirs])) <= gradients * total:
            one = replace(one, relative=_norm([ours - theirs]) / total)
        else:
            step = (found.parameters[name], expected.parameters[name])
            by_parameter.append(compare(name, *step, parameters))
        by_gradient.append(one)
    return [worst("gradients", by_gradient), worst("parameters after a step", by_parameter)]


def _norm(tensors: Sequence[Tensor]) -> float:
    return sum(float(value.double().square().sum()) for value in tensors) ** 0.5
