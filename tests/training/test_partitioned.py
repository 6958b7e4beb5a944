"""Any number of partitions gives the gradients of none, in both modes."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from tests.models.flat_paths import use_plain_norms
from tests.models.model_scenario import embodiment, episode, pixels, small
from vla_nav.actions import WaypointSpace
from vla_nav.attention.registry import backend
from vla_nav.losses import weighted_cross_entropy
from vla_nav.models.backbone import enable_checkpointing
from vla_nav.models.prompt import Layout
from vla_nav.training.partitioned import (
    partitioned_backward,
    partitioned_logits,
    plan_partitions,
)
from vla_nav.tree import PrefixTree, pack

EXACT, STOCK = 1e-12, 1e-6  # float64 norms; transformers' norms round to float32
PADDING = {"padded_length": lambda n: n + 3, "padded_prefix": lambda n: n + 2}


def scenario(layout, *, family="qwen3", attention="sdpa", is_plain=True, checkpointing=False):
    """A float64 model with an encoder that trains, two episodes as trees, and their frames."""
    body = embodiment(num_cameras=2, has_depth=False)
    space = WaypointSpace()
    (model, builder), _ = small(space, layout=layout, body=body, family=family, attention=attention)
    model.double()
    if is_plain:
        use_plain_norms(model.backbone.model)
    if checkpointing:
        enable_checkpointing(model.backbone.model)
        model.train()
    trees, frames = [], []
    for seed, num_steps in ((3, 6), (4, 1), (5, 4)):
        found, source = episode(seed, space, body=body, num_steps=num_steps)
        paths, keys = builder.paths(found)
        trees.append(PrefixTree.from_paths(paths, num_frames=len(keys)))
        frames.append(pixels(source, keys))
    return model, trees, torch.cat(frames)


def loss_of(logits, packed):
    return weighted_cross_entropy(logits, packed, normalisation="path_mean", denominator=3.0).value


def whole_gradients(model, trees, frames):
    model = copy.deepcopy(model)
    packed = pack(trees)
    logits = model(packed, frames, backend(model.attention_name).plan(packed))
    loss = loss_of(logits, packed)
    loss.backward()
    return loss.detach(), logits.detach(), gradients(model)


def gradients(model):
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def require_equal(model, trees, frames, tolerance, *, num_parts, mode):
    loss, logits, expected = whole_gradients(model, trees, frames)
    attention = backend(model.attention_name)
    capacity = -(-sum(tree.num_tokens for tree in trees) // num_parts)
    plans = plan_partitions(trees, attention, capacity=capacity, mode=mode)
    assert len(plans.cut.parts) >= num_parts
    found_logits = partitioned_logits(model, plans, frames)
    assert relative(found_logits, logits) < tolerance
    model = copy.deepcopy(model)
    found = partitioned_backward(model, plans, frames, loss_of)
    assert relative(found, loss) < tolerance
    ours = gradients(model)
    assert ours.keys() == expected.keys()
    assert {name.split(".")[0] for name in ours} >= {"backbone", "projector", "encoder"}
    for name, gradient in expected.items():
        if gradient.norm() > 1e-9:
            assert relative(ours[name], gradient) < 10 * tolerance, name


def relative(a, b):
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("mode", ["recompute", "keep"])
@pytest.mark.parametrize("num_parts", [1, 2, 5])
@pytest.mark.parametrize("layout", [Layout("full", "hidden"), Layout("pooled", "visible")])
def test_partitions_equal_no_partition(layout, num_parts, mode):
    require_equal(*scenario(layout), EXACT, num_parts=num_parts, mode=mode)


@pytest.mark.parametrize("mode", ["recompute", "keep"])
@pytest.mark.parametrize("family", ["mistral", "llama"])
def test_other_families_and_the_reference_backend(family, mode):
    given = scenario(Layout("pooled", "hidden"), family=family, attention="reference")
    require_equal(*given, EXACT, num_parts=4, mode=mode)


@pytest.mark.parametrize("mode", ["recompute", "keep"])
def test_the_unmodified_backbone_within_its_float32_norms(mode):
    given = scenario(Layout("full", "visible"), is_plain=False)
    require_equal(*given, STOCK, num_parts=4, mode=mode)


@pytest.mark.parametrize("mode", ["recompute", "keep"])
def test_activation_checkpointing_inside_partitions_changes_nothing(mode):
    given = scenario(Layout("full", "hidden"), checkpointing=True)
    require_equal(*given, EXACT, num_parts=4, mode=mode)


@pytest.mark.parametrize("mode", ["recompute", "keep"])
def test_partitions_of_one_token_are_many_levels_deep(mode):
    model, trees, frames = scenario(Layout("pooled", "hidden"))
    shortest = min(trees, key=lambda tree: tree.num_tokens)
    start = sum(tree.num_frames for tree in trees[: trees.index(shortest)])
    frames = frames[start : start + shortest.num_frames]
    require_equal(model, [shortest], frames, EXACT, num_parts=shortest.num_tokens, mode=mode)


@pytest.mark.parametrize("mode", ["recompute", "keep"])
def test_padding_of_rows_and_gateways_is_seen_by_nobody(mode):
    model, trees, frames = scenario(Layout("full", "hidden"))
    loss, _, expected = whole_gradients(model, trees, frames)
    padded = replace(backend("sdpa"), **PADDING)
    plans = plan_partitions(trees, padded, capacity=60, mode=mode)
    assert all(part.num_padded_prefix > part.num_prefix for part in plans.cut.parts)
    found = partitioned_backward(model, plans, frames, loss_of)
    assert relative(found, loss) < EXACT
    for name, gradient in gradients(model).items():
        if expected[name].norm() > 1e-9:
            assert relative(gradient, expected[name]) < 10 * EXACT, name


def test_a_frozen_text_partition_still_passes_the_gateways_gradient():
    # Nothing in the last partition needs a gradient before its gateway does.
    model, trees, frames = scenario(Layout("pooled", "hidden"))
    model.backbone.requires_grad_(False)
    model.own_embedding.requires_grad_(False)
    _, _, expected = whole_gradients(model, trees, frames)
    plans = plan_partitions(trees, backend("sdpa"), capacity=20)
    partitioned_backward(model, plans, frames, loss_of)
    for name, gradient in gradients(model).items():
        if expected[name].norm() > 1e-9:
            assert relative(gradient, expected[name]) < 1e-11, name
