"""Signals: a checkpoint after the step, the same on every rank, one line, an exact continuation."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.training.endings import At, line, steps_kept, told, two_ranks
from tests.training.test_resume import same_curve, same_weights
from tests.training.tiny import in_child, make_data, recipe, train
from vla_nav.training.checkpoint_folder import (
    checkpoint_folders,
    read_checkpoint,
    step_folder,
    step_of,
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def undisturbed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "whole"
    assert in_child(lambda: train(recipe(data), run)) == 0
    return run


@pytest.mark.parametrize(
    ("name", "step", "in_validation", "kept"),
    [("SIGTERM", 7, False, 8), ("SIGTERM", 5, True, 5), ("SIGUSR1", 4, False, 5)],
)
def test_a_signal_has_a_checkpoint_written_and_the_run_continues_exactly(
    data: Path, undisturbed: Path, tmp_path: Path, name: str, step: int, in_validation: bool,
    kept: int,
) -> None:  # fmt: skip
    number = signal.Signals[name]
    send = At(step, lambda: os.kill(os.getpid(), number), in_validation=in_validation)
    run, log = tmp_path / "run", tmp_path / "log"
    asked = {"signals": ("SIGTERM", "SIGUSR1")}
    code = told(lambda: train(recipe(data), run, extra=(send,), checkpoint=asked), log)
    assert code == 128 + number
    assert line(log) == (
        f"vla-nav train: ended by {name} after step {kept}, kept in "
        f"{step_folder(run / 'checkpoints', kept)}; the same command continues"
    )
    assert steps_kept(run)[0] == kept
    assert in_child(lambda: train(recipe(data), run)) == 0
    same_weights(run, undisturbed)
    same_curve(run, undisturbed)


def test_ctrl_c_ends_at_once_and_leaves_the_checkpoint_before(data: Path, tmp_path: Path) -> None:
    run, log = tmp_path / "run", tmp_path / "log"
    send = At(7, lambda: os.kill(os.getpid(), signal.SIGINT))
    assert told(lambda: train(recipe(data), run, extra=(send,)), log) == 130
    assert line(log) == "vla-nav train: interrupted; the same command continues"
    assert steps_kept(run) == [6, 3]


def test_who_handled_the_signal_before_has_it_after_the_checkpoint(
    data: Path, tmp_path: Path
) -> None:
    """As a launcher that puts its job back into the queue and ends it."""
    run, log = tmp_path / "run", tmp_path / "log"

    def requeue(*_: Any) -> None:
        (tmp_path / "requeued").write_text(" ".join(map(str, steps_kept(run))))
        raise SystemExit(77)

    def body() -> None:
        signal.signal(signal.SIGUSR1, requeue)
        send = At(7, lambda: os.kill(os.getpid(), signal.SIGUSR1))
        train(recipe(data), run, extra=(send,), checkpoint={"signals": ["SIGUSR1"]})

    assert told(body, log) == 77
    assert (tmp_path / "requeued").read_text() == "8 6"


def test_a_signal_to_every_process_of_the_job_ends_it_as_well(data: Path, tmp_path: Path) -> None:
    """As a scheduler sends it: the loader's workers live on until the step is done."""
    run, log = tmp_path / "run", tmp_path / "log"

    def body() -> None:
        os.setsid()
        send = At(6, lambda: os.killpg(os.getpgrp(), signal.SIGTERM))
        train(recipe(data, num_workers=2), run, extra=(send,))

    assert told(body, log) == 128 + signal.SIGTERM
    assert steps_kept(run)[0] == 7


@pytest.mark.parametrize(("asked", "code"), [(("SIGTERM", "SIGUSR1"), 138), (("SIGTERM",), -10)])
def test_under_slurm_only_this_checkpoint_is_written(
    data: Path, tmp_path: Path, asked: tuple[str, ...], code: int
) -> None:
    """Lightning's own answer to USR1 is another checkpoint, which a later start would prefer."""
    run, log = tmp_path / "run", tmp_path / "log"
    send = At(4, lambda: os.kill(os.getpid(), signal.SIGUSR1))

    def body() -> None:
        os.environ.update(
            SLURM_JOB_ID="7", SLURM_JOB_NAME="train", SLURM_NTASKS="1", SLURM_PROCID="0",
            SLURM_LOCALID="0", SLURM_NODEID="0", SLURM_NODELIST="localhost",
        )  # fmt: skip
        train(recipe(data), run, extra=(send,), checkpoint={"signals": asked})

    assert told(body, log) == code
    assert not list(run.rglob("hpc_ckpt*"))
    assert step_of(checkpoint_folders(run / "checkpoints")[0]) == (5 if code == 138 else 3)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_signal_to_one_rank_ends_all_of_them_after_the_same_step(
    data: Path, tmp_path: Path, strategy: str
) -> None:
    run, log = tmp_path / "run", tmp_path / "log"
    send = At(6, lambda: os.kill(os.getpid(), signal.SIGTERM), rank=1)
    assert two_ranks(data, run, log, strategy, extra=(send,)) == [143, 143]
    assert steps_kept(run)[0] == 8  # heard at the end of step 7, known to both at that of step 8
    assert Path(f"{log}.1").read_text() == ""  # one says it for all
    assert "ended by SIGTERM after step 8" in line(Path(f"{log}.0"))
    stored = read_checkpoint(step_folder(run / "checkpoints", 8))
    assert len(stored["random"]) == 2
