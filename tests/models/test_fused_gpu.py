"""Fused kernels of recurrent layers on a GPU: the gate, whole models, the public call, bits."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from flat_hybrids import OPTIONS, tiny_hybrid

from tests.verification.random_samples import in_dtype, sample
from tests.verification.steps import trees_of
from vla_nav.attention import backend
from vla_nav.losses import loss_denominator, weighted_cross_entropy
from vla_nav.models.hybrid import TreeRouting, mixers_of
from vla_nav.models.hybrid.gated_delta import GATED_DELTA
from vla_nav.models.hybrid.mamba2 import MAMBA2
from vla_nav.models.hybrid.mixers import RuleShape
from vla_nav.models.hybrid.parity import TOLERANCE, drawn_inputs, gate_pack, kernel_differences
from vla_nav.profiling.flat import flat_packs
from vla_nav.profiling.synthetic import Forest
from vla_nav.training.partitioned import partitioned_backward, plan_partitions
from vla_nav.tree import pack

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(importlib.util.find_spec("fla") is None, reason="needs the extra `hybrid`"),
]
SHAPES = {
    "gated delta": RuleShape(GATED_DELTA, 16, 16, 128, 128, num_inputs=5),
    "grouped values": RuleShape(GATED_DELTA, 8, 4, 64, 128, num_inputs=5),
    "Mamba-2": RuleShape(MAMBA2, 32, 1, 128, 64, num_inputs=4),
}
SIZES = {
    "qwen3_5_text": {"linear_key_head_dim": 16, "linear_value_head_dim": 16},
    "bamba": {"mamba_d_state": 16},
}
of_every_shape = pytest.mark.parametrize("name", SHAPES)


def relative(a, b):
    return float((a.detach().double() - b.detach().double()).norm() / b.detach().double().norm())


@of_every_shape
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_kernels_equal_the_definition(name, dtype):
    found = kernel_differences(SHAPES[name], gate_pack(), "cuda", dtype)
    assert max(found.values()) < TOLERANCE[dtype], found


@of_every_shape
def test_flat_paths_equal_the_public_call(name):
    shape = SHAPES[name]
    (flat,) = flat_packs(Forest.parse("5x50+7@20").trees(), 4096)
    inputs, grad = drawn_inputs(shape, flat.num_tokens, "cuda", torch.bfloat16)
    given = [x.requires_grad_() for x in inputs]
    lengths = flat.cu_lengths.long().cuda()
    out = TreeRouting(flat.packed.to("cuda").heavy_paths).scan(shape.rule, given, 0)
    if shape.num_inputs == 5:
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule

        public, _ = chunk_gated_delta_rule(*given, cu_seqlens=lengths, use_qk_l2norm_in_kernel=True)
    else:
        from fla.ops.simple_gla import chunk_simple_gla

        q, k = (x.expand(-1, -1, shape.num_heads, -1) for x in given[:2])
        public, _ = chunk_simple_gla(q, k, *given[2:], scale=1.0, cu_seqlens=lengths)
    assert relative(out, public) < 1e-2
    found, expected = (torch.autograd.grad(x, given, grad) for x in (out, public))
    assert max(relative(a, b) for a, b in zip(found, expected, strict=True)) < 2e-2


@of_every_shape
def test_the_same_call_gives_the_same_bits_and_siblings_change_none(name):
    shape, packed = SHAPES[name], gate_pack()
    routing = TreeRouting(packed.heavy_paths.to("cuda"))
    inputs, grad = drawn_inputs(shape, len(packed.position_ids), "cuda", torch.bfloat16)

    def gradients(values):
        given = [x.clone().requires_grad_() for x in values]
        out = routing.scan(shape.rule, given, 0)
        return [out, *torch.autograd.grad(out, given, grad)]

    first = gradients(inputs)  # kernels are tuned here
    one, two = gradients(inputs), gradients(inputs)
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    end = packed.subtree_end.tolist()
    start = next(t for t in range(len(end)) if end[t] <= t + 12)  # a leaf's first tokens
    changed = [x.clone() for x in inputs]
    for x in changed:
        x[:, start] = x[:, start + 1]
    found = gradients(changed)[0]
    others = [t for t in range(packed.num_tokens) if not start <= t < end[start]]
    assert torch.equal(found[:, others], one[0][:, others])
    assert not torch.equal(found[:, start], one[0][:, start])
    assert relative(first[0], one[0]) < 1e-2


def gradients_of_a_step(model, forest, device, num_parts):
    """(loss, gradients on the CPU) of one step over the forest's pack, or its partitions."""
    trees, attention = trees_of(forest), backend("sdpa")
    frames = torch.cat([one.frames for one in forest]).to(device)
    whole, model = pack(trees), model.to(device)
    total = loss_denominator(whole, "path_mean")

    def loss_of(logits, packed):
        found = weighted_cross_entropy(logits, packed, normalisation="path_mean", denominator=total)
        return found.value

    if num_parts is None:
        on_device = whole.to(device)
        logits = model(on_device, frames, attention.plan(whole).to(device))
        loss = loss_of(logits, on_device)
        loss.backward()
    else:
        capacity = whole.num_tokens // num_parts
        plans = plan_partitions(trees, attention, capacity=capacity, mode="recompute").to(device)
        loss = partitioned_backward(model, plans, frames, loss_of)
    return float(loss.detach()), {
        name: parameter.grad.cpu().double()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


@pytest.mark.parametrize("family", OPTIONS)
@pytest.mark.parametrize("num_parts", [None, 3])
def test_steps_of_models_equal_float64(family, num_parts):
    """float32 on the GPU by kernels, whose products may be TF32, against float64 on the CPU."""
    forest = [sample("bushy", 4, 5), sample("unary", 3, 6)]
    exact = tiny_hybrid(family, **SIZES[family])
    loss, expected = gradients_of_a_step(exact, forest, "cpu", None)
    model = tiny_hybrid(family, dtype=torch.float32, **SIZES[family])
    assert {mixer.kernels for mixer in mixers_of(model.backbone.model)} == {"auto"}
    narrow = in_dtype(forest, torch.float32)
    found_loss, found = gradients_of_a_step(model, narrow, "cuda", num_parts)
    assert found_loss == pytest.approx(loss, rel=5e-3)
    assert found.keys() == expected.keys()
    off = sum(float((found[name] - g).norm() ** 2) for name, g in expected.items())
    size = sum(float(g.norm() ** 2) for g in expected.values())
    assert (off / size) ** 0.5 < 1e-2
