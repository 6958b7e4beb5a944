"""What is recorded is what is read, and a plain LeRobot reader finds its columns in place."""

from __future__ import annotations

import json
import pickle
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from made_episodes import body, episodes, keep, made, record, same, writer

from vla_nav.episodes.frames import decode_png, stored_frame
from vla_nav.episodes.lerobot_finalise import finalise
from vla_nav.episodes.lerobot_reader import LeRobotDataset
from vla_nav.episodes.lerobot_writer import (
    completed_episodes,
    estimate_bytes,
    require_space_to_record,
)
from vla_nav.episodes.types import Step
from vla_nav.errors import UserError

TWO_CAMERAS = body(num_cameras=2, depth=True)


@given(data=st.data())
@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],  # shrinking writes thousands of data sets
)
def test_any_episode_comes_back_exactly(data: st.DataObject) -> None:
    pairs = [data.draw(episodes(TWO_CAMERAS, str(number))) for number in range(3)]
    with tempfile.TemporaryDirectory() as folder:
        with writer(Path(folder), TWO_CAMERAS, episodes_per_part=2) as out:
            for pair in pairs:
                out.add(*pair)
        out.finalise([episode.key for episode, _ in pairs])
        read = LeRobotDataset(folder)
        read.verify()
        for number, (episode, frames) in enumerate(pairs):
            assert same(read[number], episode)
            for key, frame in frames.items():
                assert np.array_equal(read.frames.read(key), stored_frame(frame))
        assert read.keys() == [episode.key for episode, _ in pairs]


def test_many_row_groups_and_files_hold_the_right_frames(tmp_path: Path) -> None:
    embodiment = body(num_cameras=2, depth=True)
    record(tmp_path, range(270), embodiment)
    order = [made(number, embodiment)[0].key for number in reversed(range(270))]
    finalise(tmp_path, order, data_file_bytes=200_000)
    read = LeRobotDataset(tmp_path)
    assert len(list((tmp_path / "data").rglob("*.parquet"))) > 3
    for index in [0, 1, 149, 254, 255, 256, 257, 269, -1]:  # meta groups end at 256
        episode, frames = made(269 - index % 270, embodiment)
        assert same(read[index], episode)
        for step in read[index].steps:
            for name, key in step.frames.items():
                assert np.array_equal(read.frames.read(key), stored_frame(frames[key])), name
    with pytest.raises(IndexError):
        read[270]


def test_a_dataset_can_be_sent_to_worker_processes(tmp_path: Path) -> None:
    record(tmp_path, range(3), body())
    writer(tmp_path, body()).finalise()
    read = LeRobotDataset(tmp_path)
    key = read[0].steps[0].frames["front"]
    pixels = read.frames.read(key)
    copy = pickle.loads(pickle.dumps(read))
    assert np.array_equal(copy.frames.read(key), pixels)
    assert same(copy[2], read[2])


