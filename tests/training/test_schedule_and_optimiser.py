"""Progress, learning rates and the parameter groups they act on."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from vla_nav.errors import UserError
from vla_nav.training import schedule
from vla_nav.training.optimiser import OptimiserSettings, build_optimiser
from vla_nav.training.schedule import Budget, Progress, learning_rate_factor


def factor(progress: float) -> float:
    return learning_rate_factor(progress, warmup_share=0.1, final_share=0.02)


def test_learning_rate_rises_then_falls_to_the_final_share() -> None:
    assert factor(0.0) == 0.0
    assert factor(0.05) == pytest.approx(0.5)
    assert factor(0.1) == pytest.approx(1.0)
    assert factor(0.55) == pytest.approx(0.51)
    assert factor(1.0) == factor(7.0) == pytest.approx(0.02)
    values = [factor(0.1 + 0.9 * k / 50) for k in range(51)]
    assert values == sorted(values, reverse=True)
    assert learning_rate_factor(0.0, warmup_share=0.0, final_share=0.0) == 1.0


def test_step_budget_ends_exactly_at_its_last_step() -> None:
    progress = Progress(Budget(max_steps=8), total_steps=8)
    assert progress.at(6) < 1.0 == progress.at(7)


def test_minute_budget_counts_earlier_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(schedule.time, "monotonic", lambda: now[0])
    progress = Progress(Budget(max_minutes=2.0), total_steps=None)
    progress.stopwatch.restart(earlier_s=30.0)
    assert progress.at(0) == pytest.approx(0.25)
    now[0] += 45.0
    assert progress.at(1) == pytest.approx(75 / 120)
    assert progress.remaining_s(1) == pytest.approx(45.0)
    now[0] += 60.0
    assert progress.at(2) == 1.0


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"max_steps": 3, "max_minutes": 1.0},
        {"max_steps": 0},
        {"max_minutes": -1.0},
        {"max_epochs": "many"},
    ],
)
def test_budget_needs_exactly_one_positive_bound(given: dict[str, object]) -> None:
    with pytest.raises(UserError, match="training"):
        Budget(**given)


class Parts(nn.Module):
    """The names of a VLA's parts."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(3, 3)
        self.projector = nn.Linear(3, 4)
        self.backbone = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 4), nn.LayerNorm(4))
        self.own_head = nn.Linear(4, 5, bias=False)


def test_every_parameter_is_in_one_group_with_its_parts_rate() -> None:
    model = Parts()
    optimiser = build_optimiser(
        model, OptimiserSettings(learning_rate=0.1, learning_rates={"vision": 0.01, "heads": None})
    )
    grouped = [p for group in optimiser.param_groups for p in group["params"]]
    assert len(grouped) == len(set(map(id, grouped))) == len(list(model.parameters()))
    rate = {id(p): group["lr"] for group in optimiser.param_groups for p in group["params"]}
    decay = {
        id(p): group["weight_decay"] for group in optimiser.param_groups for p in group["params"]
    }
    assert rate[id(model.encoder.weight)] == 0.01
    assert rate[id(model.own_head.weight)] == rate[id(model.backbone[1].weight)] == 0.1
    assert decay[id(model.backbone[1].weight)] == 0.05
    for undecayed in (model.backbone[0].weight, model.backbone[2].weight, model.encoder.bias):
        assert decay[id(undecayed)] == 0.0


def test_rate_zero_freezes_a_part() -> None:
    model = Parts()
    optimiser = build_optimiser(model, OptimiserSettings(learning_rates={"backbone": 0.0}))
    assert not any(p.requires_grad for p in model.backbone.parameters())
    assert all(p.requires_grad for group in optimiser.param_groups for p in group["params"])
    with pytest.raises(UserError, match="nothing trains"):
        build_optimiser(
            model,
            OptimiserSettings(learning_rates=dict.fromkeys(("vision", "projector", "heads"), 0.0)),
        )


def test_unknown_part_and_bad_numbers_are_refused() -> None:
    with pytest.raises(UserError, match="did you mean 'vision'"):
        OptimiserSettings(learning_rates={"vison": 0.1})
    with pytest.raises(UserError, match="clip_norm=-1"):
        OptimiserSettings(clip_norm=-1)
    assert math.isfinite(float(torch.zeros(())))
