"""Costs fitted to measured steps: right where steps tell, near the FLOPs where they do not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.training.tiny import cpu_trainer, make_data, recipe, settings
from vla_nav.errors import UserError
from vla_nav.profiling.profile_run import profile
from vla_nav.profiling.profile_table import profile_table
from vla_nav.profiling.step_profile import ProfileSettings
from vla_nav.training.cost_fit import costs_json, fit_costs, read_costs
from vla_nav.training.cost_model import CostModel, PackCounts
from vla_nav.training.data_stats import data_stats
from vla_nav.training.datamodule import RecordedData
from vla_nav.training.recipe import assembled_data
from vla_nav.training.settings import PartitionSettings

FLOPS = CostModel(per_token=8e9, per_pair=7e5, per_predictor=2e9, per_recomputed_token=3e9)


def steps_of(truth: CostModel, num: int, *, seed: int = 0, noise: float = 0.0) -> list[dict]:
    """Steps of one to four packs of unlike lengths, some in partitions, timed by `truth`."""
    rng = np.random.default_rng(seed)
    steps = []
    for _ in range(num):
        tokens = rng.integers(500, 30_000, rng.integers(1, 5)).astype(float)
        parts = np.where(tokens > 16_000, -(-tokens // 8000), 0)
        counts = PackCounts(
            tokens=tokens.sum(),
            pairs=(tokens**2 * rng.uniform(0.1, 0.5, len(tokens))).sum(),
            predictors=(tokens * rng.uniform(0.02, 0.1, len(tokens))).sum(),
            frames=0.0,
            packs=float(len(tokens)),
            partitions=parts.sum(),
            recomputed_tokens=np.where(parts > 0, tokens - 8000, 0).sum(),
        )
        seconds = float(np.array(counts) @ truth.coefficients) * (1 + noise * rng.normal())
        steps.append({**{k: float(v) for k, v in counts._asdict().items()}, "seconds": seconds})
    return steps


def test_other_rates_and_constants_are_found() -> None:
    # Attention at a quarter of the rate of matrix products, 20 ms a pack, 5 ms a partition.
    truth = CostModel(
        per_token=8e9 / 7e14, per_pair=7e5 / 1.75e14, per_predictor=2e9 / 7e14, per_pack=0.02,
        per_partition=0.005, per_recomputed_token=3e9 / 7e14,
    )  # fmt: skip
    fitted = fit_costs(steps_of(truth, 60, noise=0.01), FLOPS)
    unseen = steps_of(truth, 60, seed=1)
    counts = np.array([[step[name] for name in PackCounts._fields] for step in unseen])
    seconds = np.array([step["seconds"] for step in unseen])
    errors = np.abs(counts @ fitted.model.coefficients / seconds - 1)
    assert errors.mean() < 0.02
    assert fitted.error < 0.02 < 0.08 < fitted.prior_error
    assert fitted.model.per_pair / fitted.model.per_token > 1.5 * FLOPS.per_pair / FLOPS.per_token
    assert 0.01 < fitted.model.per_pack < 0.03


def test_steps_that_are_alike_leave_the_flops_as_they_are() -> None:
    rate = 5e14
    truth = CostModel(*(FLOPS.coefficients / rate))
    (step,) = steps_of(truth, 1)
    fitted = fit_costs([step] * 8, FLOPS)
    assert fitted.model.coefficients * rate == pytest.approx(FLOPS.coefficients, rel=1e-6, abs=1.0)
    assert fitted.error < 1e-9
    assert (fitted.model.coefficients >= 0).all()


def test_no_coefficient_is_negative_whatever_was_measured() -> None:
    rng = np.random.default_rng(0)
    steps = [
        {**step, "seconds": float(rng.uniform(0.1, 2))} for step in steps_of(FLOPS, 20, seed=2)
    ]
    assert (fit_costs(steps, FLOPS).model.coefficients >= 0).all()
    with pytest.raises(ValueError, match="no measured step"):
        fit_costs([], FLOPS)


def test_a_profile_of_another_model_or_none_is_refused(tmp_path: Path) -> None:
    costs = costs_json(steps_of(CostModel(*(FLOPS.coefficients / 1e14)), 6), FLOPS)
    file = tmp_path / "profile.json"
    file.write_text(json.dumps({"what": {"attention": "flex"}, "costs": costs}))
    made = read_costs(tmp_path, FLOPS, attention="flex")
    assert made.source == "6 measured steps"
    assert made == read_costs(file, FLOPS, attention="flex")
    for prior, attention, message in (
        (replace(FLOPS, per_pair=6e5), "flex", r"another model \(per_pair 700000 FLOPs, here 6"),
        (FLOPS, "flash", "profiled with attention=flex, here it is flash"),
    ):
        with pytest.raises(UserError, match=message):
            read_costs(file, prior, attention=attention)
    damaged: list[Any] = [[], {}, {"costs": {"flops": {"per_token": 1.0}, "steps": []}}]
    for content in damaged:
        file.write_text(json.dumps(content))
        with pytest.raises(UserError, match="no profile with measured steps"):
            read_costs(file, FLOPS, attention="flex")
    with pytest.raises(UserError, match="no such file"):
        read_costs(tmp_path / "none.json", FLOPS, attention="flex")


def test_a_profiles_own_steps_can_be_given_to_training(tmp_path: Path) -> None:
    data = make_data(tmp_path / "data", steps=(3, 20))
    values = settings(accumulate=2, partition=PartitionSettings(60))
    made = recipe(data, settings=values)
    how = ProfileSettings(warmup_steps=1, steps=6, trace_steps=0, html=False)
    result = profile(
        made,
        how,
        output_dir=tmp_path / "profile",
        make_trainer=cpu_trainer,
        progress=lambda _: None,
    )
    steps = result["costs"]["steps"]
    assert len(steps) == 6
    assert all(step["packs"] == 2 and 0 < step["seconds"] < 10 for step in steps)
    assert sum(step["partitions"] for step in steps) == result["structure"]["num_partitions"] > 0
    # All of the profiled time is in a step, but for what is no pack's.
    total = sum(step["seconds"] for step in steps)
    assert 0.3 * result["check"]["wall_s"] < total < result["check"]["wall_s"]
    assert "cost model" in profile_table(result)
    fitted = replace(values, cost_profile=str(tmp_path / "profile"))
    assembled, module = assembled_data(replace(made, settings=fitted), RecordedData)
    seconds = module.costs.of([(0, 1), (2,)]) * module.costs.unit
    assert (seconds > 0).all()
    assert (seconds < 10).all()
    assert assembled.model is not None
    counted = data_stats(
        data,
        "train",
        model=made.model,
        encoder=made.encoder,
        action_space=made.action_space,
        layout=made.layout,
        pack_tokens=400,
        cost_profile=str(tmp_path / "profile"),
        attention=made.attention,
    )
    assert counted["balance"]["cost"] == "6 measured steps"
