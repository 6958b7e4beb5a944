"""The boundary of all formats: found by name or by what a folder holds, and told in one line."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from made_episodes import body, made, record, same

from tests.episodes.fixtures import objectnav, pointnav, r2r_ce, rxr_ce
from tests.episodes.fixtures.every_format import PLAIN
from vla_nav.episodes.formats import FORMATS, LAYOUTS, detect, open_source
from vla_nav.episodes.lerobot_finalise import finalise
from vla_nav.episodes.source import EpisodeError, episodes_and_errors
from vla_nav.episodes.types import Episode
from vla_nav.errors import UserError


@pytest.mark.parametrize("module", [r2r_ce, rxr_ce, pointnav, objectnav])
def test_a_format_is_detected_or_named(tmp_path: Path, module: object) -> None:
    expected = module.write(tmp_path)  # type: ignore[attr-defined]
    assert detect(tmp_path, expected.split) == expected.format
    detected = [episode.key for episode in open_source(tmp_path, split=expected.split)]
    named = open_source(tmp_path, split=expected.split, format=expected.format)
    assert detected == [episode.key for episode in named]
    assert {key[0] for key in detected} == {expected.format}


def test_every_format_has_a_layout_to_look_for() -> None:
    assert set(FORMATS) == set(LAYOUTS) == {*PLAIN, "recorded"}


def test_faults_say_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere: no such file or folder; correct data.path"):
        open_source(tmp_path / "nowhere", split="val")
    with pytest.raises(
        UserError, match=r"found no episode data of split 'val'; looked for "
    ) as caught:
        open_source(tmp_path, split="val")
    assert all(f"({name})" in str(caught.value) for name in FORMATS)
    with pytest.raises(UserError, match=r"unknown data.format 'r2rce' \(did you mean 'r2r_ce'"):
        open_source(tmp_path, split="val", format="r2rce")
    for name in ("r2r_ce", "rxr_ce", "pointnav", "objectnav"):
        with pytest.raises(UserError, match=r"no val/val\w*.json.gz .*correct data.path"):
            open_source(tmp_path, split="val", format=name)


@pytest.mark.parametrize("content", [b"", b"\x1f\x8b\x08", b"{", b"[1", b"\x28\xb5\x2f\xfd\x00"])
def test_a_damaged_file_is_named_when_its_format_is_looked_for(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "val.json.gz").write_bytes(content)
    with pytest.raises(UserError, match=r"val.json.gz: |found no episode data"):
        detect(tmp_path, "val")
    with pytest.raises(UserError, match=r"val.json.gz: "):
        list(open_source(tmp_path, split="val", format="r2r_ce"))


def test_iteration_goes_on_after_an_episode_that_cannot_be_read(tmp_path: Path) -> None:
    r2r_ce.write(tmp_path, has_gt=False)
    path = tmp_path / "val_unseen/val_unseen.json.gz"
    content = json.loads(gzip.decompress(path.read_bytes()))
    content["episodes"][1]["start_rotation"] = [0, 1, 0, 1]
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    with pytest.warns(UserWarning, match="headings are wrong"):
        source = open_source(tmp_path, split="val_unseen")
    first, fault, last = episodes_and_errors(source)
    assert isinstance(first, Episode)
    assert isinstance(last, Episode)
    assert (first.episode_id, last.episode_id) == ("7", "3")
    assert isinstance(fault, EpisodeError)
    assert (fault.episode_id, fault.key) == ("12", "start_rotation")
    assert (
        str(fault)
        == f"{path}: episode 12: key start_rotation has norm 1.414; it must be a unit xyzw"
    )
    copy = pickle.loads(pickle.dumps(fault))  # a worker hands it on
    assert (copy.episode_id, copy.key, str(copy)) == (fault.episode_id, fault.key, str(fault))
    with pytest.raises(EpisodeError, match="episode 12"):
        list(source)


def test_a_source_can_be_sent_to_a_worker(tmp_path: Path) -> None:
    expected = pointnav.write(tmp_path)
    source = open_source(tmp_path, split=expected.split)
    sent = pickle.loads(pickle.dumps(source))
    assert [e.key for e in sent] == [e.key for e in source]


def test_a_recording_goes_before_the_file_it_was_made_from(tmp_path: Path) -> None:
    r2r_ce.write(tmp_path, split="train")
    root = tmp_path / "recorded/train"
    record(root, range(3), body())
    assert detect(tmp_path, "train") == "r2r_ce"  # it is not finished
    wanted = [made(number, body()) for number in range(3)]
    finalise(root, [episode.key for episode, _ in wanted])
    for place in (tmp_path, root):
        source = open_source(place, split="train")
        assert (source.facts.format, source.facts.embodiment) == ("recorded", body())
        assert all(map(same, source, (episode for episode, _ in wanted)))
        assert sum(1 for _ in source) == 3
        episode, frames = wanted[1]
        key = episode.steps[0].frames["front"]
        assert np.array_equal(source.frames.read(key), frames[key])
    with pytest.raises(UserError, match=r"vla_nav.split is 'train', asked for was 'val'"):
        open_source(root, split="val")
