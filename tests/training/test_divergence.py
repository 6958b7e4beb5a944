"""A loss that is no number: named with its step and episodes, never saved, null in the curve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from torch.utils._python_dispatch import TorchDispatchMode

from tests.training.endings import line, steps_kept, told, two_ranks
from tests.training.tiny import make_data, recipe, settings, train
from vla_nav.training.checkpoint_folder import (
    step_folder,
)
from vla_nav.training.curve import CurveLogger, read_curve
from vla_nav.training.divergence import FiniteWatch
from vla_nav.training.optimiser import OptimiserSettings


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data"))


def test_a_loss_that_diverges_names_step_and_episodes_and_is_never_saved(
    data: Path, tmp_path: Path
) -> None:
    run, log = tmp_path / "run", tmp_path / "log"
    wild = settings(
        optimiser=OptimiserSettings(learning_rate=1e25, clip_norm=0.0), warmup_share=0.9
    )
    body = lambda: train(recipe(data, settings=wild), run, every_steps=1)  # noqa: E731
    assert told(body, log) == 2
    said = line(log)
    step = int(said.split("step ")[1].split(":")[0])
    assert 1 <= step <= 12
    assert "the loss is nan" in said
    assert "its packs hold toy/train//" in said
    kept = steps_kept(run)
    assert kept == ([] if step == 1 else [step - 1] if step == 2 else [step - 1, step - 2])
    assert told(body, log) == 2  # the same steps again
    assert steps_kept(run) == kept
    line(log)  # word for word


class SpoilLoss(Callback):
    """The model's output is infinite in one step, on one rank."""

    def __init__(self, step: int, rank: int) -> None:
        self.step, self.rank = step, rank

    def on_train_start(self, trainer: Any, module: Any) -> None:
        def spoil(head: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
            is_here = trainer.training and trainer.global_step == self.step
            return output * float("inf" if is_here and trainer.global_rank == self.rank else 1)

        module.model.projector.register_forward_hook(spoil)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_the_rank_that_met_it_is_named(data: Path, tmp_path: Path, strategy: str) -> None:
    run, log = tmp_path / "run", tmp_path / "log"
    assert two_ranks(data, run, log, strategy, extra=(SpoilLoss(7, 1),)) == [2, 2]
    said = line(Path(f"{log}.0"))
    assert Path(f"{log}.1").read_text() == ""
    assert "step 8: the loss is nan" in said
    assert "its packs of rank 1 hold toy/train//" in said
    assert f"{step_folder(run / 'checkpoints', 6)} is from before it" in said
    assert steps_kept(run) == [6, 3]


class _Reads(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.num = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.num += "_local_scalar_dense" in str(function)
        return function(*args, **(kwargs or {}))


def test_watching_reads_nothing_from_the_device_and_keeps_the_first_step() -> None:
    watch, device = FiniteWatch(), torch.device("cpu")
    bad, good = torch.tensor(float("nan")), torch.tensor(1.0)
    with _Reads() as reads:
        for step in range(1, 9):
            loss = bad if step == 5 else good
            norm = torch.tensor(float("inf")) if step in (5, 7) else good
            watch.note(step, loss, norm)
    assert reads.num == 0
    assert watch.first(device)[0] == 5
    assert torch.isnan(watch.first(device)[1])
    with _Reads() as reads:
        bool(bad)
    assert reads.num == 1  # what would have been seen


def test_what_is_no_number_is_null_in_the_curve(tmp_path: Path) -> None:
    path = tmp_path / "curve.jsonl"
    logger = CurveLogger(path)
    logger.log_metrics({"loss": float("nan"), "gradient_norm": float("inf"), "x": 1.0}, 3)
    assert path.read_text() == '{"step": 3, "loss": null, "gradient_norm": null, "x": 1.0}\n'
    assert read_curve(path) == [{"step": 3, "loss": None, "gradient_norm": None, "x": 1.0}]
