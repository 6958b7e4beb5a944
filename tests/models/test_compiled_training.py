"""A run with compiled layers is the run without: curve, checkpoint, average and policy bundle."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.training.tiny import OPTIONS, make_data, recipe, train, weights_of
from vla_nav.models.assembly import ModelConfig
from vla_nav.models.backbone import BackboneConfig
from vla_nav.models.checkpoint import load_policy
from vla_nav.training.curve import read_curve
from vla_nav.training.settings import PartitionSettings

# Float32 over twelve steps of AdamW, which turns rounding at near-zero gradients into parts of a
# learning rate of 1e-3.
ROUNDING = 2e-3


def run(data: Path, folder: Path, mode: str | bool, tokens: int | None) -> Path:
    backbone = BackboneConfig(
        options=OPTIONS, norms="fused", compile=mode, gradient_checkpointing=True
    )
    made = recipe(data, model=ModelConfig(backbone=backbone))
    partition = PartitionSettings(tokens=tokens)
    made = replace(made, settings=replace(made.settings, partition=partition))
    with torch.compiler.set_stance("force_eager"):
        train(made, folder)
    return folder


@pytest.mark.parametrize("tokens", [None, 60])
def test_a_run_with_compiled_layers_is_the_run_without(tmp_path, tokens):
    data = make_data(tmp_path / "data")
    plain = run(data, tmp_path / "plain", False, tokens)
    ours = run(data, tmp_path / "ours", "joined", tokens)
    expected, found = (
        [row["loss"] for row in read_curve(folder / "curve.jsonl") if "loss" in row]
        for folder in (plain, ours)
    )
    assert expected[-1] < expected[0]
    assert found == pytest.approx(expected, rel=ROUNDING)
    stored, kept = weights_of(plain), weights_of(ours)
    assert kept.keys() == stored.keys()
    assert not [name for name in kept if "_orig_mod" in name]
    for name, value in stored.items():
        if name.startswith("state_dict"):
            assert (kept[name] - value).norm() <= ROUNDING * value.norm(), name
    policies = [load_policy(folder / "policy") for folder in (plain, ours)]
    one, other = (policy.model.state_dict() for policy in policies)
    assert list(one) == list(other)
    assert policies[0].model.backbone.architecture() == policies[1].model.backbone.architecture()
