"""Any source becomes one recorded data set: the same episodes, whatever kills or workers."""

from __future__ import annotations

import errno
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from worlds import await_end, kill_when, start_command

from tests.episodes.made_episodes import body, made, same
from vla_nav.actions.decisions import DecisionRule, cut, stated_rule
from vla_nav.episodes import lerobot_writer
from vla_nav.episodes.conversion import convert_episode, plan
from vla_nav.episodes.data_card import reason_kind
from vla_nav.episodes.lerobot_finalise import DiskFullError
from vla_nav.episodes.lerobot_reader import LeRobotDataset
from vla_nav.episodes.lerobot_writer import LeRobotWriter
from vla_nav.episodes.types import MOVE_FORWARD, STOP, TURN_LEFT, TURN_RIGHT
from vla_nav.errors import UserError
from vla_nav.evaluation import convert_run
from vla_nav.evaluation.convert_job import ConvertSettings
from vla_nav.evaluation.convert_run import convert

TRAIN = Path("recorded/train")


def record(
    root: Path, count: int = 7, *, size: tuple[int, int] = (6, 4), depth: bool = True
) -> Path:
    """A recorded split of made episodes under `root`."""
    one = body(depth=depth, size=size)
    with LeRobotWriter(
        root / TRAIN,
        dataset="made",
        split="train",
        embodiment=one,
        decision="primitive",
        recording={"expert": "a ruler"},
    ) as out:
        keys = []
        for number in range(count):
            episode, frames = made(number, one, num_steps=3 + number % 5)
            out.add(episode, frames)
            keys.append(episode.key)
        out.finalise(keys)
    return root


def settings(source: Path, to: Path, **keywords: Any) -> ConvertSettings:
    return ConvertSettings(str(source), "train", to / TRAIN, **keywords)


