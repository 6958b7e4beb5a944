"""Hybrid backbones on trees and partitions equal their flat paths, by definition and unmodified."""

from __future__ import annotations

import copy
from functools import cache

import pytest
import torch
from flat_hybrids import OPTIONS, defined_copy, flat_forward, stock_copy, tiny_hybrid
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.verification.random_samples import in_dtype, sample, samples
from tests.verification.steps import (
    Bound,
    Step,
    assert_equal_steps,
    flat_step,
    target_keys,
    trees_of,
    updated,
)
from vla_nav.attention import backend
from vla_nav.losses import loss_denominator, weighted_cross_entropy
from vla_nav.models.backbone import disable_checkpointing, enable_checkpointing
from vla_nav.training.partitioned import (
    partitioned_backward,
    partitioned_logits,
    plan_partitions,
)
from vla_nav.tree import pack
from vla_nav.verification.float64_norms import float64_norms

EXACT = Bound(logits=1e-11, loss=1e-11, gradients=1e-9, parameters=1e-9)
# Unmodified: its kernels and norms compute in float32 (6e-8) inside the float64 model; a gradient
# that is one small number for a whole head (D) is left with 2e-6 after its terms cancel.
STOCK = Bound(logits=1e-6, loss=1e-6, gradients=5e-6, parameters=5e-5)
FLOAT32 = Bound(logits=1e-5, loss=1e-5, gradients=5e-5, parameters=5e-4)

in_both_families = pytest.mark.parametrize("family", OPTIONS)


@cache
def model_of(family, kind="exact"):
    model = tiny_hybrid(family, dtype=torch.float32 if kind == "float32" else torch.float64)
    return float64_norms(model) if kind == "exact" else model


def step(model, forest, *, num_parts=None, mode="recompute"):
    """One step over the pack of `forest`, or over its partitions, keyed like the flat one."""
    model = copy.deepcopy(model)
    trees, frames = trees_of(forest), torch.cat([one.frames for one in forest])
    whole, attention = pack(trees), backend(model.attention_name)
    total = loss_denominator(whole, "path_mean")

    def loss_of(logits, packed):
        return weighted_cross_entropy(
            logits, packed, normalisation="path_mean", denominator=total
        ).value

    if num_parts is None:
        logits = model(whole, frames, attention.plan(whole))
        loss = loss_of(logits, whole)
        loss.backward()
    else:
        capacity = max(1, whole.num_tokens // num_parts)
        plans = plan_partitions(trees, attention, capacity=capacity, mode=mode)
        assert len(plans.cut.parts) >= min(num_parts, whole.num_tokens)
        logits = partitioned_logits(model, plans, frames)
        loss = partitioned_backward(model, plans, frames, loss_of)
    gradients = {
        name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for name, p in model.named_parameters()
    }
    keyed = {
        key: [row] for key, row in zip(target_keys(whole), logits.detach().unbind(), strict=True)
    }
    return Step(keyed, float(loss.detach()), gradients, updated(model, gradients), {})


def flat(model, forest, copy_of):
    return flat_step(model, forest, "path_mean", flat_copy=copy_of, flat_forward=flat_forward)


@in_both_families
@given(samples())
@settings(max_examples=6, deadline=None, derandomize=True)
def test_random_forests_equal_their_paths_token_by_token(family, forest):
    model = model_of(family)
    assert_equal_steps(step(model, forest), flat(model, forest, defined_copy), EXACT)


@in_both_families
@pytest.mark.parametrize("mode", ["recompute", "keep"])
@given(samples(), st.integers(1, 4))
@settings(max_examples=6, deadline=None, derandomize=True)
def test_partitions_of_random_forests_equal_the_whole_pack(family, mode, forest, num_parts):
    model = model_of(family)
    found = step(model, forest, num_parts=num_parts, mode=mode)
    assert_equal_steps(found, as_flat(step(model, forest)), EXACT)


@in_both_families
@pytest.mark.parametrize("mode", ["recompute", "keep"])
def test_partitions_down_to_single_tokens_equal_the_paths(family, mode):
    """Windows and states then cross several partitions."""
    model = model_of(family)
    forest = [sample("bushy", 6, 3), sample("single tokens", 5, 4)]
    expected = flat(model, forest, defined_copy)
    for num_parts in (2, 3, 4, 99):
        assert_equal_steps(step(model, forest, num_parts=num_parts, mode=mode), expected, EXACT)


@in_both_families
@pytest.mark.parametrize("kind", ["stock", "float32"])
def test_the_unmodified_model_is_equal_within_its_float32_kernels(family, kind):
    model = model_of(family, kind)
    forest = [sample("bushy", 4, 5), sample("unary", 3, 6)]
    if kind == "float32":
        forest = in_dtype(forest, torch.float32)
    bound = STOCK if kind == "stock" else FLOAT32
    assert_equal_steps(step(model, forest), flat(model, forest, stock_copy), bound)


@in_both_families
@pytest.mark.parametrize("kernel", [1, 2, 3])
def test_shorter_convs_equal_the_paths(family, kernel):
    key = "linear_conv_kernel_dim" if family == "qwen3_5_text" else "mamba_d_conv"
    model = float64_norms(tiny_hybrid(family, **{key: kernel}))
    forest = [sample("single tokens", 4, 8)]
    expected = flat(model, forest, defined_copy)
    assert_equal_steps(step(model, forest), expected, EXACT)
    assert_equal_steps(step(model, forest, num_parts=3, mode="keep"), expected, EXACT)


@in_both_families
def test_the_oracle_is_the_unmodified_model_up_to_float32(family):
    """Both flat sides agree, so neither is wrong in the way that the product might be."""
    model = model_of(family, "stock")
    forest = [sample("bushy", 3, 9)]
    defined = flat(model, forest, defined_copy)
    assert_equal_steps(flat(model, forest, stock_copy), as_flat(defined), STOCK)


@in_both_families
def test_activation_checkpointing_changes_no_gradient(family):
    model = model_of(family).train()
    forest = [sample("bushy", 5, 11)]
    expected = as_flat(step(model, forest))
    enable_checkpointing(model.backbone.model)
    try:
        for mode in (None, "recompute", "keep"):
            parts = None if mode is None else 3
            found = step(model, forest, num_parts=parts, mode=mode or "recompute")
            assert_equal_steps(found, expected, EXACT)
    finally:
        disable_checkpointing(model.backbone.model)


def as_flat(found: Step) -> Step:
    """A step as the side to compare with: sizes are those of its gradients."""
    return found._replace(
        size={name: float(value.double().norm()) for name, value in found.gradients.items()}
    )
