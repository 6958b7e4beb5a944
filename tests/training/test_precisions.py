"""Every precision that conf/trainer names, and float64: weights of that dtype train."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.training.tiny import cpu_trainer, make_data, recipe, settings, weights_of
from vla_nav.errors import UserError
from vla_nav.training.ema import WeightAverage
from vla_nav.training.fit import fit
from vla_nav.training.optimiser import OptimiserSettings
from vla_nav.training.schedule import Budget
from vla_nav.training.settings import PartitionSettings

DTYPES = {"32-true": torch.float32, "bf16-mixed": torch.float32, "bf16-true": torch.bfloat16}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("precisions"), num_episodes=12)


@pytest.mark.parametrize("tokens", [None, 25])
@pytest.mark.parametrize("precision", [*DTYPES, "64-true"])
def test_a_run_has_weights_of_its_precision(
    data: Path, tmp_path: Path, precision: str, tokens: int | None
) -> None:
    made = settings(budget=Budget(max_steps=3), partition=PartitionSettings(tokens), accumulate=2)
    result = fit(
        recipe(data, settings=made),
        output_dir=tmp_path,
        config={},
        make_trainer=lambda **keywords: cpu_trainer(precision=precision, **keywords),
        callbacks=[WeightAverage(decay=0.9, every_steps=2)],
        checkpoint={"every_steps": 3, "every_minutes": None},
    )
    assert result["steps"] == 3
    assert result["validation"]["loss"] is not None
    weights = {name: x for name, x in weights_of(tmp_path).items() if name.startswith("state_dict")}
    wanted = DTYPES.get(precision, torch.float64)
    assert {x.dtype for x in weights.values() if x.is_floating_point()} == {wanted}


def refused(data: Path, folder: Path, **trainer: object) -> str:
    """What a run by used rows is told."""
    made = settings(optimiser=OptimiserSettings(used_rows=True))
    with pytest.raises(UserError) as found:
        fit(
            recipe(data, settings=made),
            output_dir=folder,
            config={},
            make_trainer=lambda **keywords: cpu_trainer(**trainer, **keywords),
            checkpoint={"every_steps": 3, "every_minutes": None},
        )
    return str(found.value)


@pytest.mark.parametrize("precision", ["bf16-true", "64-true"])
def test_used_rows_are_for_float32_weights(data: Path, tmp_path: Path, precision: str) -> None:
    told = refused(data, tmp_path, precision=precision)
    assert "used_rows=true is for float32 weights" in told
    assert precision in told


def test_an_epoch_that_ends_early_is_refused(data: Path, tmp_path: Path) -> None:
    told = refused(data, tmp_path, limit_train_batches=2)
    assert told.startswith("the data are at step 0, training at step 2: ")
    assert "limit_train_batches" in told
