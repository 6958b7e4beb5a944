"""One to many partitions of random forests, in both modes, equal the flat paths and the whole pack.

flat paths one by one  =  one pack  =  partitions with gateways     gradients by norm
"""

from __future__ import annotations

import copy
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.verification import tiny_vla
from tests.verification.episode_samples import episode_sample, layouts
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
from vla_nav.models.backbone import DECODERS
from vla_nav.models.gateway import GatewayStore
from vla_nav.training.partitioned import (
    partitioned_backward,
    partitioned_logits,
    plan_partitions,
)
from vla_nav.tree import pack

MODES = ("recompute", "keep")
EXACT = Bound(logits=1e-12, loss=1e-12, gradients=1e-12, parameters=1e-10)
STOCK = Bound(logits=1e-6, loss=1e-6, gradients=1e-6, parameters=1e-5)
FLOAT32 = Bound(logits=1e-5, loss=1e-5, gradients=1e-5, parameters=1e-4)


@cache
def model_of(family="qwen3", kind="exact", attention="sdpa"):
    dtype = torch.float32 if kind == "float32" else torch.float64
    return tiny_vla.tiny_vla(
        family, attention=attention, dtype=dtype, has_float64_norms=kind == "exact"
    )


def flat(model, forest, normalisation="path_mean"):
    return flat_step(
        model,
        forest,
        normalisation,
        flat_copy=tiny_vla.flat_copy,
        flat_forward=tiny_vla.flat_forward,
    )


