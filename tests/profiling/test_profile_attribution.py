"""Every part gets its own time: sleeps put into one place of the model show up there alone.

The sleeps are functions of the autograd graph, FORWARD_S long in a forward pass and BACKWARD_S in a
backward one, behind operations of each part. If a boundary stood in the wrong place, some part
would hold less than was slept in it.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback

from tests.training.tiny import OPTIONS, cpu_trainer, make_data, recipe, settings
from vla_nav.attention import sdpa
from vla_nav.losses import cross_entropy as losses
from vla_nav.models import gateway
from vla_nav.models.assembly import ModelConfig
from vla_nav.models.backbone import BackboneConfig
from vla_nav.profiling.profile_run import profile
from vla_nav.profiling.regions import (
    ATTENTION,
    BACKWARD,
    EMBEDDINGS,
    FORWARD,
    HEAD,
    PROJECTOR,
    RECOMPUTE,
    RELAY,
    REST,
    VISION,
)
from vla_nav.profiling.step_profile import ProfileSettings
from vla_nav.training.settings import PartitionSettings

FORWARD_S, BACKWARD_S = 0.004, 0.008
NUM_LAYERS = OPTIONS["num_hidden_layers"]


class Sleep(torch.autograd.Function):
    """The same tensor, later."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        time.sleep(FORWARD_S)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        time.sleep(BACKWARD_S)
        return gradient


class Sleepers(Callback):
    """Sleeps behind one operation of the encoder, the projector, a table, and every layer's MLP
    (one whose result is saved, so that a recomputation does not stop before it)."""

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        model = pl_module.model
        for module in (
            model.encoder.model.blocks[0],
            model.projector.expand,
            model.own_embedding,
            *(layer.mlp.up_proj for layer in model.backbone.model.layers),
        ):
            module.register_forward_hook(lambda module, given, out: Sleep.apply(out))


def slept(
    data: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, **changed: Any
) -> dict[tuple[str, str], float]:
    """Seconds by region and pass of a step, with sleeps in attention and the loss as well."""
    call, loss = sdpa._attend_call, losses.cross_entropy
    monkeypatch.setattr(sdpa, "_attend_call", lambda *given: Sleep.apply(call(*given)))
    monkeypatch.setattr(losses, "cross_entropy", lambda *a, **k: Sleep.apply(loss(*a, **k)))
    result = profile(
        recipe(data, **changed),
        ProfileSettings(warmup_steps=1, steps=1, trace_steps=0, html=False),
        output_dir=folder,
        make_trainer=cpu_trainer,
        callbacks=[Sleepers()],
        progress=lambda line: None,
    )
    assert result["check"]["adds_up"]
    return {(part["region"], part["phase"]): part["ms"] / 1e3 for part in result["parts"]}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("attributed"), num_episodes=6, num_scenes=3)


def test_a_sleep_is_found_in_the_part_that_slept(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = slept(data, tmp_path, monkeypatch)
    once = dict.fromkeys((VISION, PROJECTOR, EMBEDDINGS, HEAD), 1)
    for part, times in (once | {REST: NUM_LAYERS}).items():
        assert found[part, FORWARD] >= times * FORWARD_S, part
        assert found[part, BACKWARD] >= times * BACKWARD_S, part
    assert found[ATTENTION, FORWARD] >= NUM_LAYERS * FORWARD_S
    assert found[ATTENTION, BACKWARD] >= NUM_LAYERS * BACKWARD_S


def test_under_checkpointing_layers_sleep_again_in_recompute(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = BackboneConfig(options=OPTIONS, gradient_checkpointing=True)
    found = slept(data, tmp_path, monkeypatch, model=ModelConfig(backbone=backbone))
    for part in (ATTENTION, REST):
        assert found[part, FORWARD] >= NUM_LAYERS * FORWARD_S, part
        assert found[part, BACKWARD] >= NUM_LAYERS * BACKWARD_S, part
        assert found[part, RECOMPUTE] >= NUM_LAYERS * FORWARD_S, part


def test_a_slow_gateway_is_the_relays(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extended, gradients = gateway.Gateway.extended, gateway.Gateway.gradients

    def slow_extended(self: Any, *given: Any) -> Any:
        time.sleep(FORWARD_S)
        return extended(self, *given)

    def slow_gradients(self: Any, *given: Any) -> Any:
        time.sleep(BACKWARD_S)
        return gradients(self, *given)

    monkeypatch.setattr(gateway.Gateway, "extended", slow_extended)
    monkeypatch.setattr(gateway.Gateway, "gradients", slow_gradients)
    cut = settings(partition=PartitionSettings(tokens=40, mode="keep"))
    found = slept(data, tmp_path, monkeypatch, settings=cut)
    assert found[RELAY, FORWARD] >= 2 * NUM_LAYERS * FORWARD_S
    assert found[RELAY, BACKWARD] >= 2 * NUM_LAYERS * BACKWARD_S
    assert found[ATTENTION, BACKWARD] >= NUM_LAYERS * BACKWARD_S