def files(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """140 recorded episodes: five units of work."""
    return record(tmp_path_factory.mktemp("source"), 140)


@pytest.fixture(scope="module")
def whole(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of an uninterrupted conversion in one process."""
    to = tmp_path_factory.mktemp("whole")
    convert(settings(source, to))
    return files(to / TRAIN)


def test_a_recording_comes_back_equal_with_every_pixel(tmp_path: Path) -> None:
    record(tmp_path / "a")
    summary = convert(settings(tmp_path / "a", tmp_path / "b"))
    assert (summary.num_converted, summary.num_before, summary.skipped) == (7, 0, ())
    before, after = LeRobotDataset(tmp_path / "a" / TRAIN), LeRobotDataset(tmp_path / "b" / TRAIN)
    assert len(after) == len(before) == 7
    for got, want in zip(after, before, strict=True):
        assert same(got, want)
        for step in got.steps:
            assert set(step.frames) == {"front", "front.depth"}
            for key in step.frames.values():
                pixels, there = after.frames.read(key), before.frames.read(key)
                assert pixels.dtype == there.dtype
                assert np.array_equal(pixels, there)


def test_the_card_states_the_conventions_and_where_the_data_is_from(tmp_path: Path) -> None:
    record(tmp_path / "a")
    convert(settings(tmp_path / "a", tmp_path / "b"))
    data = LeRobotDataset(tmp_path / "b" / TRAIN)
    card = json.loads((data.root / "card.json").read_text())
    assert (card["turn_deg"], card["step_m"], card["episodes"]) == (30.0, 0.25, 7)
    assert card["steps"] == sum(3 + number % 5 for number in range(7))
    assert card["expert"] == data.conventions.recording["expert"] == "a ruler"
    assert card["fingerprint"] == data.fingerprint()
    assert card["source"]["format"] == "recorded"
    assert card["cameras"][0]["hfov_deg"] == 90.0
    assert json.loads((data.root / "skipped.json").read_text()) == []
    text = (data.root / "README.md").read_text()
    for said in ("turn | 30 degrees", "a ruler", "decision rule primitive", data.fingerprint()):
        assert said in text


def test_text_of_the_data_is_no_markup_in_the_card(tmp_path: Path) -> None:
    record(tmp_path / "a", 2)
    name = "<script>x</script> | # [a](b)\n\n# Title"
    convert(settings(tmp_path / "a", tmp_path / "b", dataset=name))
    text = (tmp_path / "b" / TRAIN / "README.md").read_text()
    assert "<script" not in text.replace("\\<", "")
    assert "\n# Title" not in text


def test_the_files_do_not_depend_on_the_number_of_processes(
    source: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    convert(settings(source, tmp_path), num_workers=2)
    assert files(tmp_path / TRAIN) == whole


def test_a_killed_conversion_goes_on_and_ends_equal(
    source: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    words = (f"data.path={source}", f"convert.to={tmp_path}", "num_workers=1")
    output = f"paths.output_dir={tmp_path}/run"
    process = start_command("convert", *words, output)
    parts = tmp_path / TRAIN / "parts"
    kill_when(process, lambda: any(parts.glob("part-*.arrow")))
    children = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and _is_of(pid, process)]
    await_end(children)
    assert not (tmp_path / TRAIN / "meta/info.json").exists()
    summary = convert(settings(source, tmp_path))
    assert summary.num_before > 0
    assert summary.num_before + summary.num_converted == 140
    assert files(tmp_path / TRAIN) == whole


def _is_of(pid: str, process: Any) -> bool:
    """Whether a process is in the session that `process` began."""
    try:
        return os.getsid(int(pid)) == process.pid
    except ProcessLookupError:
        return False


def test_a_disk_that_fills_up_stops_the_conversion_and_loses_nothing(
    source: Path, whole: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, written = lerobot_writer._write_arrow, []

    def fill(table: Any, path: Path) -> None:
        if len(written) == 2:
            path.write_bytes(b"half of it")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(path)
        write(table, path)

    monkeypatch.setattr(lerobot_writer, "_write_arrow", fill)
    with pytest.raises(DiskFullError, match="the disk is full; free some space"):
        convert(settings(source, tmp_path))
    monkeypatch.undo()
    summary = convert(settings(source, tmp_path))
    assert (summary.num_before, summary.num_converted, summary.skipped) == (64, 76, ())
    assert files(tmp_path / TRAIN) == whole


def test_too_little_room_is_told_before_anything_is_written(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=64 * 2**20 + 1000)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage)
    with pytest.raises(UserError, match=r"converting 140 episodes needs \d+ MiB"):
        convert(settings(source, tmp_path / "to"))
    assert not (tmp_path / "to").exists()


def test_a_kill_before_the_card_leaves_it_to_the_next_start(
    source: Path, whole: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(convert_run, "write_card", die)
    with pytest.raises(KeyboardInterrupt):
        convert(settings(source, tmp_path))
    monkeypatch.undo()
    summary = convert(settings(source, tmp_path))
    assert (summary.num_converted, summary.num_before) == (0, 140)
    assert files(tmp_path / TRAIN) == whole


def test_a_finished_set_is_left_alone_and_another_one_refused(tmp_path: Path) -> None:
    record(tmp_path / "a", 4)
    convert(settings(tmp_path / "a", tmp_path / "b"))
    before = files(tmp_path / "b")
    assert convert(settings(tmp_path / "a", tmp_path / "b")).num_converted == 0
    assert files(tmp_path / "b") == before
    for keywords, key in (
        ({"storage": "video"}, "storage"),
        ({"decision": "fixed(2)"}, "decision"),
        ({"num_episodes": 3}, "source"),
        ({"dataset": "other"}, "dataset"),
    ):
        with pytest.raises(UserError, match=f"finished data set with {key}="):
            convert(settings(tmp_path / "a", tmp_path / "b", **keywords))
    with pytest.raises(UserError, match="is the source itself"):
        convert(settings(tmp_path / "a", tmp_path / "a"))
    assert files(tmp_path / "b") == before


def test_an_episode_with_a_damaged_frame_is_left_out_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path / "a", 5)
    data = LeRobotDataset(tmp_path / "a" / TRAIN)
    bad = data[2].steps[1].frames["front"]
    read = type(data.frames).read

    def damaged(self: Any, key: str) -> np.ndarray:
        if key == bad:
            raise UserError("not a readable PNG frame (truncated)")
        return read(self, key)

    monkeypatch.setattr(type(data.frames), "read", damaged)
    summary = convert(settings(tmp_path / "a", tmp_path / "b"))
    assert (summary.num_converted, len(summary.skipped)) == (4, 1)
    (row,) = json.loads((tmp_path / "b" / TRAIN / "skipped.json").read_text())
    assert row["episode_id"] == "2"
    assert "step 1, frame 'front'" in row["reason"]
    assert "truncated" in row["reason"]
    kept = LeRobotDataset(tmp_path / "b" / TRAIN)
    assert [episode.episode_id for episode in kept] == ["0", "1", "3", "4"]
    card = json.loads((tmp_path / "b" / TRAIN / "card.json").read_text())
    assert card["skipped"] == 1
    assert sum(card["skipped_by_reason"].values()) == 1


def test_the_plan_names_duplicates_and_what_cannot_be_written() -> None:
    one = body()
    episode, _ = made(0, one)
    other, _ = made(1, one)
    bad = replace(other, reference_path=np.array([[0.0, np.inf, 0.0]]))
    found = plan([episode, bad, episode])
    assert found.order == (episode.key,)
    assert [key for key, _ in found.skipped] == [other.key, episode.key]
    assert "reference_path holds a non-finite number" in found.skipped[0][1]
    assert "there twice" in found.skipped[1][1]
    assert found.num_steps == len(episode.steps)
    assert plan([episode], done={episode.key}).num_steps == 0
    assert plan([episode]).digest != plan([other]).digest
    assert plan([]).order == ()


def test_frames_beyond_the_memory_for_them_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    episode, frames = made(0, body(), num_steps=6)
    reads: list[str] = []

    class Source:
        def read(self, key: str) -> np.ndarray:
            reads.append(key)
            return frames[key]

    monkeypatch.setattr("vla_nav.episodes.conversion._KEPT_BYTES", 2 * 6 * 4 * 3)
    made_episode, kept = convert_episode(episode, Source())
    assert len(kept._kept) == 2
    assert made_episode.steps == episode.steps
    for key, frame in frames.items():
        assert np.array_equal(kept[key], frame)
    assert len(reads) > len(frames)
    assert len(kept._kept) == 2


@pytest.mark.parametrize(
    "rule", ["primitive", "turn_then_forward(1)", "turn_then_forward(4)", "fixed(2)", "fixed(3)"]
)
def test_the_decision_rule_is_told_from_the_steps(rule: str) -> None:
    wanted = DecisionRule.parse(rule)
    walk = [TURN_LEFT, TURN_LEFT, *[MOVE_FORWARD] * 9, TURN_RIGHT, MOVE_FORWARD, TURN_LEFT, STOP]
    decisions, left = set(), tuple(walk)
    while left:
        decisions.add(cut(left, wanted))
        left = left[len(cut(left, wanted)) :]
    found = stated_rule(decisions)
    assert found is not None
    assert all(cut(decision, found) == decision for decision in decisions)
    assert str(found) == rule
    assert stated_rule({(MOVE_FORWARD, STOP)}) is None
    assert str(stated_rule(set())) == "primitive"


def test_reasons_are_counted_by_kind() -> None:
    first = "episode train/17: step 3, frame 'front': /data/a/007.png is cut short at 12 bytes"
    other = "episode train/guide/4: step 11, frame 'front': b/1.png is cut short at 9 bytes"
    assert reason_kind(first) == reason_kind(other)
    assert "cut short" in reason_kind(first)


@pytest.mark.parametrize(
    ("keywords", "text"),
    [
        ({"steps": "gt"}, "unknown convert.steps 'gt'"),
        ({"storage": "jpg"}, "unknown storage 'jpg'"),
        ({"num_episodes": 0}, "convert.num_episodes=0: allowed: 1 and more"),
        ({"decision": "sometimes(3)"}, "unknown decision rule 'sometimes'"),
    ],
)
def test_impossible_settings_are_refused(keywords: dict[str, Any], text: str) -> None:
    with pytest.raises(UserError) as caught:
        ConvertSettings("a", "train", Path("b"), **keywords)
    assert text in str(caught.value)
