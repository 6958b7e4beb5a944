"""LeRobot v2 and v3 sets of others: the right rows and frames, whoever cut the files and how.

Fixtures are written from the public readers' code (`fixtures/`); what is damaged here is damaged
so that a wrong reader would give frames of another episode.
"""

from __future__ import annotations

import json
import os
import pickle
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.episodes.fixtures import lerobot_v2, lerobot_v3
from tests.episodes.fixtures.expected import differences
from tests.episodes.fixtures.marks import read_mark
from tests.episodes.fixtures.videos import write_mp4
from vla_nav.episodes import parquet_columns
from vla_nav.episodes.formats import detect, open_source
from vla_nav.episodes.source import EpisodeError, episodes_and_errors
from vla_nav.episodes.types import STOP
from vla_nav.errors import UserError

FRONT, LEFT = lerobot_v3.FRONT, lerobot_v3.LEFT
WRITERS = {"lerobot_v2": lerobot_v2.write, "lerobot_v3": lerobot_v3.write}


def errors(root: Path, **options: Any) -> list[str]:
    source = open_source(root, split="train", **options)
    return [str(e) for e in episodes_and_errors(source) if isinstance(e, EpisodeError)]


def change_episodes(root: Path, change: Callable[[dict[str, Any]], None], file: int = 0) -> None:
    """Rewrite rows of one meta/episodes file of a v3 set."""
    path = root / f"meta/episodes/chunk-000/file-{file:03d}.parquet"
    rows = pq.read_table(path).to_pylist()
    for row in rows:
        change(row)
    pq.write_table(pa.Table.from_pylist(rows), path)


def change_info(root: Path, **values: Any) -> None:
    path = root / "meta/info.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize("format", WRITERS)
def test_what_the_public_reader_reads_is_read(format: str, tmp_path: Path) -> None:
    expected = WRITERS[format](tmp_path / "set")
    assert detect(expected.root, "train") == format
    assert differences(open_source(expected.root, split="train"), expected) == []


def test_an_unnamed_index_of_tasks_and_the_codec_of_lerobot(tmp_path: Path) -> None:
    expected = lerobot_v3.write(
        tmp_path / "set", task_column="__index_level_0__", codec="libsvtav1"
    )
    change_episodes(expected.root, lambda row: row.pop("tasks"))
    change_episodes(expected.root, lambda row: row.pop("tasks"), file=1)
    assert differences(open_source(expected.root, split="train"), expected) == []


def test_one_data_file_and_six_video_files(tmp_path: Path) -> None:
    """Case 9: by the data's file number every episode would show frames of episode 0's file."""
    expected = lerobot_v3.write(tmp_path / "set")
    source = open_source(expected.root, split="train")
    spans = [span for span in source.video_spans() if span.key == FRONT]
    assert [span.video[-7:-4] for span in spans] == [f"{n:03d}" for n in range(6)]
    assert {span.first for span in spans} == {0}
    lefts = [span for span in source.video_spans() if span.key == LEFT]
    assert any(a.video == b.video and a.stop == b.first for a, b in pairwise(lefts))
    for number, episode in enumerate(source):  # the frames at both ends of every episode
        for at in (0, len(episode.steps) - 1):
            for camera, key in (("front", FRONT), ("left", LEFT)):
                pixels = source.frames.read(episode.steps[at].frames[camera])
                assert read_mark(pixels) == lerobot_v3.mark_of(key, number, at)


def test_rows_are_found_by_their_episode_not_by_counting(tmp_path: Path) -> None:
    """Episodes of a data file in another order than in meta/, and wrong offsets."""
    expected = lerobot_v3.write(tmp_path / "set")
    path = expected.root / "data/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    episodes = table.column("episode_index").to_pylist()
    starts = [episodes.index(n) for n in range(6)] + [len(episodes)]
    parts = [table.slice(a, b - a) for a, b in pairwise(starts)]
    pq.write_table(pa.concat_tables([parts[n] for n in (3, 1, 5, 0, 2, 4)]), path)
    change_episodes(expected.root, lambda row: row.update(dataset_from_index=0))
    assert differences(open_source(expected.root, split="train"), expected) == []


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        (f"videos/{FRONT}/from_timestamp", 0.1, "spans"),
        (f"videos/{FRONT}/from_timestamp", 0.05, "expected the time of a frame"),
        (f"videos/{FRONT}/from_timestamp", float("nan"), "expected a finite number"),
        (f"videos/{FRONT}/file_index", 9, "no such file"),
        (f"videos/{FRONT}/file_index", None, "expected a whole number"),
        (f"videos/{LEFT}/chunk_index", 1, "which has"),
        ("data/file_index", 3, "no such file"),
        ("length", 50, "length is 50"),
        ("tasks", [], "set()"),
    ],
)
def test_a_wrong_place_is_an_error_of_that_episode_alone(
    tmp_path: Path, column: str, value: Any, message: str
) -> None:
    expected = lerobot_v3.write(tmp_path / "set")
    if message == "set()":
        (expected.root / "meta/tasks.parquet").unlink()
        message = "tasks.parquet"

    def spoil(row: dict[str, Any]) -> None:
        if row["episode_index"] == 2:
            row[column] = value

    change_episodes(expected.root, spoil)
    source = open_source(expected.root, split="train")
    got = list(episodes_and_errors(source))
    assert [isinstance(e, EpisodeError) for e in got] == [n == 2 for n in range(6)]
    assert message in str(got[2])
    assert "\n" not in str(got[2])
    assert got[2].episode_id == "2"


