"""Habitat from end to end in one generated house: record, train, evaluate, kill and resume.

house.glb -> 50 episodes of the expert (habitat) -> a policy trained on them -> closed loop
                  kill -9, again: the same set        kill -9 of a worker and of the run:
                                                      the same results, none lost, none twice
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from worlds import await_end, children_of, kill_when, results_of, run_command, start_command

from vla_nav.episodes.lerobot_reader import LeRobotDataset
from vla_nav.episodes.types import STOP

pytestmark = [pytest.mark.habitat, pytest.mark.slow, pytest.mark.timeout(1500)]

NUM_EPISODES = 50
TRAIN_STEPS = 160  # enough to learn 50 episodes of one house by heart; a minute of one core


def habitat(*overrides: str) -> list[str]:
    """Overrides that choose the backend and its interpreter."""
    python = os.environ["VLA_NAV_HABITAT_PYTHON"]
    return ["simulators=habitat", f"simulators.python={python}", *overrides]


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    """A house with 50 episodes in the split `train`, and another one for validation."""
    path = tmp_path_factory.mktemp("house")
    code = run_command(
        "houses",
        f"data.path={path}",
        "houses.num_train=1",
        "houses.num_val_unseen=1",
        f"houses.episodes_per_house={NUM_EPISODES}",
        "num_workers=0",
        f"paths.output_dir={path}/runs",
    )
    assert code == 0
    return path


def record_overrides(world: Path, target: Path) -> list[str]:
    """To record a split into `target`, a folder of the split's name."""
    return habitat(
        f"data.path={world}",
        f"data.split={target.name}",
        f"data.recorded={target}",
        "num_workers=1",
        f"paths.output_dir={target.parent}/run_{target.name}",
    )


@pytest.fixture(scope="module")
def recorded(world) -> Path:
    """The house's episodes as the expert walks them in habitat."""
    target = world / "recorded" / "train"
    assert run_command("record", *record_overrides(world, target)) == 0
    return target


@pytest.fixture(scope="module")
def policy(world, recorded) -> Path:
    """A policy trained on the recorded episodes."""
    other = record_overrides(world, world / "recorded" / "val_unseen")
    assert run_command("record", *other, "record.num_episodes=10") == 0
    common = ["experiment=quickstart", f"data.path={world}", "num_workers=1"]
    for split in ("train", "val_unseen"):
        assert run_command("encode", *common, f"data.split={split}") == 0
    code = run_command(
        "train",
        *common,
        f"training.budget.max_steps={TRAIN_STEPS}",
        "training.budget.max_minutes=null",
        "training.validation.split=val_unseen",
        f"paths.output_dir={world}/train_run",
    )
    assert code == 0
    return world / "train_run" / "policy"


def evaluate_overrides(world: Path, policy: Path, output: Path, *more: str) -> list[str]:
    return habitat(
        f"data.path={world}",
        "data.split=train",
        f"checkpoint={policy}",
        f"paths.output_dir={output}",
        "evaluation.rows=[policy,random,expert]",
        f"evaluation.num_episodes={NUM_EPISODES}",
        "evaluation.deterministic=true",
        "evaluation.num_slots=4",
        "evaluation.num_threads=1",
        "num_workers=2",
        *more,
    )


@pytest.fixture(scope="module")
def whole(world, policy) -> Path:
    """An undisturbed evaluation."""
    folder = world / "whole"
    assert run_command("evaluate", *evaluate_overrides(world, policy, folder)) == 0
    return folder


def rows_of(folder: Path) -> dict[str, dict]:
    report = json.loads((folder / "report.json").read_text())
    return {row["name"]: row for row in report["rows"]}


def num_results(folder: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in folder.glob("results-*"))


