"""The folder of a profile: files of one run, one process at a time, told how it ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Callback

from tests.training.tiny import cpu_trainer, in_child, make_data, recipe
from vla_nav.errors import UserError
from vla_nav.files import read_json
from vla_nav.profiling.profile_run import profile
from vla_nav.profiling.step_profile import ProfileSettings

FULL = ProfileSettings(warmup_steps=1, steps=1, trace_steps=1, html=True)
NUMBERS = replace(FULL, trace_steps=0, html=False)
PAGE = {f"profile_{name}.{end}" for name in ("step", "groups", "memory") for end in ("png", "svg")}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("files"), num_episodes=12)


def profiled(data: Path, folder: Path, how: ProfileSettings = FULL, **keywords: Any) -> None:
    profile(
        recipe(data),
        how,
        output_dir=folder,
        make_trainer=cpu_trainer,
        **{"progress": lambda line: None, **keywords},
    )


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}


def test_nothing_of_an_earlier_profile_is_left_beside_a_new_one(data: Path, tmp_path: Path) -> None:
    (tmp_path / "profile.html.tmp-123").write_text("a killed one's")
    (tmp_path / "notes.txt").write_text("not a profile's")
    profiled(data, tmp_path)
    assert files(tmp_path) == PAGE | {
        "profile.json", "profile.html", "trace.json.gz", "notes.txt",
    }  # fmt: skip
    profiled(data, tmp_path, NUMBERS)
    assert files(tmp_path) == {"profile.json", "notes.txt"}


def test_the_numbers_come_last(data: Path, tmp_path: Path) -> None:
    profiled(data, tmp_path, NUMBERS)
    (tmp_path / "profile.html").mkdir()  # what the page cannot take the place of
    with pytest.raises(OSError, match=r"profile\.html"):
        profiled(data, tmp_path)
    assert not (tmp_path / "profile.json").exists()
    (tmp_path / "profile.html").rmdir()
    profiled(data, tmp_path)
    assert read_json(tmp_path / "profile.json")["memory"]["course"]


class Meanwhile(Callback):
    """Does something in the middle of the run."""

    def __init__(self, action: Callable[[], Any]) -> None:
        self._action = action

    def on_train_batch_end(self, *_: Any) -> None:
        self._action()


def test_a_second_process_in_the_same_folder_is_refused(data: Path, tmp_path: Path) -> None:
    def second() -> None:
        def attempt() -> None:
            with pytest.raises(UserError, match="is at work here in another process"):
                profiled(data, tmp_path, NUMBERS)

        codes.append(in_child(attempt))

    codes: list[int] = []
    profiled(data, tmp_path, NUMBERS, callbacks=[Meanwhile(second)])
    assert codes
    assert set(codes) == {0}


def test_ctrl_c_is_no_ordinary_end(data: Path, tmp_path: Path) -> None:
    # A shell that starts the tests in the background has them ignore the signal.
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)  # the handler runs between two steps of the interpreter

    with pytest.raises(KeyboardInterrupt):
        profiled(data, tmp_path, callbacks=[Meanwhile(interrupt)])
    assert files(tmp_path) == set()


def test_a_run_that_ends_early_gives_no_numbers(data: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"the run ended after 1 of 4 steps: .*max_time"):
        profile(
            recipe(data),
            FULL,
            output_dir=tmp_path,
            make_trainer=lambda **keywords: cpu_trainer(fast_dev_run=True, **keywords),
            progress=lambda line: None,
        )
    assert files(tmp_path) == set()


def test_several_ranks_in_one_started_process_are_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"trainer\.devices=2.*torchrun --nproc-per-node 2"):
        profile(
            recipe(data),
            NUMBERS,
            output_dir=tmp_path,
            make_trainer=lambda **keywords: cpu_trainer(num_ranks=2, **keywords),
        )


def test_a_trace_says_nothing_about_gpus_that_are_not_there() -> None:
    program = (
        "import torch; from vla_nav.profiling.profile_trace import StepTrace\n"
        "with StepTrace(torch.device('cpu')): torch.ones(3) + 1"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("", "")
