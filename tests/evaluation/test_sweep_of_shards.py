"""Shards as processes of one command: one report, nothing twice, a lost job is a non-zero exit."""

import contextlib
import importlib.util
import os
import signal
import time
from pathlib import Path

import pytest
from worlds import await_end, evaluate_config, report_of, results_of, start_command

from vla_nav.evaluation.runs import evaluate_from
from vla_nav.viewing.evaluation_run import open_run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("submitit") is None, reason="needs the extra slurm (submitit)"
    ),
]


def sweep(world, folder, *overrides):
    return start_command(
        "evaluate",
        "-m",
        "hydra/launcher=processes",
        "evaluation.num_shards=2",
        "evaluation.shard=range(2)",
        f"data.path={world}",
        f"paths.output_dir={folder}",
        "evaluation.num_episodes=null",
        "evaluation.rows=[random,expert]",
        "num_workers=0",
        *overrides,
    )


def test_processes_of_one_command_make_one_report_and_a_killed_one_is_told(world, tmp_path):
    folder = tmp_path / "swept"
    first = sweep(world, folder, "evaluation.num_slots=1")
    jobs = await_jobs(first, folder, 2)
    job = stopped_within_its_shard(jobs, folder, shard=1)
    os.kill(job, signal.SIGKILL)
    told = first.communicate()[0].decode()
    assert first.returncode != 0
    assert "the same command continues" in told
    await_end(jobs)
    assert 0 < len(results_of(folder)) < 30
    assert not (folder / "report.json").exists()
    second = sweep(world, folder)
    told = second.communicate()[0].decode()
    assert second.returncode == 0, told
    assert "the sweep's evaluations" in told  # though the jobs print into files of their own
    assert f"report: {folder}/report.html" in told
    assert report_of(folder)["is_complete"]
    assert Path(open_run(folder).data["episodes"]).is_file()  # what `view` shows
    whole = tmp_path / "whole"
    assert evaluate_from(evaluate_config(world, whole)) == 0
    assert results_of(folder) == results_of(whole)
    assert report_of(folder)["rows"] == report_of(whole)["rows"]


def jobs_in(folder: Path) -> list[int]:
    """Live processes that run a job of the sweep in `folder`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"submitit.core._submit" in words and any(str(folder).encode() in w for w in words):
            found.append(int(path.parent.name))
    return found


def await_jobs(command, folder: Path, count: int) -> list[int]:
    """The sweep's jobs as soon as all have started, seconds before they write anything."""
    deadline = time.monotonic() + 60
    while len(jobs := jobs_in(folder)) < count:
        assert command.poll() is None, command.stdout.read().decode()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return jobs


def stopped_within_its_shard(jobs: list[int], folder: Path, shard: int) -> int:
    """The job that writes the shard's results, stopped as soon as it has opened their file.

    The jobs run in slices of milliseconds, so that a busy machine cannot let it end unseen.
    """
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        signal_all(jobs, signal.SIGCONT)
        time.sleep(0.005)
        signal_all(jobs, signal.SIGSTOP)
        writer = next((pid for pid in jobs if writes_shard(pid, shard)), None)
        if writer is not None:
            signal_all([pid for pid in jobs if pid != writer], signal.SIGCONT)
            return writer
    raise AssertionError(f"nobody wrote shard {shard}")


def signal_all(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def writes_shard(pid: int, shard: int) -> bool:
    """Whether a process holds the shard's results open."""
    try:
        links = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:  # it ended, or the descriptor was closed meanwhile
        return False
    return any(f"results-{shard:03d}-of" in link for link in links)
