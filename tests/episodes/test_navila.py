"""NaVILA decisions: brought together whatever their order, texts decoded totally."""

from __future__ import annotations

import json
import pickle
import random
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.episodes.fixtures import navila as fixture
from tests.episodes.fixtures.expected import differences
from tests.episodes.fixtures.marks import read_mark
from tests.episodes.fixtures.videos import write_mp4, write_picture
from vla_nav.episodes.formats import open_source
from vla_nav.episodes.navila import NavilaSource
from vla_nav.episodes.source import EpisodeError, episodes_and_errors
from vla_nav.episodes.types import Episode

LEFT, FORWARD, STOP = (
    "The next action is turn left 15 degree.",
    "The next action is move forward 50 cm.",
    "I think I should stop because I have finished the instruction.",
)


def record(video: str, num_frames: int, text: Any, q: str = "Go.", **rest: Any) -> dict[str, Any]:
    frames = [f"{video}/frame_{at}.jpg" for at in range(num_frames)]
    return {"video_id": f"{video}-{num_frames - 1}", "q": q, "a": text, "frames": frames} | rest


def opened(root: Path, records: Any) -> NavilaSource:
    (root / "annotations.json").write_text(json.dumps(records))
    return open_source(root, split="train", format="navila")


def shown(episode: Episode) -> Any:
    steps = [(step.pose, dict(step.frames), step.executed, step.labels) for step in episode.steps]
    return episode.key, episode.instruction, steps, episode.metadata


def test_the_order_of_the_records_makes_no_difference(tmp_path: Path) -> None:
    fixture.write(tmp_path)
    records = json.loads((tmp_path / "annotations.json").read_text())
    want = {e.episode_id: shown(e) for e in opened(tmp_path, records)}
    for seed in range(5):
        random.Random(seed).shuffle(records)
        got = list(opened(tmp_path, records))
        first = dict.fromkeys(record["frames"][0].partition("/")[0] for record in records)
        assert [e.episode_id for e in got] == list(first)
        assert {e.episode_id: shown(e) for e in got} == want


def test_repeated_records_are_one_step_and_counted(tmp_path: Path) -> None:
    records = [record("1", 1, LEFT)] + [record("1", 2, STOP)] * 5
    (episode,) = opened(tmp_path, records)
    assert [step.executed for step in episode.steps] == [(2,), (0,)]
    assert episode.metadata["repeats"] == [1, 5]


def test_texts_outside_the_grammar_are_counted_and_teach_nothing(tmp_path: Path) -> None:
    odd = ["go forward a bit", "", "forward " * 10_000]
    records = [record("1", at + 1, text) for at, text in enumerate([LEFT, *odd, STOP])]
    (episode,) = opened(tmp_path, records)
    assert [step.executed for step in episode.steps] == [(2,), (), (), (), (0,)]
    assert [len(step.labels) for step in episode.steps] == [1, 0, 0, 0, 1]
    assert episode.steps[0].labels[0].primitives == (2,)  # nothing is known to follow
    assert episode.metadata["unparsed"] == [[at + 1, text[:200]] for at, text in enumerate(odd)]


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.text(max_size=30), min_size=1, max_size=4))
def test_any_texts_can_be_read(texts: list[str], tmp_path: Path) -> None:
    records = [record("1", at + 1, text, q=text) for at, text in enumerate(texts)]
    episodes = list(opened(tmp_path, records))
    assert sum(len(episode.steps) for episode in episodes) == len(texts)
    assert list(dict.fromkeys(texts)) == [episode.instruction for episode in episodes]


def test_half_characters_do_not_stop_the_reader(tmp_path: Path) -> None:
    (episode,) = opened(tmp_path, [record("1", 1, "\ud800", q="\udfff go")])
    assert episode.instruction == "\udfff go"
    assert episode.metadata["unparsed"] == [[0, "\ud800"]]


def test_a_video_with_two_instructions_is_two_episodes(tmp_path: Path) -> None:
    records = [record("a-b_1", n, t, q) for n, t in ((1, LEFT), (2, STOP)) for q in ("Go.", "Up.")]
    episodes = list(opened(tmp_path, records))
    assert [(e.episode_id, e.instruction) for e in episodes] == [
        ("a-b_1", "Go."),
        ("a-b_1_1", "Up."),
    ]
    assert all(len(e.steps) == 2 for e in episodes)


def test_two_actions_for_the_same_pictures_are_told(tmp_path: Path) -> None:
    (episode,) = opened(tmp_path, [record("1", 1, LEFT), record("1", 1, STOP)])
    assert [step.executed for step in episode.steps] == [(2,)]
    assert episode.metadata["conflicts"] == [[0, STOP]]


