"""A disk that fills up while a run writes: one line with the file, and the checkpoint before."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.training.endings import At, line, steps_kept, told
from tests.training.test_resume import same_curve, same_weights
from tests.training.tiny import in_child, make_data, recipe, train
from vla_nav.training.checkpoint_folder import WEIGHTS, checkpoint_folders

DISK_BYTES = 120 * 2**20  # a start wants 64 MiB to spare beside what it writes


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def undisturbed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "whole"
    assert in_child(lambda: train(recipe(data), run)) == 0
    return run


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own."""
    mounted = tmp_path / "disk"
    mounted.mkdir()
    options = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(mounted)]
    if subprocess.run(options, capture_output=True).returncode:
        pytest.skip("mounting a tmpfs is not allowed here")
    yield mounted
    subprocess.run(["umount", "--lazy", str(mounted)], check=True)


def fill(disk: Path, *, leave_bytes: int = 0) -> None:
    """Write a file that takes all that is free, or all but some."""
    block = bytes(4096)
    with open(disk / "filler", "wb", buffering=0) as handle:
        try:
            while True:
                handle.write(block)
        except OSError:
            handle.truncate(handle.tell() - leave_bytes)


def when_opened(text: str, act: Callable[[], None]) -> Callable[[], None]:
    """What installs `act` for the first opening of a file whose path contains `text`."""
    calls: list[str] = []

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and text in str(arguments[0]) and not calls:
            calls.append(event)
            act()

    return lambda: sys.addaudithook(hook)  # of the child that trains


@pytest.mark.parametrize("moment", ["before a checkpoint", "inside a checkpoint"])
def test_a_full_disk_is_told_and_the_checkpoint_before_stays(
    data: Path, undisturbed: Path, disk: Path, tmp_path: Path, moment: str
) -> None:
    run, log = disk / "run", tmp_path / "log"
    act, said = {
        "before a checkpoint": (
            lambda: fill(disk, leave_bytes=2**20),
            f"{run / 'checkpoints'}: a checkpoint needs",
        ),
        "inside a checkpoint": (
            when_opened("manifest.json.tmp-", lambda: fill(disk)),
            f"{run / 'checkpoints/step_00000006'}: no space left on the disk",
        ),
    }[moment]
    assert told(lambda: train(recipe(data), run, extra=(At(5, act),)), log) == 2
    assert said in line(log)
    assert steps_kept(run) == [3]
    (disk / "filler").unlink()
    assert in_child(lambda: train(recipe(data), run)) == 0
    same_weights(run, undisturbed)
    same_curve(run, undisturbed)


@pytest.mark.parametrize("place", ["checkpoint", "curve"])
def test_a_file_that_may_not_grow_is_told(
    data: Path, undisturbed: Path, tmp_path: Path, place: str
) -> None:
    """No file may grow beyond what the first checkpoint, or the curve, took."""
    run, log = tmp_path / "run", tmp_path / "log"

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        kept = run / "curve.jsonl" if place == "curve" else newest(run) / WEIGHTS
        size = kept.stat().st_size + (10 if place == "curve" else -1)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    assert told(lambda: train(recipe(data), run, extra=(At(4, limit),)), log) == 2
    said = line(log)
    name = "checkpoints/step_00000006" if place == "checkpoint" else "curve.jsonl"
    assert f"{run / name}: file too large" in said
    assert steps_kept(run) == [3]
    assert in_child(lambda: train(recipe(data), run)) == 0
    same_weights(run, undisturbed)
    same_curve(run, undisturbed)


def newest(run: Path) -> Path:
    return checkpoint_folders(run / "checkpoints")[0]
