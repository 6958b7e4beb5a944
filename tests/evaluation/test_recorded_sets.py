"""Recorded sets: the same files for any workers and kills, refused requests, deaths survived."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from worlds import (
    SMALL_CAMERA,
    await_end,
    body_of,
    children_of,
    episodes_of,
    files_of,
    first_scene,
    kill_when,
    record_config,
    start_command,
)

from vla_nav.actions.decisions import DecisionRule
from vla_nav.episodes.lerobot_reader import LeRobotDataset
from vla_nav.episodes.types import Goal
from vla_nav.errors import UserError
from vla_nav.evaluation.record_run import record, record_from
from vla_nav.evaluation.record_units import recorded_twice
from vla_nav.evaluation.recording import RecordSettings, Skipped, record_episode
from vla_nav.simulators.client import WorkerProcess
from vla_nav.simulators.opening import SimulatorSetup
from vla_nav.simulators.remote import RemoteSimulator

RULE = DecisionRule.parse("turn_then_forward(4)")


@pytest.fixture(scope="module")
def config(world):
    return record_config(world)


@pytest.fixture(scope="module")
def simulator(config):
    return first_scene(config)


def settings_of(config, **changes):
    return RecordSettings(body_of(config), RULE, **{"seed": 0, **changes})


def write(config, root: Path, *, num_workers: int, episodes=None):
    everything, scenes = episodes_of(config)
    return record(
        everything if episodes is None else episodes,
        scenes=scenes,
        root=root,
        settings=settings_of(config, perturbation=0.2),
        simulator=SimulatorSetup.of(config["simulators"]),
        storage="png",
        num_workers=num_workers,
        recording={"backend": "mesh"},
    )


def test_the_files_are_the_same_for_any_number_of_workers(config, tmp_path):
    summaries = [write(config, tmp_path / str(n), num_workers=n) for n in (0, 3)]
    assert [summary.num_recorded for summary in summaries] == [15, 15]
    first, second = (files_of(tmp_path / str(n)) for n in (0, 3))
    assert first == second
    dataset = LeRobotDataset(tmp_path / "0")
    order = [episode.key for episode in episodes_of(config)[0]]
    assert [dataset[i].key for i in range(len(dataset))] == order


def test_a_killed_recording_is_finished_by_a_second_start(config, world, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    options = [
        "data.split=val_unseen",
        f"data.path={world}",
        SMALL_CAMERA,
        "record.perturbation=0.2",
    ]

    def overrides(root):
        return [*options, f"data.recorded={root}", f"paths.output_dir={tmp_path}/runs"]

    process = start_command("record", *overrides(killed), "num_workers=2")
    children: list[int] = []

    def has_a_part() -> bool:
        children[:] = children_of(process.pid) or children
        return any((killed / "parts").glob("part-*.arrow"))

    kill_when(process, has_a_part)
    await_end(children)  # workers do not outlive the killed main process
    assert not (killed / "meta" / "info.json").exists()
    for root in (killed, whole):
        assert record_from(record_config(world, *overrides(root), "num_workers=0")) == 0
    assert files_of(killed) == files_of(whole)


def test_a_finished_set_is_left_alone_and_another_request_is_refused(config, tmp_path):
    episodes = episodes_of(config)[0]
    nowhere = replace(episodes[1], goals=(Goal((500.0, 0.0, 500.0), 3.0),))
    asked = [episodes[0], nowhere]
    summary = write(config, tmp_path / "set", num_workers=0, episodes=asked)
    assert summary.num_recorded == 1
    assert [one["episode_id"] for one in summary.skipped] == [nowhere.episode_id]
    before = files_of(tmp_path / "set")
    assert json.loads(before["skipped.json"])[0]["reason"]
    again = write(config, tmp_path / "set", num_workers=0, episodes=asked)
    assert (again.num_recorded, again.num_before) == (0, 2)
    with pytest.raises(UserError, match="3 are asked for"):
        write(config, tmp_path / "set", num_workers=0, episodes=episodes[:3])
    config_25 = {**config, "simulators": {**config["simulators"]}}
    with pytest.raises(UserError, match=r"perturbation=0\.2, now it is 0\.0"):
        record(
            asked,
            scenes=episodes_of(config_25)[1],
            root=tmp_path / "set",
            settings=settings_of(config_25),
            simulator=SimulatorSetup("mesh", {}),
            storage="png",
            num_workers=0,
            recording={"backend": "mesh"},
        )
    assert files_of(tmp_path / "set") == before


def test_a_set_without_any_recordable_episode_is_an_error(config, tmp_path):
    episode = episodes_of(config)[0][0]
    nowhere = replace(episode, goals=(Goal((500.0, 0.0, 500.0), 3.0),))
    with pytest.raises(UserError, match="none of the 1 episodes could be recorded"):
        write(config, tmp_path / "set", num_workers=0, episodes=[nowhere])


def test_a_fault_before_the_first_part_binds_nobody_to_its_settings(config, tmp_path):
    episodes, scenes = episodes_of(config)
    wrong = {scene: str(tmp_path / "lost.glb") for scene in scenes}
    asked = {"root": tmp_path / "set", "storage": "png", "num_workers": 0}
    with pytest.raises(UserError, match=r"lost\.glb: no such scene file"):
        record(
            episodes[:1],
            scenes=wrong,
            settings=settings_of(config, max_primitives=99),
            simulator=SimulatorSetup("mesh", {}),
            recording={"backend": "mesh"},
            **asked,
        )
    summary = write(config, tmp_path / "set", num_workers=0, episodes=episodes[:1])
    assert summary.num_recorded == 1


def test_two_processes_do_not_record_into_one_folder(config, tmp_path):
    lock = tmp_path / "set" / "parts" / ".lock"
    lock.parent.mkdir(parents=True)
    script = (
        "import fcntl, sys\n"
        "handle = open(sys.argv[1], 'w')\n"
        "fcntl.lockf(handle, fcntl.LOCK_EX)\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", script, str(lock)], stdin=pipe, stdout=pipe, text=True
    ) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(UserError, match="`vla-nav record` is at work here in another process"):
            write(config, tmp_path / "set", num_workers=0)
        other.stdin.close()
    episodes = episodes_of(config)[0][:1]
    assert write(config, tmp_path / "set", num_workers=0, episodes=episodes).num_recorded == 1
    assert not lock.exists()


def test_a_full_disk_is_noticed_before_any_work(config, tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 1000})()
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage)
    with pytest.raises(UserError, match="MiB are free"):
        write(config, tmp_path / "set", num_workers=0)
    assert not (tmp_path / "set").exists()


def test_missing_scenes_and_too_many_episodes_are_named(world, tmp_path):
    where = f"data.recorded={tmp_path}/set"
    with pytest.raises(UserError, match=r"record\.num_episodes=99"):
        record_from(record_config(world, where, "record.num_episodes=99"))
    with pytest.raises(UserError, match="scenes folder"):
        record_from(record_config(world, where, f"data.scenes={tmp_path}/none"))
    assert not (tmp_path / "set").exists()


def test_frames_survive_the_way_through_the_data_set(config, tmp_path):
    write(config, tmp_path / "set", num_workers=0, episodes=episodes_of(config)[0][:2])
    dataset = LeRobotDataset(tmp_path / "set")
    episode = dataset[0]
    assert episode.embodiment == body_of(config)
    frame = dataset.frames.read(episode.steps[0].frames["front"])
    assert frame.shape == (12, 16, 3)
    assert np.ptp(frame) > 0


class Mortal(RemoteSimulator):
    """A simulator in a process of its own, whose process is killed before some of its looks."""

    def __init__(self, body, killed_at: set[int]) -> None:
        def started(body):
            return WorkerProcess("mesh", body, {})

        super().__init__(started(body), body, backend="mesh", restart=started)
        self._looks, self._killed_at = 0, killed_at

    def observe(self, *, semantic=False):
        self._looks += 1
        if self._looks in self._killed_at:
            os.kill(self._worker.pid, signal.SIGKILL)
        return super().observe(semantic=semantic)


def test_an_episode_survives_one_death_of_its_simulator_and_is_skipped_after_two(config, simulator):
    episodes, scenes = episodes_of(config)
    settings = settings_of(config, perturbation=0.2)
    expected = record_episode(episodes[0], simulator, settings)
    mortal = Mortal(settings.embodiment, {3})
    mortal.load_scene(scenes[episodes[0].scene_id])
    try:
        got = recorded_twice(episodes[0], mortal, settings)
        assert got.episode == expected.episode
        assert set(got.frames) == set(expected.frames)
        mortal._killed_at = {mortal._looks + 2, mortal._looks + 4}
        lost = recorded_twice(episodes[0], mortal, settings)
        assert isinstance(lost, Skipped)
        assert lost.reason.startswith("its simulator died twice: simulator worker")
        assert recorded_twice(episodes[0], mortal, settings).episode == expected.episode
    finally:
        mortal.close()
