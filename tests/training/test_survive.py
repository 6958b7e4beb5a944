"""Processes that die, data that are damaged, random generators: a run tells and continues."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback

from tests.training.endings import At, line, steps_kept, told, two_ranks
from tests.training.test_resume import flip_a_bit
from tests.training.tiny import in_child, make_data, recipe, settings, train
from vla_nav.training.checkpoint_folder import (
    step_folder,
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data"))


def test_a_killed_rank_ends_the_other_in_seconds(data: Path, tmp_path: Path) -> None:
    run, log = tmp_path / "run", tmp_path / "log"
    killed_s = multiprocessing.get_context("fork").Value("d", 0.0)

    def kill() -> None:
        killed_s.value = time.monotonic()
        os.kill(os.getpid(), signal.SIGKILL)

    assert two_ranks(data, run, log, extra=(At(7, kill, rank=1),)) == [1, -signal.SIGKILL]
    assert time.monotonic() - killed_s.value < 30  # of a wait of 30 minutes for a collective
    said = line(Path(f"{log}.0"))
    assert "another rank of this run has ended" in said
    assert said.endswith(f"the newest checkpoint is {step_folder(run / 'checkpoints', 6)}; "
                         "the same command continues")  # fmt: skip
    assert steps_kept(run) == [6, 3]
    # One process with the packs of both goes on from there.
    assert in_child(lambda: train(recipe(data, settings=settings(accumulate=4)), run)) == 0
    assert steps_kept(run)[0] == 12


def test_a_killed_loader_worker_is_told(data: Path, tmp_path: Path) -> None:
    run, log = tmp_path / "run", tmp_path / "log"

    def kill() -> None:
        for process in multiprocessing.active_children():
            os.kill(process.pid, signal.SIGKILL)

    body = lambda: train(recipe(data, num_workers=1), run, extra=(At(4, kill),))  # noqa: E731
    assert told(body, log) == 1
    assert "a loader worker is gone (out of memory?" in line(log)
    assert steps_kept(run)[0] >= 3


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_damaged_file_of_the_data_is_named_and_the_checkpoint_stays(
    data: Path, tmp_path: Path, num_workers: int
) -> None:
    """The run goes on from a checkpoint on data of which a file has been damaged meanwhile."""
    run, log, mine = tmp_path / "run", tmp_path / "log", tmp_path / "data"
    shutil.copytree(data, mine)
    stop = At(6, lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert told(lambda: train(recipe(mine), run, extra=(stop,)), tmp_path / "first") == 143
    kept = steps_kept(run)
    whole = {path: path.read_bytes() for path in damageable(mine)}
    assert len(whole) >= 2
    for path, content in whole.items():
        flip_a_bit(path)
        log.unlink(missing_ok=True)
        body = lambda: train(recipe(mine, num_workers=num_workers), run)  # noqa: E731
        assert told(body, log) == 2, path
        assert str(path) in line(log)
        assert steps_kept(run) == kept
        path.write_bytes(content)
    assert in_child(lambda: train(recipe(mine), run)) == 0


def damageable(data: Path) -> list[Path]:
    """The files that training reads episodes from, and frames."""
    shards = data.glob("cache/**/shard-*.safetensors")
    return [*data.glob("recorded/train/meta/episodes/**/*.parquet"), *shards]


class Draw(Callback):
    """What the process's generators give in every step."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        values = (torch.rand(()).item(), np.random.rand(), np.random.randn(), random.gauss(0, 1))
        with open(self.path, "a") as handle:
            handle.write(f"{trainer.global_step} {values}\n")


def test_random_generators_go_on_where_they_were(data: Path, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole.txt", tmp_path / "parts.txt"
    assert in_child(lambda: train(recipe(data), tmp_path / "a", extra=(Draw(whole),))) == 0
    stop = At(6, lambda: os.kill(os.getpid(), signal.SIGTERM))
    run = tmp_path / "b"
    body = lambda: train(recipe(data), run, extra=(Draw(parts), stop))  # noqa: E731
    assert told(body, tmp_path / "log") == 143
    assert in_child(lambda: train(recipe(data, num_workers=1), run, extra=(Draw(parts),))) == 0
    assert len(set(whole.read_text().splitlines())) == 12
    assert parts.read_text() == whole.read_text()