def wait_for(is_time: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 600
    while not is_time():
        assert process.poll() is None, process.stdout.read().decode()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_expert_s_episodes_end_at_their_goals(recorded):
    dataset = LeRobotDataset(recorded)
    episodes = list(dataset)
    print(f"{len(episodes)} episodes, {sum(len(one.steps) for one in episodes)} decisions")
    assert len(episodes) >= 0.98 * NUM_EPISODES
    for episode in episodes:
        assert episode.steps[-1].executed == (STOP,)
        assert all(step.labels[0].primitives for step in episode.steps)


def test_a_killed_recording_is_finished_by_a_second_start(world, recorded):
    target = world / "killed" / "train"
    process = start_command("record", *record_overrides(world, target))
    begun: list[int] = []
    seen_at: list[float] = []

    def is_at_work() -> bool:
        begun[:] = [pid for child in children_of(process.pid) for pid in (child, *descend(child))]
        if any(b"worker.py" in command_of(pid) for pid in begun):
            seen_at.append(time.monotonic())
        return bool(seen_at) and time.monotonic() > seen_at[0] + 1.0

    kill_when(process, is_at_work)
    await_end(begun)
    assert not (target / "meta" / "info.json").exists()
    assert run_command("record", *record_overrides(world, target)) == 0
    ours = {path.relative_to(target): path.read_bytes() for path in files_below(target)}
    theirs = {path.relative_to(recorded): path.read_bytes() for path in files_below(recorded)}
    assert ours == theirs


def descend(pid: int) -> list[int]:
    try:
        children = children_of(pid)
    except FileNotFoundError:
        return []
    return [*children, *(below for child in children for below in descend(child))]


def files_below(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file() and "parts" not in path.parts)


def test_the_trained_policy_beats_chance_and_the_expert_succeeds(whole):
    rows = rows_of(whole)
    print({name: (row["n"], row["sr"], row["spl"], row["ne_m"]) for name, row in rows.items()})
    assert {row["n"] for row in rows.values()} == {NUM_EPISODES}
    assert rows["expert"]["sr"] >= 0.98
    assert rows["expert"]["sr_1m"] >= 0.98
    # It knows these routes by heart: it fails only where habitat shows or moves it otherwise than
    # when they were recorded.
    assert rows["policy"]["sr"] >= 0.8
    assert rows["random"]["sr"] < 0.2


def workers_of(pid: int) -> list[int]:
    """The simulator workers among a process's children."""
    return [child for child in children_of(pid) if b"worker.py" in command_of(child)]


def command_of(pid: int) -> bytes:
    """A process's command line; empty once it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return b""


def test_a_killed_worker_costs_no_episode(world, policy, whole):
    folder = world / "worker_killed"
    process = start_command("evaluate", *evaluate_overrides(world, policy, folder))
    for share in (0.2, 0.5):
        wait_for(lambda: num_results(folder) >= share * 3 * NUM_EPISODES, process)  # noqa: B023
        os.kill(workers_of(process.pid)[0], signal.SIGKILL)
    output = process.communicate()[0].decode()
    assert process.returncode == 0, output
    results = results_of(folder)
    assert sum(record["attempts"] == 2 for record in results.values()) >= 2
    once = {key: {**record, "attempts": 1} for key, record in results.items()}
    assert once == results_of(whole)
    timing = json.loads((folder / "report.json").read_text())["timing"]
    assert timing["num_restarts"] == 2


def test_a_killed_run_is_finished_by_a_second_start(world, policy, whole):
    folder = world / "run_killed"
    process = start_command("evaluate", *evaluate_overrides(world, policy, folder))
    children: list[int] = []

    def is_half_done() -> bool:
        children[:] = children_of(process.pid) or children
        return num_results(folder) >= 1.5 * NUM_EPISODES

    wait_for(is_half_done, process)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    await_end(children)
    assert num_results(folder) < 3 * NUM_EPISODES
    assert not (folder / "report.json").exists()
    assert run_command("evaluate", *evaluate_overrides(world, policy, folder)) == 0
    assert results_of(folder) == results_of(whole)
    assert rows_of(folder) == rows_of(whole)


def test_the_report_says_habitat(whole):
    report = json.loads((whole / "report.json").read_text())
    assert report["run"]["backend"] == "habitat"
    assert report["run"]["simulator_version"].startswith("0.")