def test_pictures_that_do_not_fit_the_actions_are_told(tmp_path: Path) -> None:
    fits = [record("1", 1, LEFT), record("1", 2, FORWARD), record("1", 4, STOP)]
    (episode,) = opened(tmp_path, fits)
    assert "picture_gaps" not in episode.metadata
    (episode,) = opened(tmp_path, [*fits[:2], record("1", 5, STOP)])
    assert episode.metadata["picture_gaps"] == [[1, 3, 2]]  # decision, pictures, primitives


def test_missing_pictures_are_counted(tmp_path: Path) -> None:
    fixture.write(tmp_path)
    (tmp_path / "train" / "1" / "frame_0.jpg").unlink()
    shutil.rmtree(tmp_path / "train" / "12")
    by_id = {e.episode_id: e for e in open_source(tmp_path, split="train")}
    assert by_id["1"].steps[0].frames == {}
    assert by_id["1"].metadata["missing_frames"] == 1
    assert by_id["12"].metadata["missing_frames"] == 2


def test_a_video_takes_the_place_of_its_pictures(tmp_path: Path) -> None:
    expected = fixture.write(tmp_path)
    shutil.rmtree(tmp_path / "train")
    for number, episode in enumerate(fixture.EPISODES):
        count = sum(len(primitives) for _, primitives in episode[2])
        marks = [100 * (number + 1) + at for at in range(count)]
        write_mp4(tmp_path / "videos" / f"{episode[0]}.mp4", marks, fps=10)
    source = pickle.loads(pickle.dumps(open_source(tmp_path, split="train")))
    assert differences(source, expected) == []


def test_pictures_of_a_second_are_found_and_are_no_frames_of_the_video(tmp_path: Path) -> None:
    frames = [f"a-B_3/{at:04d}.jpg" for at in (4, 5)]  # as the Human part names them
    for number, name in enumerate(frames):
        write_picture(tmp_path / "raw_frames" / name, 30 + number)
    write_mp4(tmp_path / "videos" / "a-B_3.mp4", [1, 2, 3, 4, 5, 6, 7], fps=10)
    decision = {"video_id": "a-B_3-17", "q": "Go.", "a": LEFT, "frames": frames}
    source = opened(tmp_path, [decision])
    (episode,) = source
    assert read_mark(source.frames.read(episode.steps[0].frames["front"])) == 31
    shutil.rmtree(tmp_path / "raw_frames")
    (episode,) = source
    assert episode.steps[0].frames == {}


def test_videos_without_actions_have_frames_and_teach_nothing(tmp_path: Path) -> None:
    fixture.write_videos(tmp_path)
    source = open_source(tmp_path, split="train")
    for episode in source:
        assert all(step.executed == () and step.labels == () for step in episode.steps)
        marks = [read_mark(source.frames.read(step.frames["front"])) for step in episode.steps]
        assert marks == list(range(marks[0], marks[0] + len(marks)))
        assert episode.metadata["poses"] == "unknown"
    (tmp_path / "videos" / "5.mp4").unlink()
    first = next(iter(source))
    assert (first.steps, first.metadata["missing_video"]) == ((), "5.mp4")


def test_unknown_keys_are_kept_with_their_decision(tmp_path: Path) -> None:
    records = [record("1", 1, LEFT, gru=[2, 0]), record("1", 2, STOP)]
    (episode,) = opened(tmp_path, records)
    assert episode.metadata["records"] == [{"gru": [2, 0]}, {}]
    assert json.loads(json.dumps(episode.metadata)) == episode.metadata


FAULTS = {
    "video_id": [None, "", 7, []],
    "q": [None, 3, ["Go."]],
    "a": [None, 3, [LEFT]],
    "frames": [None, [], "1/frame_0.jpg", [1], [None], ["../../etc/x.jpg"], ["/etc/x.jpg"]],
}


@pytest.mark.parametrize(("key", "value"), [(k, v) for k, vs in FAULTS.items() for v in vs])
def test_a_faulty_record_is_named_and_the_others_are_read(
    key: str, value: Any, tmp_path: Path
) -> None:
    good = [record("1", 1, LEFT), record("1", 2, STOP)]
    source = opened(tmp_path, [good[0], record("7", 1, STOP) | {key: value}, good[1]])
    found = list(episodes_and_errors(source))
    (episode,) = [e for e in found if isinstance(e, Episode)]
    (error,) = [str(e) for e in found if isinstance(e, EpisodeError)]
    assert len(episode.steps) == 2
    assert str(tmp_path) in error
    assert "\n" not in error


def test_memory_does_not_grow_with_the_number_of_records(tmp_path: Path) -> None:
    peaks = []
    for number in (60, 240):
        records = [
            record(str(v), n, LEFT, pad="x" * 20_000) for v in range(number) for n in (1, 2, 3)
        ]
        random.Random(1).shuffle(records)
        source = opened(tmp_path, records)
        tracemalloc.start()
        assert sum(len(episode.steps) for episode in source) == 3 * number
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]  # of a file of 3.6 and 14 MB; the table is on disk
