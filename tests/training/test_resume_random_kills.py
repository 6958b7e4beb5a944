"""kill -9 at random moments of a training: every continuation ends with the same bits.

    undisturbed   |----------------------------------------------| weights, optimiser, curve
    killed        |-----------x                                    at a random share of that time
                           |--------------------------------------| the same weights and curve

The run writes a checkpoint every second step and validates every fifth, so that kills fall into
steps, validations, the writing of checkpoints and of the policy, and the start.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.training.test_resume import same_weights
from tests.training.tiny import make_data, recipe, settings, train
from vla_nav.training.checkpoint_folder import checkpoint_folders, verify_checkpoint
from vla_nav.training.curve import read_curve
from vla_nav.training.schedule import Budget
from vla_nav.training.settings import ValidationSettings

SETTINGS = settings(
    budget=Budget(max_steps=40), validation=ValidationSettings(holdout_share=0.2, every_steps=5)
)


class Whole(NamedTuple):
    """The undisturbed run and how long it took."""

    run: Path
    seconds: float


def start(data: Path, run: Path, num_workers: int = 0) -> multiprocessing.Process:
    made = recipe(data, settings=SETTINGS, num_workers=num_workers)

    def body() -> None:
        os.setsid()
        train(made, run, every_steps=2)

    process = multiprocessing.get_context("fork").Process(target=body)
    process.start()
    return process


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    run = tmp_path_factory.mktemp("runs") / "whole"
    begun = time.monotonic()
    process = start(data, run)
    process.join(120)
    assert process.exitcode == 0
    return Whole(run, time.monotonic() - begun)


def kill_after(data: Path, run: Path, seconds: float, num_workers: int = 0) -> bool:
    """Start or continue the run and kill it; whether the kill came before its end."""
    process = start(data, run, num_workers)
    time.sleep(seconds)
    os.kill(process.pid, signal.SIGKILL)
    process.join(60)
    assert process.exitcode in (-signal.SIGKILL, 0)
    for folder in checkpoint_folders(run / "checkpoints"):
        verify_checkpoint(folder)  # one that stands under its name is whole
    return process.exitcode != 0


def moment(run: Path) -> str:
    """What a kill fell into, by what it left."""
    leftovers = sorted(path.name for path in run.rglob("*.tmp-*"))
    if leftovers:
        return "writing " + leftovers[0].partition(".tmp-")[0].partition("_0")[0]
    rows = read_curve(run / "curve.jsonl")
    return f"after {rows[-1]['step']:.0f}" if rows else "start"


def same_run(run: Path, whole: Path) -> None:
    same_weights(run, whole)
    rows = [
        [{k: v for k, v in row.items() if k != "episodes_per_s"} for row in read_curve(path)]
        for path in (run / "curve.jsonl", whole / "curve.jsonl")
    ]
    assert rows[0] == rows[1]
    assert [row["step"] for row in rows[0] if "loss" in row] == list(range(2, 41, 2))
    assert [row["step"] for row in rows[0] if "val/loss" in row] == list(range(5, 41, 5))
    assert not list(run.rglob("*.tmp-*"))


def finish(data: Path, run: Path) -> None:
    process = start(data, run)
    process.join(120)
    assert process.exitcode == 0


def test_a_run_killed_again_and_again_ends_with_the_same_bits(
    data: Path, whole: Whole, tmp_path: Path
) -> None:
    draw = random.Random(0)
    run = tmp_path / "run"
    kills = sum(
        kill_after(data, run, draw.uniform(0.1, 0.6) * whole.seconds, num_workers)
        for num_workers in (0, 1, 0)
    )
    assert kills >= 2
    finish(data, run)
    same_run(run, whole.run)


@pytest.mark.long
def test_ten_kills_at_random_moments(data: Path, whole: Whole, tmp_path: Path) -> None:
    draw = random.Random(1)
    hit: Counter[str] = Counter()
    number = 0
    while sum(hit.values()) < 10:
        run = tmp_path / str(number)
        number += 1
        if kill_after(data, run, draw.uniform(0.2, 1.0) * whole.seconds):
            hit[moment(run)] += 1
            finish(data, run)
            same_run(run, whole.run)
    print(f"\n{whole.seconds:.1f} s undisturbed; kills fell into: {dict(hit)}")
