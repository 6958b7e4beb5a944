"""Gateways: what crosses between partitions, and what attention keeps meanwhile."""

from __future__ import annotations

import weakref

import torch
from torch.nn import functional as F

from vla_nav.models.gateway import GatewayStore
from vla_nav.tree import PrefixTree, partition
from vla_nav.tree.partition_types import Run
from vla_nav.tree.types import Path, text_segment


def caterpillar(num_steps: int) -> PrefixTree:
    frames = [text_segment(range(10 * t, 10 * t + 4)) for t in range(num_steps)]
    return PrefixTree.from_paths(
        [Path((*frames[: t + 1], text_segment([900 + t]))) for t in range(num_steps)]
    )


def test_attention_keeps_no_joined_keys_but_its_gradients_are_right():
    _, part = partition([caterpillar(5)], capacity=14).parts
    num_own, num_prefix = len(part.own), part.num_prefix
    assert num_prefix > 0
    torch.manual_seed(0)
    before = torch.randn(2, num_prefix, 2, 4, dtype=torch.float64)
    q, k, v = (torch.randn(1, num_own, 2, 4, dtype=torch.float64) for _ in range(3))
    joined = []

    def attend(q, k, v, layer, scale):
        joined.append((weakref.ref(k), weakref.ref(v)))
        out = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), scale=scale)
        return out.transpose(1, 2)

    store = GatewayStore()
    (run,) = part.sources
    store._held[run.number] = {}
    store.write(run.number, 0, before[0], before[1])
    inputs = [x.clone().requires_grad_() for x in (q, k, v)]
    out = store.gateway(part, is_stored=False).bind(attend)(*inputs, 0, 0.5)
    assert all(reference() is None for pair in joined for reference in pair)
    out.square().sum().backward()

    whole = [q, torch.cat([before[:1], k], dim=1), torch.cat([before[1:], v], dim=1)]
    expected = [x.clone().requires_grad_() for x in whole]
    attend(*expected, 0, 0.5).square().sum().backward()
    for ours, theirs in zip(inputs, expected, strict=True):
        gradient = theirs.grad[:, -num_own:]
        assert (ours.grad - gradient).norm() < 1e-12 * gradient.norm()
    sums = store.take_gradient(run.number, 0)
    for ours, theirs in zip(sums, expected[1:], strict=True):
        gradient = theirs.grad[0, :num_prefix]
        assert (ours - gradient).norm() < 1e-12 * gradient.norm()


def test_gateway_gradients_of_bfloat16_keys_are_summed_in_float32():
    store = GatewayStore()
    store._held[0] = {}
    keys = torch.zeros(1, 1, 1, dtype=torch.bfloat16)
    store.write(0, 0, keys, keys)
    one = torch.ones(1, 1, 1, dtype=torch.bfloat16)
    for gradient in (one, *[one * 2**-9] * 256):  # each vanishes beside 1 in bfloat16
        store.add_gradient(Run(0, 0, 1), 0, (gradient, gradient))
    total, _ = store.take_gradient(0, 0)
    assert total.dtype == torch.float32
    assert float(total) == 1.5
    assert store.take_gradient(0, 0) is None
