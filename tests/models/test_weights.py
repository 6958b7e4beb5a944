"""Weights in the compute dtype: made once per optimiser step, never stale, gradients as ever."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vla_nav.models.weights import StepWeights


def linears(dtype=torch.float32, *, bias=False):
    torch.manual_seed(0)
    return [nn.Linear(5, n, bias=bias, dtype=dtype) for n in (6, 2, 3)]


def joined_by_hand(found, dtype):
    return torch.cat([linear.weight.detach().to(dtype) for linear in found])


@pytest.mark.parametrize("is_fused", [False, True])
def test_copies_are_kept_for_a_step_and_follow_every_change(is_fused):
    layers = linears()
    kept = StepWeights(is_joined=True)

    def now():
        weights, biases = kept.group(layers, torch.bfloat16)
        assert biases == (None,)
        return weights[0]

    first = now()
    assert torch.equal(first, joined_by_hand(layers, torch.bfloat16))
    assert now() is first
    optimiser = torch.optim.AdamW(
        [linear.weight for linear in layers], lr=0.1, fused=is_fused, foreach=not is_fused
    )
    for _ in range(2):
        (now().float().sum()).backward()
        optimiser.step()
        assert torch.equal(now(), joined_by_hand(layers, torch.bfloat16))
    with torch.no_grad():
        layers[1].weight.mul_(2)  # an average that is swapped in, a checkpoint that is loaded
    assert torch.equal(now(), joined_by_hand(layers, torch.bfloat16))
    layers[2].weight.data = torch.ones(3, 5)
    assert torch.equal(now(), joined_by_hand(layers, torch.bfloat16))
    layers[0].requires_grad_(False)
    assert torch.autograd.grad(now().sum(), layers[1].weight)


@pytest.mark.parametrize("is_joined", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_several_backward_passes_reach_every_parameter(is_joined, dtype):
    layers, plain = linears(bias=True), linears(bias=True)
    kept = StepWeights(is_joined=is_joined)
    torch.manual_seed(1)
    for x in torch.randn(3, 4, 5).to(dtype):
        with torch.no_grad():
            kept.group(layers, dtype)  # a pass without gradients does not spoil the next
        pairs = zip(*kept.group(layers, dtype), strict=True)
        products = [nn.functional.linear(x, *pair) for pair in pairs]
        (torch.cat(products, -1).float() * torch.arange(11.0)).sum().backward()
        ours = [nn.functional.linear(x, y.weight.to(dtype), y.bias.to(dtype)) for y in plain]
        (torch.cat(ours, -1).float() * torch.arange(11.0)).sum().backward()
    for found, expected in zip(layers, plain, strict=True):
        assert found.weight.grad.dtype == torch.float32
        assert torch.equal(found.weight.grad, expected.weight.grad)
        assert torch.equal(found.bias.grad, expected.bias.grad)


def test_weights_that_need_no_copy_are_the_parameters():
    layers = linears()
    weights, biases = StepWeights(is_joined=False).group(layers, torch.float32)
    assert all(found is linear.weight for found, linear in zip(weights, layers, strict=True))
    assert biases == (None, None, None)
    (weight,), _ = StepWeights(is_joined=True).group(layers[:1], torch.float32)
    assert weight is layers[0].weight
