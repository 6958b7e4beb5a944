"""RxR-CE: roles, languages, a ground truth of each role, no vocabulary."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.episodes.fixtures import rxr_ce
from tests.episodes.fixtures.expected import differences
from vla_nav.episodes.formats import detect, open_source
from vla_nav.episodes.source import EpisodeError, episodes_and_errors
from vla_nav.errors import UserError

SPLIT = "val_unseen"
NO_VOCABULARY: dict[str, Any] = {  # a guide's episode in a file without a role in its name
    "episodes": [
        {
            "episode_id": "1",
            "trajectory_id": "0",
            "scene_id": "mp3d/sceneA/sceneA.glb",
            "start_position": [1.5, 0.17, -4.25],
            "start_rotation": [0.0, 0.5, 0.0, 0.8660254037844386],
            "info": {"role": "guide", "geodesic_distance": 8.9},
            "goals": [{"position": [3.0, 0.17, 4.5], "radius": 3.0}],
            "reference_path": [[1.5, 0.17, -4.25], [3.0, 0.17, 4.5]],
            "instruction": {
                "instruction_id": "0",
                "instruction_text": "Turn around, and wait beside the plant.",
                "language": "en-IN",
                "annotator_id": "0",
                "timed_instruction": [{"word": "Turn", "start_time": 0.0, "end_time": 0.4}],
            },
        }
    ]
}


@pytest.mark.parametrize("role", ["guide", "follower"])
@pytest.mark.parametrize("folder", ["", "RxR_VLNCE_v0"])
def test_a_role_is_read_with_its_own_ground_truth(tmp_path: Path, role: str, folder: str) -> None:
    expected = rxr_ce.write(tmp_path / folder, role=role)
    assert differences(open_source(tmp_path, split=SPLIT, role=role), expected) == []


def test_without_a_role_guides_come_before_followers(tmp_path: Path) -> None:
    """Id 2 is in both roles, with other actions."""
    guide, follower = (rxr_ce.write(tmp_path, role=role) for role in ("guide", "follower"))
    episodes = list(open_source(tmp_path, split=SPLIT))
    wanted = [(e.role, e.episode_id) for e in (*guide.episodes, *follower.episodes)]
    assert [(e.role, e.episode_id) for e in episodes] == wanted
    assert len({episode.key for episode in episodes}) == 5
    both = [e.metadata["ground_truth"]["actions"] for e in episodes if e.episode_id == "2"]
    assert both == [[3, 3, 1, 1, 0], [2, 1, 1, 1, 1, 0]]


def test_a_ground_truth_of_the_other_role_is_refused(tmp_path: Path) -> None:
    rxr_ce.write(tmp_path)
    truth = tmp_path / SPLIT / f"{SPLIT}_guide_gt.json.gz"
    truth.write_bytes((tmp_path / SPLIT / f"{SPLIT}_follower_gt.json.gz").read_bytes())
    items = list(episodes_and_errors(open_source(tmp_path, split=SPLIT, role="guide")))
    assert [type(item) for item in items] == [EpisodeError] * 3
    assert all("use the gt file of the same split and role" in str(item) for item in items)


def test_an_episode_of_the_other_role_is_refused(tmp_path: Path) -> None:
    rxr_ce.write(tmp_path, has_gt=False)
    guide = tmp_path / SPLIT / f"{SPLIT}_guide.json.gz"
    guide.write_bytes((tmp_path / SPLIT / f"{SPLIT}_follower.json.gz").read_bytes())
    with pytest.raises(UserError, match=r"key info.role is 'follower', asked for was 'guide'"):
        list(open_source(tmp_path, split=SPLIT, role="guide"))


@pytest.mark.parametrize("name", [f"{SPLIT}.json", f"{SPLIT}_guide.json.gz", "rxr_no_vocab.json"])
def test_a_file_without_vocabulary_keeps_role_and_language(tmp_path: Path, name: str) -> None:
    text = json.dumps(NO_VOCABULARY).encode()
    file = tmp_path / name
    file.write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    path = file if name.startswith("rxr") else tmp_path
    assert detect(path, SPLIT) == "rxr_ce"
    (episode,) = open_source(path, split=SPLIT)
    assert episode.key == ("rxr_ce", SPLIT, "guide", "1")
    assert episode.metadata["instruction"]["language"] == "en-IN"
    assert episode.metadata["instruction"]["timed_instruction"][0]["word"] == "Turn"
    # q = (0, sin 30, 0, cos 30) in xyzw turns by 60 degrees about +Y
    assert episode.start_pose.yaw_rad == pytest.approx(1.0471975511965976)


def test_a_role_that_is_not_there_is_named(tmp_path: Path) -> None:
    rxr_ce.write(tmp_path, roles=("guide",))
    with pytest.raises(UserError, match=r"no val_unseen/val_unseen_follower.json.gz"):
        open_source(tmp_path, split=SPLIT, role="follower")
    with pytest.raises(UserError, match=r"unknown data.role 'giude' \(did you mean 'guide'\?\)"):
        open_source(tmp_path, split=SPLIT, role="giude")
    assert [e.role for e in open_source(tmp_path, split=SPLIT)] == ["guide"] * 3
