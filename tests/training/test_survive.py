"""What ends a run early leaves one clear line, an exit code and a whole checkpoint to continue."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from torch.utils._python_dispatch import TorchDispatchMode

from tests.training.ranks import as_rank, run_ranks
from tests.training.test_resume import flip_a_bit, same_curve, same_weights
from tests.training.tiny import in_child, make_data, recipe, settings, train
from vla_nav.commands.compose import _guarded
from vla_nav.training.checkpoint_folder import (
    checkpoint_folders,
    read_checkpoint,
    step_folder,
    step_of,
    verify_checkpoint,
)
from vla_nav.training.curve import CurveLogger, read_curve
from vla_nav.training.divergence import FiniteWatch
from vla_nav.training.optimiser import OptimiserSettings
from vla_nav.training.parallel_strategy import ShardedStrategy


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def undisturbed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "whole"
    assert in_child(lambda: train(recipe(data), run)) == 0
    return run


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


def test_what_is_no_number_is_null_in_the_curve(tmp_path: Path) -> None:
    path = tmp_path / "curve.jsonl"
    logger = CurveLogger(path)
    logger.log_metrics({"loss": float("nan"), "gradient_norm": float("inf"), "x": 1.0}, 3)
    assert path.read_text() == '{"step": 3, "loss": null, "gradient_norm": null, "x": 1.0}\n'
    assert read_curve(path) == [{"step": 3, "loss": None, "gradient_norm": None, "x": 1.0}]