def test_a_video_cut_short_is_noticed_before_a_frame_is_read(tmp_path: Path) -> None:
    expected = lerobot_v3.write(tmp_path / "set")
    video = expected.root / f"videos/{LEFT}/chunk-000/file-000.mp4"
    write_mp4(video, [1] * 13, fps=lerobot_v3.FPS)  # episodes 0 to 3 need 14
    (message,) = errors(expected.root)
    assert "episode 3" in message
    assert "which has 13" in message


def test_splits_are_ranges_of_episodes(tmp_path: Path) -> None:
    for format, write in WRITERS.items():
        expected = write(tmp_path / format)
        change_info(expected.root, splits={"train": "0:4", "val": "4:6"})
        for split, ids in (("train", "0123"), ("val", "45")):
            source = open_source(expected.root, split=split)
            assert [e.episode_id for e in source] == list(ids)
            assert {e.split for e in source} == {split}
        with pytest.raises(UserError, match=r"no split 'test'; allowed as data.split: train, val"):
            open_source(expected.root, split="test", format=format)
        change_info(expected.root, splits={"train": "0:40"})
        with pytest.raises(UserError, match="6 of the 40 episodes"):
            list(open_source(expected.root, split="train"))


@pytest.mark.parametrize("way", ["arrived by", "arrived by, with STOP", "leaves by"])
def test_stop_is_taught_once_at_the_last_frame_that_needs_it(tmp_path: Path, way: str) -> None:
    expected = lerobot_v2.write(tmp_path / "set")
    path = expected.root / "data/chunk-000/episode_000000.parquet"
    table = pq.read_table(path)
    actions = {
        "arrived by": [-1, 1, 1, 2, 1],
        "arrived by, with STOP": [-1, 1, 1, 2, 0],
        "leaves by": [1, 1, 2, 1, 0],
    }[way]
    at = table.column_names.index("action")
    pq.write_table(table.set_column(at, "action", [[[a] for a in actions]]), path)
    episode = next(iter(open_source(expected.root, split="train")))
    executed = [step.executed for step in episode.steps]
    wanted = [1, 1, 2, 0] if way == "arrived by, with STOP" else [1, 1, 2, 1, 0]
    assert executed == [(a,) for a in wanted]
    for at, step in enumerate(episode.steps):  # what was executed is what is taught
        assert step.labels[0].primitives == tuple(wanted[at:])
        assert len(step.labels[0].poses) == len(wanted[at:])
    assert sum(p == STOP for (p,) in executed) == 1


@pytest.mark.parametrize("action", [-1, 6, 100])
def test_an_unknown_action_is_named(tmp_path: Path, action: int) -> None:
    expected = lerobot_v2.write(tmp_path / "set")
    path = expected.root / "data/chunk-000/episode_000000.parquet"
    table = pq.read_table(path)
    at = table.column_names.index("action")
    values = [[a] for a in (1, action, 2, 1, 0)]
    pq.write_table(table.set_column(at, "action", [values]), path)
    (message,) = errors(expected.root)
    assert f"episode 0, column 'action': row 1 is {action}; allowed: 0 STOP" in message


def test_poses_of_a_named_column_are_taken_and_other_columns_kept(tmp_path: Path) -> None:
    expected = lerobot_v2.write(tmp_path / "set")
    info = json.loads((expected.root / "meta/info.json").read_text())
    names = ["x", "y", "z", "qx", "qy", "qz", "qw"]
    pose = {"dtype": "float32", "shape": [7], "names": {"motors": names}}
    change_info(expected.root, features=info["features"] | {"observation.state": pose})
    for number, (_, actions) in enumerate(lerobot_v3.EPISODES):
        path = expected.root / f"data/chunk-{number // 2:03d}/episode_{number:06d}.parquet"
        rows = [[at * 0.5, 0.1, -1.0, 0.0, 0.6, 0.0, 0.8] for at in range(len(actions))]
        table = pq.read_table(path)
        table = table.append_column("observation.state", [rows])
        pq.write_table(table.append_column("battery", [[0.5] * len(rows)]), path)
    source = open_source(expected.root, split="train")
    assert source.facts.is_pose_measured
    for episode in source:
        assert episode.steps[1].pose.position == (0.5, 0.1, -1.0)
        assert episode.steps[1].pose.rotation == (0.0, 0.6, 0.0, 0.8)
        assert "poses" not in episode.metadata
        assert episode.metadata["battery"] == [0.5] * len(episode.steps)
    path = expected.root / "data/chunk-000/episode_000000.parquet"
    table = pq.read_table(path)
    at = table.column_names.index("observation.state")
    pq.write_table(table.set_column(at, "observation.state", [[[1.0] * 7] * 5]), path)
    assert "quaternion of norm 2.0000" in errors(expected.root)[0]


