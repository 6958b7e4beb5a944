"""LoRA: adapters beside a frozen backbone, saved as plain weights or as they are."""

from __future__ import annotations

import copy
from dataclasses import replace

import peft
import pytest
import torch
from flat_hybrids import OPTIONS as HYBRIDS
from flat_hybrids import tiny_hybrid
from model_scenario import ENCODER, episode, small

from tests.verification.random_samples import sample
from tests.verification.steps import trees_of
from vla_nav.actions import WaypointSpace
from vla_nav.attention.registry import backend
from vla_nav.errors import UserError
from vla_nav.losses import weighted_cross_entropy
from vla_nav.models.assembly import Assembled, ModelConfig
from vla_nav.models.backbone import BackboneConfig
from vla_nav.models.checkpoint import load_policy, save_policy
from vla_nav.models.lora import (
    LoraConfig,
    add_lora,
    draw_adapters,
    is_adapter,
    linear_names,
    merged,
)
from vla_nav.models.policy import VLAPolicy
from vla_nav.models.replay import replay
from vla_nav.models.vla import VLA
from vla_nav.tree.packing import pack

SPACE = WaypointSpace()
LORA = LoraConfig(rank=3, alpha=6.0)
LINEAR = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


def adapted(lora: LoraConfig = LORA, *, is_drawn: bool = True) -> tuple[Assembled, ModelConfig]:
    """The small model with adapters that do something."""
    assembled, config = small(SPACE, lora=lora)
    if is_drawn:
        draw_adapters(assembled.model, seed=4)
    return assembled, config


def logits(policy: VLAPolicy) -> list[torch.Tensor]:
    return replay(policy, *episode(1, SPACE, num_steps=3))


def test_adapters_alone_train_in_the_backbone_and_change_nothing_at_first():
    (plain, prompt), _ = small(SPACE)
    (model, _), _ = adapted(is_drawn=False)
    trained = {name for name, value in model.named_parameters() if value.requires_grad}
    in_backbone = {name for name in trained if name.startswith("backbone.")}
    assert all(is_adapter(name) for name in in_backbone)
    assert {name.split(".")[-4] for name in in_backbone} == LINEAR
    assert len(in_backbone) == 2 * 2 * len(LINEAR)  # A and B, two layers
    outside = {name for name, _ in plain.named_parameters() if not name.startswith("backbone.")}
    assert trained - in_backbone == outside
    for before, after in zip(
        logits(VLAPolicy(plain, prompt)), logits(VLAPolicy(model, prompt)), strict=True
    ):
        assert torch.equal(before, after)


def test_adapters_are_drawn_from_the_models_seed_and_leave_the_generator_alone():
    torch.manual_seed(5)
    (one, _), _ = adapted(is_drawn=False)
    after = torch.rand(3)
    (two, _), _ = adapted(is_drawn=False)
    torch.manual_seed(5)
    small(SPACE)
    assert torch.equal(torch.rand(3), after)
    for (name, a), (_, b) in zip(one.named_parameters(), two.named_parameters(), strict=True):
        assert torch.equal(a, b), name


def test_merged_weights_are_pefts_own():
    (model, _), _ = adapted(LoraConfig(rank=3, alpha=5.0, targets=["q_proj", "down_proj"]))
    found = merged(model.state_dict(), LoraConfig(rank=3, alpha=5.0))
    for module in model.modules():
        if isinstance(module, peft.tuners.lora.LoraLayer):
            module.merge()
    expected = {
        name.replace(".base_layer.", "."): value
        for name, value in model.state_dict().items()
        if not is_adapter(name)
    }
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


def test_a_policy_is_saved_as_a_plain_model_of_the_same_function(tmp_path):
    assembled, config = adapted()
    save_policy(tmp_path, assembled, config, encoder=ENCODER, data={})
    loaded = load_policy(tmp_path)
    assert loaded.description["model"]["lora"] is None
    assert loaded.description["trained_from"]["lora"]["rank"] == 3
    (plain, _), _ = small(SPACE)
    assert loaded.model.state_dict().keys() == plain.state_dict().keys()
    (base, prompt), _ = adapted(is_drawn=False)
    for mine, theirs, without in zip(
        logits(loaded.policy()),
        logits(VLAPolicy(*assembled)),
        logits(VLAPolicy(base, prompt)),
        strict=True,
    ):
        # float32: W x + B (A x) against (W + B A) x
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
        assert not torch.allclose(mine, without, rtol=1e-2, atol=1e-2)


