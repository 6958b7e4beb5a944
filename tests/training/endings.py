"""Runs that something ends, and what they say and leave, for tests of training that survives."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback

from tests.training.ranks import as_rank, run_ranks
from tests.training.tiny import in_child, recipe, settings, train
from vla_nav.commands.compose import _guarded
from vla_nav.training.checkpoint_folder import (
    checkpoint_folders,
    read_checkpoint,
    step_of,
    verify_checkpoint,
)
from vla_nav.training.parallel_strategy import ShardedStrategy


class At(Callback):
    """Calls `act` in a step, or in a validation, of one rank."""

    def __init__(
        self, step: int, act: Callable[[], Any], *, rank: int = 0, in_validation: bool = False
    ) -> None:
        self.step, self.act, self.rank, self.in_validation = step, act, rank, in_validation

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        is_here = trainer.global_step == self.step and trainer.global_rank == self.rank
        if is_here and not self.in_validation:
            self.act()

    def on_validation_batch_start(self, trainer: Any, *_: Any) -> None:
        if self.in_validation and trainer.global_step == self.step:
            self.act()


def told(body: Callable[[], Any], log: Path) -> int:
    """Run `body` as the command line does, in a process whose stderr is `log`; its exit code."""

    def child() -> None:
        raise SystemExit(guarded(body, log))

    return in_child(child)


def guarded(body: Callable[[], Any], log: Path) -> int:
    """Run `body` in this process as the command line does, with its words in `log`."""
    sys.stderr = open(log, "a", buffering=1)  # noqa: SIM115 (of a process that ends)

    def command() -> int:
        body()
        return 0

    return _guarded("train", command)


def line(log: Path) -> str:
    """What the command said, which is one line."""
    said = [text for text in log.read_text().splitlines() if text.startswith("vla-nav train: ")]
    assert len(set(said)) == 1, log.read_text()
    assert "Traceback" not in log.read_text()
    return said[0]


def steps_kept(run: Path) -> list[int]:
    folders = checkpoint_folders(run / "checkpoints")
    assert not list((run / "checkpoints").glob("*.tmp-*"))
    for folder in folders:
        verify_checkpoint(folder)
        weights = read_checkpoint(folder)["state_dict"]
        assert all(bool(torch.isfinite(value).all()) for value in weights.values())
    return [step_of(folder) for folder in folders]


def two_ranks(
    data: Path, run: Path, log: Path, strategy: str = "ddp", **given: Any
) -> list[int | None]:
    """A run of two processes, each with its log."""

    def rank(number: int, port: int) -> None:
        as_rank(number, 2, port)
        made = recipe(data, settings=settings(accumulate=2))
        spread = ShardedStrategy() if strategy == "fsdp" else strategy
        body = lambda: train(made, run, num_ranks=2, strategy=spread, **given)  # noqa: E731
        raise SystemExit(guarded(body, Path(f"{log}.{number}")))

    return run_ranks(rank, 2)
