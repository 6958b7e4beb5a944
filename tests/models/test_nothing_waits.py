"""A step launches work and reads no value of it, so the process stays ahead of the device."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.training.test_partitioned import scenario
from vla_nav.attention.registry import backend
from vla_nav.losses import loss_denominator, total_denominator, weighted_cross_entropy
from vla_nav.models.backbone import enable_checkpointing
from vla_nav.models.layers import compile_layers
from vla_nav.models.prompt import Layout
from vla_nav.training.partitioned import partitioned_backward, plan_partitions
from vla_nav.tree import pack


def loss_of(predictions, packed):
    total = total_denominator(torch.stack([loss_denominator(packed, "token_mean")]), "token_mean")
    return weighted_cross_entropy(
        predictions, packed, normalisation="token_mean", denominator=total
    ).value


@pytest.fixture
def valueless():
    """The model, packs and features on torch's meta device: whoever asks for a value fails."""
    model, trees, frames = scenario(Layout("pooled", "visible"))
    features = model.features(frames).detach().to("meta")
    return model.to("meta").train(), trees, features


@pytest.mark.parametrize("compiled", [None, "layers", "joined"])
@pytest.mark.parametrize("max_logits", [2**26, 50])
def test_a_step_over_a_whole_pack(valueless, compiled, max_logits):
    model, trees, features = valueless
    if compiled is not None:
        compile_layers(model.backbone.model, is_joined=compiled == "joined")
        enable_checkpointing(model.backbone.model)
        model.train()
    packed = pack(trees)
    plan = backend("sdpa").plan(packed).to("meta")
    packed = packed.to("meta")
    with torch.compiler.set_stance("force_eager"):
        found = model.predictions(packed, features, plan)
        loss_of(replace(found, max_logits=max_logits), packed).backward()
    trained = {name: p for name, p in model.named_parameters() if "encoder" not in name}
    assert all(p.grad is not None for p in trained.values())


@pytest.mark.parametrize("mode", ["recompute", "keep"])
def test_a_step_in_partitions(valueless, mode):
    model, trees, features = valueless
    plans = plan_partitions(trees, backend("sdpa"), capacity=40, mode=mode).to("meta")
    assert len(plans.cut.parts) > 3
    partitioned_backward(model, plans, features, loss_of)
    with pytest.raises((RuntimeError, NotImplementedError)):
        float(features.sum())  # what this device does to whoever waits
