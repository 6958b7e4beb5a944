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
TRAIN_MINUTES = float(os.environ.get("VLA_NAV_HABITAT_TRAIN_MINUTES", "1"))


def habitat(*overrides: str) -> list[str]:
    """Overrides that choose the backend and its interpreter."""
    python = os.environ["VLA_NAV_HABITAT_PYTHON"]
    return ["simulators=habitat", f"simulators.python={python}", *overrides]


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    """One house with 50 episodes in the split `train`, in habitat's walkable area, too."""
    path = tmp_path_factory.mktemp("house")
    code = run_command(
        "houses",
        f"data.path={path}",
        "houses.num_train=1",
        "houses.num_val_unseen=0",
        f"houses.episodes_per_house={NUM_EPISODES}",
        "num_workers=0",
        f"paths.output_dir={path}/runs",
    )
    assert code == 0
    return path


def record_overrides(world: Path, target: Path) -> list[str]:
    return habitat(
        f"data.path={world}",
        "data.split=train",
        f"data.recorded={target}",
        "record.decision=turn_then_forward(4)",
        f"paths.output_dir={target.parent}/run_{target.name}",
    )


@pytest.fixture(scope="module")
def recorded(world) -> Path:
    """The house's episodes as habitat's expert walks them."""
    target = world / "recorded" / "train"
    assert run_command("record", *record_overrides(world, target), "num_workers=1") == 0
    return target


@pytest.fixture(scope="module")
def policy(world, recorded) -> Path:
    """A policy trained on the recorded episodes."""
    common = [f"data.path={world}", "num_workers=1"]
    assert run_command("encode", "experiment=quickstart", *common, "data.split=train") == 0
    code = run_command(
        "train",
        "experiment=quickstart",
        *common,
        f"training.budget.max_minutes={TRAIN_MINUTES}",
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
    episodes = list(dataset.episodes())
    print(f"{len(episodes)} episodes, {sum(len(one.steps) for one in episodes)} decisions")
    assert len(episodes) >= 0.98 * NUM_EPISODES
    for episode in episodes:
        assert episode.steps[-1].executed == (STOP,)
        assert all(step.labels[0].primitives for step in episode.steps)


def test_a_killed_recording_is_finished_by_a_second_start(world, recorded):
    target = world / "killed" / "train"
    process = start_command("record", *record_overrides(world, target), "num_workers=1")
    begun: list[int] = []

    def is_at_work() -> bool:
        begun[:] = [pid for child in children_of(process.pid) for pid in (child, *descend(child))]
        return time.monotonic() > started + 8

    started = time.monotonic()
    kill_when(process, is_at_work)
    await_end(begun)
    assert run_command("record", *record_overrides(world, target), "num_workers=1") == 0
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
    assert rows["policy"]["sr"] > rows["random"]["sr"]


def test_a_killed_worker_costs_no_episode(world, policy, whole):
    folder = world / "worker_killed"
    process = start_command("evaluate", *evaluate_overrides(world, policy, folder))
    for share in (0.2, 0.5):
        wait_for(lambda: num_results(folder) >= share * 3 * NUM_EPISODES, process)  # noqa: B023
        os.kill(children_of(process.pid)[0], signal.SIGKILL)
    output = process.communicate()[0].decode()
    assert process.returncode == 0, output
    assert results_of(folder) == results_of(whole)
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
    assert report["conditions"]["backend"] == "habitat"
