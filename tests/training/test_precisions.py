"""Every precision that conf/trainer names, and float64: weights of that dtype train."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.training.tiny import cpu_trainer, make_data, recipe, settings, weights_of
from vla_nav.training.ema import WeightAverage
from vla_nav.training.fit import fit
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