def test_the_layout_is_lerobot_v3(tmp_path: Path) -> None:
    embodiment = body(num_cameras=2, depth=True)
    record(tmp_path, range(7), embodiment, decision="turn_then_forward(4)", fps=2)
    writer(tmp_path, embodiment, decision="turn_then_forward(4)", fps=2).finalise()
    info = json.loads((tmp_path / "meta/info.json").read_text())
    assert info["codebase_version"] == "v3.0"
    assert (info["total_episodes"], info["total_frames"], info["total_tasks"]) == (7, 35, 3)
    assert info["splits"] == {"train": "0:7"}
    rows = pq.read_table(tmp_path / info["data_path"].format(chunk_index=0, file_index=0))
    assert set(rows.column_names) == set(info["features"])
    assert rows.column("index").to_pylist() == list(range(35))
    assert rows.column("frame_index").to_pylist() == list(range(5)) * 7
    assert rows.column("timestamp").to_pylist()[:3] == [0.0, 0.5, 1.0]
    assert rows.column("next.done").to_pylist() == [False, False, False, False, True] * 7
    tasks = pq.read_table(tmp_path / "meta/tasks.parquet")
    assert json.loads(tasks.schema.metadata[b"pandas"])["index_columns"] == ["task"]
    names = dict(zip(tasks["task_index"].to_pylist(), tasks["task"].to_pylist(), strict=True))
    about = pq.read_table(tmp_path / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
    for number, row in enumerate(about):
        assert row["dataset_to_index"] - row["dataset_from_index"] == row["length"] == 5
        own = rows.slice(row["dataset_from_index"], row["length"])
        assert own.column("episode_index").to_pylist() == [number] * 5
        assert {names[index] for index in own.column("task_index").to_pylist()} == set(row["tasks"])
        episode, frames = made(number, embodiment)
        for step, image in zip(
            episode.steps, own.column("observation.images.left").to_pylist(), strict=True
        ):
            assert np.array_equal(decode_png(image["bytes"]), frames[step.frames["left"]])


def test_conventions_are_stated_once(tmp_path: Path) -> None:
    about = {"expert": "greedy_follower", "perturbation": 0.2}
    record(tmp_path, range(2), body(), recording=about)
    writer(tmp_path, body(), recording=about).finalise()
    read = LeRobotDataset(tmp_path)
    stated = read.info["vla_nav"]
    assert (stated["turn_deg"], stated["step_m"], stated["version"]) == (30.0, 0.25, 1)
    assert stated["cameras"][0] | {"name": "front", "hfov_deg": 90.0} == stated["cameras"][0]
    assert "xyzw" in stated["frame"]
    assert read.conventions.recording == about
    assert read.conventions.decision == "primitive"
    assert read.embodiment == body()


def test_action_is_the_executed_motion_in_the_agents_frame(tmp_path: Path) -> None:
    """Hand-computed: every step of `made` walks 0.25 m straight ahead, the last one stops."""
    record(tmp_path, range(1), body())
    writer(tmp_path, body()).finalise()
    rows = pq.read_table(tmp_path / "data/chunk-000/file-000.parquet")
    ahead, stop = [0.25, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]
    assert np.allclose(rows["action"].to_pylist(), [ahead] * 4 + [stop], atol=1e-7)  # float32
    assert rows["observation.state"].to_pylist()[2] == [0.0, 0.1, -0.5, 0.0, 0.0, 0.0, 1.0]
    assert rows["expert_primitive"].to_pylist() == [1, 1, 1, 1, 0]
    stats = json.loads((tmp_path / "meta/stats.json").read_text())
    assert stats["action"]["max"][3] == 1.0
    assert stats["action"]["count"] == [5]
    first = made(0, body())[0].steps[0].frames["front"]
    pixels = made(0, body())[1][first] / 255.0
    image = stats["observation.images.front"]
    assert np.allclose(np.ravel(image["mean"]), pixels.mean((0, 1)))
    assert np.allclose(np.ravel(image["std"]), pixels.std((0, 1)))


def test_the_fingerprint_follows_content_and_order(tmp_path: Path) -> None:
    def fingerprint(name: str, *, order: list[int], change: bool = False) -> str:
        with writer(tmp_path / name, body()) as out:
            for number in range(3):
                episode, frames = made(number, body())
                if change and number == 1:
                    episode = replace(episode, metadata={"number": 1, "more": True})
                out.add(episode, frames)
        out.finalise([made(number, body())[0].key for number in order])
        return LeRobotDataset(tmp_path / name).fingerprint()

    plain = fingerprint("plain", order=[0, 1, 2])
    assert fingerprint("again", order=[0, 1, 2]) == plain
    assert fingerprint("other_order", order=[0, 2, 1]) != plain
    assert fingerprint("other_content", order=[0, 1, 2], change=True) != plain


def test_wrong_episodes_are_refused_by_name(tmp_path: Path) -> None:
    out = writer(tmp_path, body())
    episode, frames = made(3, body())
    first = episode.steps[0]
    key = first.frames["front"]
    wrong: list[tuple[object, dict, str]] = [
        (replace(episode, split="val"), frames, "split is 'val'"),
        (replace(episode, dataset="x"), frames, "dataset is 'x'"),
        (replace(episode, embodiment=replace(body(), turn_deg=15.0)), frames, "turn_deg.*15"),
        (replace(episode, metadata={"a": (1, 2)}), frames, "metadata changes"),
        (replace(episode, metadata={"a": object()}), frames, "not plain JSON"),
        (replace(episode, metadata={"a": float("nan")}), frames, "not plain JSON"),
        (episode, {}, "not among the frames"),
        (episode, {**frames, key: frames[key] + 1}, "not frame_key"),
        (episode, {**frames, key: frames[key][:2]}, "the camera has 6x4"),
        (
            replace(episode, steps=(Step(first.pose, {"back": key}, (), ()),)),
            frames,
            "no such camera; allowed: front",
        ),
    ]
    for bad, given_frames, message in wrong:
        with pytest.raises(UserError, match=f"^episode .*/3: .*{message}"):
            out.add(bad, given_frames)  # type: ignore[arg-type]
    out.add(episode, frames)
    out.finalise()
    assert LeRobotDataset(tmp_path).keys() == [episode.key]


def test_size_is_estimated_above_what_is_written_and_checked_first(tmp_path: Path) -> None:
    embodiment = body(size=(48, 48), depth=True)
    with writer(tmp_path, embodiment) as out:
        ramp = np.indices((48, 48)).sum(0)
        for number in range(8):
            episode, _ = made(number, embodiment)
            rgb = np.stack([ramp + number, ramp * 2, ramp], -1).astype(np.uint8)
            depth = (ramp * 0.02 + number).astype(np.float32)
            frames: dict[str, np.ndarray] = {}
            names = {"front": keep(frames, rgb), "front.depth": keep(frames, depth)}
            steps = tuple(replace(step, frames=names) for step in episode.steps)
            out.add(replace(episode, steps=steps), frames)
    out.finalise()
    size = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert size < estimate_bytes(embodiment, num_steps=40)
    require_space_to_record(tmp_path, embodiment, num_steps=40)
    with pytest.raises(UserError, match="MiB are free"):
        require_space_to_record(tmp_path / "not/made/yet", embodiment, num_steps=10**13)
    assert len(completed_episodes(tmp_path)) == 8