def step(model, forest, num_parts, mode, normalisation="path_mean"):
    """The step in at least `num_parts` partitions (None: one pack), keyed like the flat one."""
    model = copy.deepcopy(model)
    trees, frames = trees_of(forest), torch.cat([one.frames for one in forest])
    whole, attention = pack(trees), backend(model.attention_name)
    total = loss_denominator(whole, normalisation)

    def loss_of(logits, packed):
        return weighted_cross_entropy(
            logits, packed, normalisation=normalisation, denominator=total
        ).value

    if num_parts is None:
        logits = model(whole, frames, attention.plan(whole))
        loss = loss_of(logits, whole)
        loss.backward()
    else:
        capacity = max(1, whole.num_tokens // num_parts)
        plans = plan_partitions(trees, attention, capacity=capacity, mode=mode)
        assert all(len(part.own) <= capacity for part in plans.cut.parts)
        assert len(plans.cut.parts) >= min(num_parts, whole.num_tokens)
        owned = torch.cat([part.own for part in plans.cut.parts])
        assert torch.equal(owned.sort().values, torch.arange(whole.num_tokens))  # once each
        taught = torch.cat([part.targets for part in plans.cut.parts])
        assert torch.equal(taught.sort().values, torch.arange(len(whole.target_ids)))
        logits = partitioned_logits(model, plans, frames)
        loss = partitioned_backward(model, plans, frames, loss_of)
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    gradients = {
        name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in named.items()
    }
    keyed = {
        key: [row] for key, row in zip(target_keys(whole), logits.detach().unbind(), strict=True)
    }
    return Step(keyed, float(loss.detach()), gradients, updated(model, gradients), {})


@pytest.mark.parametrize("mode", MODES)
@given(samples(), st.integers(1, 5))
@settings(max_examples=8, deadline=None, derandomize=True)
def test_partitions_of_random_forests_equal_their_flat_paths(mode, forest, num_parts):
    model = model_of()
    assert_equal_steps(step(model, forest, num_parts, mode), flat(model, forest), EXACT)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("num_parts", [1, 2, 3, 4, 5, 99])
def test_every_number_of_partitions_up_to_single_tokens(mode, num_parts):
    forest = [sample("bushy", 5, 3), sample("unary", 3, 4), sample("one path", 2, 5)]
    model = model_of(attention=("sdpa", "reference")[num_parts % 2])
    ours = step(model, forest, num_parts, mode, "token_mean")
    assert_equal_steps(ours, flat(model, forest, "token_mean"), EXACT)


@pytest.mark.parametrize("mode", MODES)
@given(st.integers(0, 2**16), layouts(), st.integers(2, 5))
@settings(max_examples=6, deadline=None, derandomize=True)
def test_partitions_of_every_layout_equal_their_flat_paths(mode, seed, layout, num_parts):
    forest, model = [episode_sample(seed, layout)], model_of()
    assert_equal_steps(step(model, forest, num_parts, mode), flat(model, forest), EXACT)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("family", DECODERS)
@given(samples(), st.integers(2, 5))
@settings(max_examples=3, deadline=None, derandomize=True)
def test_partitions_through_unmodified_backbones(mode, family, forest, num_parts):
    model = model_of(family, "stock")
    assert_equal_steps(step(model, forest, num_parts, mode), flat(model, forest), STOCK)


@pytest.mark.parametrize("mode", MODES)
@given(samples(), st.integers(1, 5))
@settings(max_examples=6, deadline=None, derandomize=True)
def test_partitions_in_float32_equal_the_whole_pack(mode, forest, num_parts):
    model, forest = model_of(kind="float32"), in_dtype(forest, torch.float32)
    assert_equal_steps(
        step(model, forest, num_parts, mode), step(model, forest, None, mode), FLOAT32
    )


def bfloat16_gap(found: Step, expected: Step) -> tuple[float, float]:
    """(logits, gradients) distances relative by norm, over everything at once."""
    gaps = []
    for a, b in (
        (
            torch.stack([found.logits[key][0] for key in expected.logits]),
            torch.stack([rows[0] for rows in expected.logits.values()]),
        ),
        (
            torch.cat([found.gradients[name].flatten() for name in expected.gradients]),
            torch.cat([value.flatten() for value in expected.gradients.values()]),
        ),
    ):
        gaps.append(float((a.double() - b.double()).norm() / b.double().norm()))
    return gaps[0], gaps[1]


def test_partitions_in_bfloat16_stay_within_the_noise_of_another_batch_shape():
    # The noise: the same paths one by one and in one pack, which differ by rounding alone.
    noise, drift = [], []
    for seed in range(2):
        forest = in_dtype([sample("bushy", 5, seed), sample("unary", 4, seed)], torch.float32)
        model = model_of(kind="float32")
        with torch.autocast("cpu", torch.bfloat16):
            whole = step(model, forest, None, "keep")
            noise.append(bfloat16_gap(flat(model, forest), whole))
            for mode in MODES:
                drift += [bfloat16_gap(step(model, forest, n, mode), whole) for n in (2, 5)]
    for part in (0, 1):
        largest = max(pair[part] for pair in noise)
        assert 1e-3 < largest < 3e-2  # 8 bits: anything smaller would not be bfloat16
        # 0.95 times the noise was seen.
        assert max(pair[part] for pair in drift) <= 1.5 * largest


# --- mistakes ----------------------------------------------------------------------------------


def is_found(forest, mode="recompute"):
    """Whether the comparison with the flat paths fails."""
    model = model_of()
    try:
        assert_equal_steps(step(model, forest, 4, mode), flat(model, forest), EXACT)
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize("mode", MODES)
def test_a_gateway_without_gradients_is_found(mode, monkeypatch):
    forest = [sample("bushy", 5, 3)]
    assert not is_found(forest, mode)
    monkeypatch.setattr(GatewayStore, "add_gradient", lambda *_: None)  # the mistake
    assert is_found(forest, mode)


@pytest.mark.parametrize("mode", MODES)
def test_gradients_of_the_last_reader_only_are_found(mode, monkeypatch):
    forest = [sample("bushy", 5, 3)]
    stock = GatewayStore.add_gradient

    def overwrite(self, run, layer, gradients):  # the mistake: = where += is meant
        self.take_gradient(run.number, layer)
        stock(self, run, layer, gradients)

    monkeypatch.setattr(GatewayStore, "add_gradient", overwrite)
    assert is_found(forest, mode)
