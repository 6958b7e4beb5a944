"""Packed tree against flat paths on unmodified transformers backbones, float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings

from tests.tree.random_paths import seeds
from tests.verification.tiny_models import (
    TinyVLA,
    flat_copy,
    flat_forward,
    layout_sample,
    packed_forward,
    random_sample,
    with_float64_norms,
)
from vla_nav.verification import Bounds, check_equivalence, check_leakage

LAYOUTS = [(h, a) for h in ("full", "pooled") for a in ("hidden", "visible")]
# Stock norms round to float32 (6e-8): sums in another order flip some of these roundings, which
# leaves about 1e-7 in logits and gradients. With float64 norms only the order of sums is left.
STOCK = Bounds(logits=1e-6, loss=1e-7, gradients=1e-6, parameters=1e-6)
EXACT = Bounds(logits=1e-12, loss=1e-12, gradients=1e-12, parameters=1e-12)


def assert_ok(findings):
    violated = [finding for finding in findings if not finding.is_ok]
    assert not violated, violated


def check(model, samples, bounds, *, name="sdpa", **options):
    return check_equivalence(
        model,
        samples,
        packed_forward=packed_forward(name),
        flat_forward=flat_forward,
        flat_model=flat_copy(model),
        bounds=bounds,
        **options,
    )


@pytest.mark.parametrize("family", ["qwen3", "mistral"])
@pytest.mark.parametrize(("history", "actions"), LAYOUTS)
def test_layouts_on_unmodified_backbones(family, history, actions):
    samples = [
        layout_sample(history, actions, num_steps=5, seed=1),
        layout_sample(history, actions, num_steps=2, seed=2, num_labels=2),
    ]
    assert_ok(check(TinyVLA(family), samples, STOCK))


@pytest.mark.parametrize(("history", "actions"), LAYOUTS)
def test_layouts_with_float64_norms_are_exact(history, actions):
    samples = [layout_sample(history, actions, num_steps=5, seed=3, supervise="all")]
    for normalisation in ("path_mean", "token_mean", "step_sum"):
        model = with_float64_norms(TinyVLA())
        assert_ok(check(model, samples, EXACT, normalisation=normalisation))


@given(seeds())
@settings(max_examples=12, deadline=None, derandomize=True)
def test_random_forests_are_exact(seed):
    samples = [random_sample(seed), random_sample(seed + 1)]
    model = with_float64_norms(TinyVLA(num_layers=1))
    assert_ok(check(model, samples, EXACT, normalisation="step_sum"))


def test_reference_backend_is_exact_too():
    samples = [layout_sample("pooled", "hidden", num_steps=4)]
    assert_ok(check(with_float64_norms(TinyVLA()), samples, EXACT, name="reference"))


def test_float32_stays_within_its_own_rounding():
    model = TinyVLA().float()
    sample = layout_sample("full", "hidden", num_steps=5)
    sample = type(sample)(sample.paths, sample.frames.float())
    bounds = Bounds(logits=1e-5, loss=1e-5, gradients=1e-5, parameters=1e-6)
    assert_ok(check(model, [sample], bounds))


def test_the_model_is_left_as_it_was():
    model = TinyVLA()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    check(model, [layout_sample("full", "hidden", num_steps=2)], STOCK)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(("history", "actions"), LAYOUTS)
@pytest.mark.parametrize("name", ["sdpa", "reference"])
def test_nothing_leaks_by_a_single_bit(history, actions, name):
    samples = [
        layout_sample(history, actions, num_steps=6, seed=4),
        layout_sample(history, actions, num_steps=3, seed=5),
    ]
    findings = check_leakage(TinyVLA(), samples, packed_forward=packed_forward(name))
    assert_ok(findings)
    probed = {finding.check: finding.note for finding in findings}
    assert all(note != "0 probes" for note in probed.values()), probed
