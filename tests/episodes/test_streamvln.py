"""StreamVLN trajectories: pictures by number, one episode an instruction, faults named."""

from __future__ import annotations

import gzip
import json
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from tests.episodes.fixtures import streamvln as fixture
from tests.episodes.fixtures.expected import differences
from vla_nav.episodes.formats import open_source
from vla_nav.episodes.source import EpisodeError, episodes_and_errors
from vla_nav.episodes.streamvln import StreamVlnSource, detect
from vla_nav.errors import UserError

RECORD = {"id": 1, "video": "images/scanA_r2r_000001", "instructions": ["Go."], "actions": [-1, 1]}


def opened(root: Path, records: Any) -> StreamVlnSource:
    (root / "annotations.json").write_text(json.dumps(records))
    return open_source(root, split="train", format="streamvln")


def test_a_missing_picture_leaves_a_gap_and_shifts_nothing(tmp_path: Path) -> None:
    expected = fixture.write(tmp_path)
    source = open_source(tmp_path, split="train")
    before = next(iter(source))
    folder = tmp_path / "images" / "scanA_r2r_000007" / "rgb"
    (folder / "003.jpg").unlink()
    after = next(iter(source))
    assert after.steps[2].frames == {}
    assert [s.frames for s in after.steps if s.frames] == [
        s.frames for at, s in enumerate(before.steps) if at != 2
    ]
    assert after.metadata["missing_frames"] == 1
    assert expected.episodes[0].actions == tuple(s.executed[0] for s in after.steps)
    (folder / "008.jpg").write_bytes((folder / "007.jpg").read_bytes())
    assert next(iter(source)).metadata["surplus_frames"] == 1


def test_annotations_without_pictures_are_read(tmp_path: Path) -> None:
    (episode,) = opened(tmp_path, [RECORD])
    assert [step.frames for step in episode.steps] == [{}, {}]
    assert episode.metadata["missing_frames"] == 2


def test_further_instructions_are_episodes_with_keys_of_their_own(tmp_path: Path) -> None:
    episodes = list(opened(tmp_path, [RECORD | {"instructions": ["Go.", "Walk.", "Leave."]}]))
    assert [e.episode_id for e in episodes] == ["1", "1_1", "1_2"]
    assert [e.instruction for e in episodes] == ["Go.", "Walk.", "Leave."]
    assert len({e.key for e in episodes}) == 3


def test_unknown_keys_and_the_scene_are_kept(tmp_path: Path) -> None:
    (episode,) = opened(tmp_path, [RECORD | {"trajectory_id": 9, "note": {"a": [1]}}])
    assert episode.scene_id == "scanA"
    assert episode.metadata["trajectory_id"] == 9
    assert episode.metadata["note"] == {"a": [1]}
    assert episode.metadata["poses"] == "dead_reckoned"
    assert json.loads(json.dumps(episode.metadata)) == episode.metadata


FAULTS = {
    "actions": [None, [], [1, 2], [-1, True], [-1, 1.0], [-1, 6], [-1, -1], ["-1"], {"0": -1}],
    "instructions": [None, [], [3], 3],
    "video": [None, "", 4, "../outside", "/etc", "x" * 300, "x/" * 2100, "\ud800"],
    "id": ["", [1], 1.5],
}


@pytest.mark.parametrize(("key", "value"), [(k, v) for k, vs in FAULTS.items() for v in vs])
def test_a_faulty_record_is_named_and_the_next_one_is_read(
    key: str, value: Any, tmp_path: Path
) -> None:
    (tmp_path / "annotations.json").write_text(json.dumps([RECORD, RECORD | {key: value}, RECORD]))
    source = open_source(tmp_path, split="train", format="streamvln")
    first, error, last = episodes_and_errors(source)
    assert first.key == last.key
    assert isinstance(error, EpisodeError)
    assert str(tmp_path) in str(error)
    assert key in str(error)
    assert "\n" not in str(error)
    with pytest.raises(EpisodeError):
        list(source)


@pytest.mark.parametrize("content", ["", "[", "[{}", "[1]", "{", "[{},]", "[{}] x", "nul", "\x00"])
def test_a_damaged_file_is_one_line(content: str, tmp_path: Path) -> None:
    (tmp_path / "annotations.json").write_text(content)
    with pytest.raises(UserError) as error:
        list(open_source(tmp_path, split="train", format="streamvln"))
    assert "annotations.json" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_cut_anywhere_gives_its_first_episodes_and_an_error(tmp_path: Path) -> None:
    fixture.write(tmp_path)
    file = tmp_path / "annotations.json"
    whole = file.read_bytes()
    ids = [e.episode_id for e in open_source(tmp_path, split="train")]
    for length in range(1, len(whole.rstrip()), 7):
        file.write_bytes(whole[:length])
        found = []
        with pytest.raises(UserError, match=r"annotations\.json"):
            found.extend(
                e.episode_id for e in open_source(tmp_path, split="train", format="streamvln")
            )
        assert found == ids[: len(found)]


def test_a_folder_per_split_and_compressed_annotations_are_found(tmp_path: Path) -> None:
    expected = fixture.write(tmp_path / "R2R")
    assert detect(tmp_path, "R2R")
    assert not detect(tmp_path, "RxR")
    plain = tmp_path / "R2R" / "annotations.json"
    (tmp_path / "R2R" / "annotations.json.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    source = pickle.loads(pickle.dumps(open_source(tmp_path, split="R2R")))
    assert differences(source, expected) == []


def test_the_camera_has_the_size_of_the_pictures(tmp_path: Path) -> None:
    fixture.write(tmp_path)
    source = open_source(tmp_path, split="train")
    camera = source.facts.embodiment.cameras[0]
    pixels = source.frames.read(next(iter(source)).steps[0].frames["front"])
    assert pixels.shape == (camera.height_px, camera.width_px, 3)
    assert (camera.hfov_deg, camera.height_m) == (79.0, 1.25)


def test_damaged_pictures_do_not_keep_a_set_from_being_opened(tmp_path: Path) -> None:
    fixture.write(tmp_path)
    (tmp_path / "images" / "scanA_r2r_000007" / "rgb" / "001.jpg").write_bytes(b"\xff\xd8")
    source = open_source(tmp_path, split="train")
    assert source.facts.embodiment.cameras[0].width_px == 64
    with pytest.raises(UserError, match=r"001\.jpg"):
        source.frames.read(next(iter(source)).steps[0].frames["front"])


def test_memory_does_not_grow_with_the_number_of_episodes(tmp_path: Path) -> None:
    peaks = []
    for number in (150, 600):
        source = opened(
            tmp_path, [RECORD | {"id": at, "pad": "x" * 30_000} for at in range(number)]
        )
        tracemalloc.start()
        assert sum(1 for _ in source) == number
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]  # the file grows from 4.5 to 18 MB, the window does not