def test_continuous_actions_teach_nothing_and_are_kept(tmp_path: Path) -> None:
    expected = lerobot_v2.write(tmp_path / "set")
    info = json.loads((expected.root / "meta/info.json").read_text())
    motion = {"dtype": "float32", "shape": [2], "names": ["v", "w"]}
    change_info(expected.root, features=info["features"] | {"action": motion})
    for path in expected.root.rglob("*.parquet"):
        table = pq.read_table(path)
        at = table.column_names.index("action")
        values = [[[0.5, -0.25]] * len(table)]
        pq.write_table(table.set_column(at, "action", values), path)
    source = open_source(expected.root, split="train")
    assert any("nothing is taught" in note for note in source.facts.notes)
    for episode in source:
        assert all(not step.executed and not step.labels for step in episode.steps)
        assert episode.metadata["action"] == [[0.5, -0.25]] * len(episode.steps)
        assert episode.metadata["poses"] == "unknown"


@pytest.mark.parametrize(
    "template",
    [
        "../{episode_index:06d}.parquet",
        "/etc/{episode_index}.parquet",
        "data/{episode_index.__class__}.parquet",
        "data/{episode_index:999999999d}.parquet",
        "data/{secret}.parquet",
        "data/{episode_index!r}.parquet",
    ],
)
def test_path_templates_neither_leave_the_set_nor_run(tmp_path: Path, template: str) -> None:
    expected = lerobot_v2.write(tmp_path / "set")
    change_info(expected.root, data_path=template)
    messages = errors(expected.root)
    assert len(messages) == len(expected.episodes)
    assert all("info.json: " in message for message in messages)


def test_meta_that_is_no_meta_is_named(tmp_path: Path) -> None:
    for key, value in (
        ("fps", 0),
        ("fps", "ten"),
        ("chunks_size", 0),
        ("features", [1]),
        ("splits", "all"),
        ("data_path", 7),
        ("splits", {"train": "first five"}),
    ):
        expected = lerobot_v2.write(tmp_path / "set")
        change_info(expected.root, **{key: value})
        with pytest.raises(UserError, match=rf"info\.json: {key}"):
            open_source(expected.root, split="train", format="lerobot_v2")


def test_lists_of_episodes_are_checked(tmp_path: Path) -> None:
    expected = lerobot_v2.write(tmp_path / "set")
    path = expected.root / "meta/episodes.jsonl"
    lines = path.read_text().splitlines()
    for text, message in (
        ("\n".join([*lines, lines[0]]), "episode_index 1 is there twice"),
        ("\n".join(lines)[:-3], "line 6 is not valid JSON"),
        ("\n".join([*lines[:3], "[1]"]), "line 4 is a list"),
        ("\n".join([*lines[:3], "{}"]), "line 4: episode_index is 'None'"),
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=message.replace("[", r"\[")):
            list(open_source(expected.root, split="train"))


def test_sources_are_lazy_and_travel_to_worker_processes(tmp_path: Path) -> None:
    for format, write in WRITERS.items():
        expected = write(tmp_path / format)
        source = open_source(expected.root, split="train")
        episode = next(iter(source))
        key = episode.steps[0].frames["front"]
        mark = read_mark(source.frames.read(key))
        assert read_mark(pickle.loads(pickle.dumps(source.frames)).read(key)) == mark
        with pytest.raises(UserError, match="allowed: a path inside this folder"):
            source.frames.read("../x.mp4#0")
        with pytest.raises(UserError, match="names no frame"):
            source.frames.read(key.replace("#0", "#-1"))
        with pytest.raises(UserError, match="frames, asked for number 999"):
            source.frames.read(key.replace("#0", "#999"))


@pytest.mark.parametrize(
    "file", ["data/chunk-000/file-000.parquet", "meta/episodes/chunk-000/file-000.parquet"]
)
def test_a_pipe_and_a_column_twice_are_named(tmp_path: Path, file: str) -> None:
    root = lerobot_v3.write(tmp_path / "set").root
    table = pq.read_table(root / file)
    last = table.num_columns - 1
    pq.write_table(table.append_column(table.field(last), table.column(last)), root / file)
    name = re.escape(table.column_names[last])
    with pytest.raises(UserError, match=rf"{file}: column '{name}' is there 2 times"):
        list(open_source(root, split="train"))
    (root / file).unlink()
    os.mkfifo(root / file)
    with pytest.raises(UserError, match=f"{file}: is no regular file"):
        list(open_source(root, split="train"))


@pytest.mark.parametrize("rows", [1, 2, 3, 8])
def test_episodes_are_the_same_in_batches_of_any_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """Batches that end within an episode, at its end, and at the end of a row group (7 rows)."""
    expected = lerobot_v3.write(tmp_path / "set")
    monkeypatch.setattr(parquet_columns, "_BATCH_ROWS", rows)
    assert differences(open_source(expected.root, split="train"), expected) == []