def test_a_policy_with_its_adapters_apart_has_the_trained_logits_bit_for_bit(tmp_path):
    assembled, config = adapted(replace(LORA, merge=False))
    save_policy(tmp_path, assembled, config, encoder=ENCODER, data={})
    loaded = load_policy(tmp_path)
    assert loaded.description["model"]["lora"]["alpha"] == 6.0
    for mine, theirs in zip(logits(loaded.policy()), logits(VLAPolicy(*assembled)), strict=True):
        assert torch.equal(mine, theirs)


def test_averaged_adapters_are_merged_in_place_of_the_models(tmp_path):
    assembled, config = adapted()
    zeros = {
        name: torch.zeros_like(value)
        for name, value in assembled.model.named_parameters()
        if is_adapter(name)
    }
    save_policy(tmp_path, assembled, config, encoder=ENCODER, data={}, weights=zeros)
    plain: VLA = small(SPACE)[0].model
    for name, value in load_policy(tmp_path).model.state_dict().items():
        assert torch.equal(value, plain.state_dict()[name]), name


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dropout": 0.1}, r"models\.lora\.dropout=0\.1: .*set it to 0"),
        ({"rank": 0}, r"models\.lora\.rank=0"),
        ({"alpha": -1}, r"models\.lora\.alpha=-1"),
        ({"targets": "q_proj"}, r"models\.lora\.targets='q_proj'; give a list"),
        ({"ranks": 4}, r"unknown key of models\.lora 'ranks' \(did you mean 'rank'"),
        ({"merge": "no"}, r"models\.lora\.merge='no'"),
    ],
)
def test_wrong_values_are_refused(values, message):
    with pytest.raises(UserError, match=message):
        ModelConfig(lora=values)


@pytest.mark.parametrize("value", [[], True, "16"])
def test_adapters_without_keys_are_refused(value):
    with pytest.raises(UserError, match=r"models\.lora=.*: needs keys such as \{rank: 16"):
        ModelConfig(lora=value)


def test_a_rank_above_that_of_every_layer_is_refused():
    with pytest.raises(UserError, match=r"models\.lora\.rank=100000: .*allowed: 1 to \d+$"):
        small(SPACE, lora=LoraConfig(rank=100_000))


def test_layers_that_do_not_exist_and_compiled_ones_are_refused():
    with pytest.raises(UserError, match=r"models\.lora\.targets 'q_prj' \(did you mean 'q_proj'"):
        small(SPACE, lora=LoraConfig(targets=["q_prj"]))
    compiled = BackboneConfig(norms="fused", compile="layers")
    with pytest.raises(UserError, match=r"with models\.lora set models\.backbone\.compile=false"):
        ModelConfig(backbone=compiled, lora={"rank": 2})


@pytest.mark.parametrize("family", HYBRIDS)
def test_adapters_under_recurrent_mixers_train_and_count_as_their_merged_weights(family):
    model = tiny_hybrid(family)
    plain = copy.deepcopy(model)
    backbone = model.backbone.model
    add_lora(backbone, LORA, seed=1)
    draw_adapters(backbone, seed=4)
    backbone.double()
    plain.backbone.model.load_state_dict(merged(backbone.state_dict(), LORA))
    forest = [sample("bushy", 3, 9)]
    packed, frames = pack(trees_of(forest)), torch.cat([one.frames for one in forest])
    plan = backend(model.attention_name).plan(packed)
    logits = model(packed, frames, plan)
    assert torch.allclose(logits, plain(packed, frames, plan), rtol=1e-9, atol=1e-9)
    weighted_cross_entropy(logits, packed).value.backward()
    adapters = {n: p for n, p in backbone.named_parameters() if is_adapter(n)}
    assert {name.split(".")[-4] for name in adapters} == set(linear_names(plain.backbone.model))
    assert all(float(p.grad.abs().max()) > 0 for p in adapters.values())
    assert all(p.grad is None for n, p in backbone.named_parameters() if not is_adapter(n))
