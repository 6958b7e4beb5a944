"""What ranks agree on without waiting for a device: signals, the clock, the dry run's verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Callback
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from torch import distributed

from tests.training.endings import guarded, line
from tests.training.ranks import as_rank, run_ranks
from tests.training.tiny import make_data, recipe, settings, train
from vla_nav.training import dry_run
from vla_nav.training.schedule import Budget

NUM_RANKS = 2
EXCHANGES = ("all_reduce", "broadcast", "broadcast_object_list", "all_gather_object", "barrier")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data"))


class Exchanges(Callback):
    """Notes what is exchanged over the group of all devices between two steps."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._own = {name: getattr(distributed, name) for name in EXCHANGES}

    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        if trainer.global_step == 5:
            self._stop()
            if trainer.is_global_zero:  # whose clock counts for all
                module.progress.stopwatch.earlier_s += 3600
        elif trainer.global_step == 2:  # heard by every name that loops and steps call it by
            for name in EXCHANGES:
                setattr(distributed, name, self._noting(name))

    def on_exception(self, *_: Any) -> None:
        self._stop()

    def on_train_end(self, *_: Any) -> None:
        self._stop()

    def _stop(self) -> None:
        for name, own in self._own.items():
            setattr(distributed, name, own)

    def _noting(self, name: str) -> Any:
        def noted(*arguments: Any, **keywords: Any) -> Any:
            if keywords.get("group") is None:
                with self._path.open("a") as file:
                    file.write(f"{name}\n")
            return self._own[name](*arguments, **keywords)

        return noted


@pytest.mark.parametrize("budget", [Budget(max_steps=6), Budget(max_minutes=60)], ids=str)
def test_a_step_exchanges_its_totals_and_gradients_alone(
    data: Path, tmp_path: Path, budget: Budget
) -> None:
    assert hasattr(_TrainingEpochLoop, "_broadcast_sigterm_tensor")  # what EpochLoop leaves out

    def rank(number: int, port: int) -> None:
        as_rank(number, NUM_RANKS, port)
        made = recipe(data, settings=settings(budget=budget, log_every_steps=100))
        noted = (Exchanges(tmp_path / f"rank{number}"),)
        found = train(made, tmp_path / "run", num_ranks=NUM_RANKS, extra=noted, every_steps=100)
        (tmp_path / f"steps{number}").write_text(str(found["steps"]))

    assert run_ranks(rank, NUM_RANKS) == [0, 0]
    for number in range(NUM_RANKS):  # DDP's exchange of gradients is not called by these names
        assert (tmp_path / f"steps{number}").read_text() == "6"
        assert (tmp_path / f"rank{number}").read_text().split() == ["all_reduce"] * 3


def test_a_dry_run_that_fits_on_one_rank_alone_ends_both(data: Path, tmp_path: Path) -> None:
    def rank(number: int, port: int) -> None:
        as_rank(number, NUM_RANKS, port)
        if number == 1:
            dry_run.free_bytes = lambda device: 0
        made = recipe(data, settings=settings())
        log = tmp_path / f"log{number}"
        raise SystemExit(guarded(lambda: train(made, tmp_path / "run", num_ranks=NUM_RANKS), log))

    assert run_ranks(rank, NUM_RANKS) == [2, 2]
    told = [line(tmp_path / f"log{number}") for number in range(NUM_RANKS)]
    assert told[0] == told[1]
    assert "costliest pack" in told[0]
