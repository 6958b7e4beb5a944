"""The dry run on CUDA: its peak is that of the run, and a pack that does not fit is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer

from tests.training.tiny import OPTIONS, make_data, recipe, settings
from vla_nav.errors import UserError
from vla_nav.models.assembly import ModelConfig
from vla_nav.models.backbone import BackboneConfig
from vla_nav.training.dry_run import DryRun
from vla_nav.training.ema import WeightAverage
from vla_nav.training.fit import fit
from vla_nav.training.schedule import Budget

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
WIDE = {**OPTIONS, "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 8}


class Peak(Callback):
    """What the device had allocated at most in the steps, and the dry run's report."""

    bytes = 0
    report: Any = None

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        if self.report is None:
            (one,) = (item for item in trainer.callbacks if isinstance(item, DryRun))
            self.report = one.report
            torch.cuda.reset_peak_memory_stats()

    def on_train_batch_end(self, *_: Any) -> None:
        self.bytes = torch.cuda.max_memory_allocated()


def run(data: Path, folder: Path, found: Callback, accumulate: int) -> None:
    made = settings(accumulate=accumulate, budget=Budget(max_steps=6), pack_tokens=400)
    fit(
        recipe(data, settings=made, model=ModelConfig(backbone=BackboneConfig(options=WIDE))),
        output_dir=folder,
        config={},
        make_trainer=lambda **keywords: Trainer(
            accelerator="gpu", devices=1, precision="bf16-mixed", **keywords
        ),
        callbacks=[WeightAverage(decay=0.9, every_steps=2), found],
        checkpoint={"every_steps": 100, "every_minutes": None},
    )


@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_peak_is_that_of_the_run(tmp_path: Path, accumulate: int) -> None:
    data, found = make_data(tmp_path / "data"), Peak()
    run(data, tmp_path / "run", found, accumulate)
    assert found.report.is_measured
    # Other packs are shorter, the allocator rounds, and an update needs a little of its own.
    assert found.report.memory.total == pytest.approx(found.bytes, rel=0.15)


def test_a_pack_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    data = make_data(tmp_path / "data")
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    limit = torch.cuda.memory_allocated() + 200 * 2**20
    torch.cuda.set_per_process_memory_fraction(limit / total)
    try:
        with pytest.raises(UserError, match=r"costliest pack \(.*training.pack_tokens"):
            run(data, tmp_path / "run", Peak(), 1)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
