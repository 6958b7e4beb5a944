"""JanusVLN's pictures: actions in names, joined with the episode file; what is unknown is said."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import pytest

from tests.episodes.fixtures import janusvln as fixture
from tests.episodes.fixtures.videos import write_picture
from tests.episodes.fixtures.walk import walk
from vla_nav.episodes.formats import detect, open_source
from vla_nav.episodes.janusvln import ASSUMED_TURN_DEG, JanusVlnSource
from vla_nav.episodes.source import EpisodeError, episodes_and_errors
from vla_nav.episodes.types import Episode
from vla_nav.errors import UserError


def write(root: Path, episode: str, names: list[str]) -> None:
    for at, name in enumerate(names):
        write_picture(root / episode / name, at)


def opened(root: Path, split: str = "train") -> JanusVlnSource:
    return open_source(root, split=split, format="janusvln")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return fixture.write(tmp_path).root


@pytest.mark.filterwarnings("ignore:.*left out")
def test_the_turn_angle_is_not_stated_and_the_assumed_one_is_said(root: Path) -> None:
    source = opened(root)
    assert source.facts.turn_deg is None
    assert source.facts.embodiment is None
    assert not source.facts.is_pose_measured
    for episode in source:
        actions = [step.executed[0] for step in episode.steps]
        start = episode.start_pose
        yaw_deg = math.degrees(start.yaw_rad)
        positions, _ = walk(start.position, yaw_deg, actions, turn_deg=ASSUMED_TURN_DEG)
        for step, position in zip(episode.steps, positions, strict=False):
            assert step.pose.position == pytest.approx(position)
        assert episode.metadata["assumed_turn_deg"] == ASSUMED_TURN_DEG


@pytest.mark.filterwarnings("ignore:.*left out")
def test_starts_goals_and_further_keys_are_those_of_the_episode_file(root: Path) -> None:
    episode = next(iter(opened(root)))
    assert episode.scene_id == "mp3d/sceneA/sceneA.glb"
    assert math.degrees(episode.start_pose.yaw_rad) == pytest.approx(90)
    assert [goal.radius_m for goal in episode.goals] == [3.0]
    assert episode.metadata["trajectory_id"] == 0


def test_what_is_left_out_is_counted(root: Path) -> None:
    write(root / "train", "99", ["step_0000_STOP.png"])
    with pytest.warns(UserWarning, match="left out: 1 entries without pictures, 1 folders without"):
        assert [e.episode_id for e in opened(root)] == ["7", "12"]


def test_without_an_episode_file_folders_are_episodes_without_instruction(tmp_path: Path) -> None:
    root = tmp_path / "RxR-CE-640x480"
    for episode in ("10", "9", "b"):
        write(root / "images", episode, ["step_0000_turn_left.png", "step_0001_stop.png"])
    assert detect(root, "train") == "janusvln"
    source = opened(root)
    assert [(e.episode_id, e.instruction) for e in source] == [("9", ""), ("10", ""), ("b", "")]
    assert "No episode file was found" in source.facts.notes[1]
    assert [step.executed for step in next(iter(source)).steps] == [(2,), (0,)]


@pytest.mark.parametrize(
    ("names", "fault"),
    [
        (["step_0000_TURN_LEFT.png", "step_0002_STOP.png"], "step 1 is missing"),
        (["step_0001_STOP.png"], "step 0 is missing"),
        (["step_0000_GO_ON.png"], "allowed: step_<number>_<ACTION>.png"),
        (["step_0000.png"], "allowed: step_<number>_<ACTION>.png"),
        (["step_0000_STOP.png", "step_0_STOP.png"], "are both frame 0"),
        (["thumbs.png"], "no picture step_0000"),
    ],
)
def test_a_folder_with_an_unknown_action_is_named_and_the_next_is_read(
    names: list[str], fault: str, tmp_path: Path
) -> None:
    write(tmp_path, "1", names)
    write(tmp_path, "2", ["step_0000_STOP.png"])
    error, episode = episodes_and_errors(opened(tmp_path))
    assert isinstance(error, EpisodeError)
    assert isinstance(episode, Episode)
    assert (error.episode_id, episode.episode_id) == ("1", "2")
    assert fault in str(error)
    assert str(tmp_path / "1") in str(error)


def test_an_id_that_is_a_path_reads_no_other_folder(root: Path) -> None:
    import gzip
    import json

    file = root.parents[1] / "datasets" / "r2r" / "train" / "train.json.gz"
    content = json.loads(gzip.decompress(file.read_bytes()))
    for raw, episode_id in zip(content["episodes"], ("../train/7", "..", "."), strict=True):
        raw["episode_id"] = episode_id
    file.write_bytes(gzip.compress(json.dumps(content).encode()))
    with pytest.warns(UserWarning, match="0 episodes have pictures"):
        assert list(opened(root)) == []


def test_where_there_are_no_pictures_the_folders_are_named(tmp_path: Path) -> None:
    (tmp_path / "train" / "1").mkdir(parents=True)
    with pytest.raises(UserError, match=r"step_0000_<ACTION>\.png here, nor below train or images"):
        opened(tmp_path)
