"""A command that needs several processes starts them, and ends as they do."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest
from lightning.pytorch import Trainer

from tests.training.tiny import in_child
from vla_nav.errors import UserError
from vla_nav.training.parallel_launch import num_to_start, start_ranks

BODY = """
import os, signal, sys, time
rank = int(os.environ["RANK"])
open(f"{sys.argv[1]}/{rank}", "w").write(os.environ["WORLD_SIZE"] + os.environ["MASTER_ADDR"])
"""


def launch(folder: Path, then: str, num_ranks: int = 2) -> int:
    """The exit code of ranks that write who they are, and then do what `then` says."""
    script = folder / "rank.py"
    script.write_text(BODY + then)
    return in_child(lambda: os._exit(start_ranks([str(script), str(folder)], num_ranks)))


def test_ranks_know_each_other_and_meet_on_this_machine(tmp_path: Path) -> None:
    assert launch(tmp_path, "", num_ranks=3) == 0
    assert [(tmp_path / str(rank)).read_text() for rank in range(3)] == ["3127.0.0.1"] * 3


def test_a_rank_that_fails_ends_the_others_and_is_heard(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    start = time.monotonic()
    then = "sys.exit(print('broken', file=sys.stderr) or 2) if rank == 1 else time.sleep(60)\n"
    assert launch(tmp_path, then) == 2
    assert capfd.readouterr().err == "broken\n"
    assert time.monotonic() - start < 30


def test_a_killed_rank_ends_the_others_and_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    then = "os.kill(os.getpid(), signal.SIGKILL) if rank == 1 else time.sleep(60)\n"
    assert launch(tmp_path, then) == 128 + signal.SIGKILL
    assert "rank 1 was ended by SIGKILL" in capfd.readouterr().err


LISTENING = """
def keep(number, frame):
    time.sleep(0.2 * rank)  # one is ready before the other
    open(f"{sys.argv[1]}/kept{rank}", "w").write(signal.Signals(number).name)
    sys.exit(128 + number)
signal.signal(signal.SIGTERM, keep)
signal.signal(signal.SIGUSR1, keep)
open(f"{sys.argv[1]}/ready{rank}", "w").close()
time.sleep(60)
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGINT", "SIGHUP"])
def test_a_signal_to_the_parent_reaches_the_ranks(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    number = signal.Signals[name]
    script = tmp_path / "rank.py"
    script.write_text(BODY + LISTENING)

    def send(parent: int) -> None:
        while not all((tmp_path / f"ready{rank}").exists() for rank in range(2)):
            time.sleep(0.05)
        os.kill(parent, number)

    def body() -> None:
        threading.Thread(target=send, args=(os.getpid(),), daemon=True).start()
        os._exit(start_ranks([str(script), str(tmp_path)], 2))

    code, said = in_child(body), capfd.readouterr().err
    assert "death signal" not in said
    if name in ("SIGTERM", "SIGUSR1"):
        assert code == 128 + number
        assert said == ""
        assert (tmp_path / "kept0").read_text() == name
    elif name == "SIGHUP":  # what does not listen is ended by it, and that is told
        assert code == 128 + number
        assert "was ended by SIGHUP, and the others with it; the same command continues" in said
    else:  # Python's own Ctrl-C, which the command line tells in one line
        assert code != 0
        assert "KeyboardInterrupt" in said


def test_who_needs_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    def trainer(**keywords: int) -> Trainer:
        return Trainer(accelerator="cpu", strategy="ddp", logger=False, **keywords)

    assert num_to_start(trainer(devices=1)) == 0
    assert num_to_start(trainer(devices=3)) == 3
    with pytest.raises(UserError, match="srun --ntasks-per-node 3"):
        num_to_start(trainer(devices=3, num_nodes=2))
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert num_to_start(trainer(devices=3)) == 0
