"""ObjectNav: goals shared by scene and category, view points, keys of any version."""

from __future__ import annotations

import copy
import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.episodes.fixtures import objectnav
from tests.episodes.fixtures.expected import differences
from vla_nav.episodes.formats import detect, open_source
from vla_nav.episodes.source import EpisodeError, episodes_and_errors
from vla_nav.errors import UserError

KEY = "sceneB.basis.glb_chair"
UNKNOWN_KEYS: dict[str, Any] = {
    "episodes": [
        {
            "episode_id": "0",
            "scene_id": "hm3d/val/00800-sceneB/sceneB.basis.glb",
            "scene_dataset_config": "./data/hm3d.scene_dataset_config.json",
            "additional_obj_config_paths": [],
            "start_position": [-1.2, 0.06, 3.4],
            "start_rotation": [0, math.sqrt(0.5), 0, math.sqrt(0.5)],
            "info": {"geodesic_distance": 5.1, "closest_goal_object_id": 12},
            "goals": [],
            "start_room": None,
            "shortest_paths": None,
            "object_category": "chair",
        }
    ],
    "category_to_task_category_id": {"chair": 0},
    "goals_by_category": {
        KEY: [
            {
                "object_category": "chair",
                "object_id": 12,
                "position": [2.0, 0.5, 1.0],
                "radius": None,
                "view_points": [
                    {
                        "agent_state": {
                            "position": [1.6, 0.06, 1.3],
                            "rotation": [0, 0.38, 0, 0.92],
                        },
                        "iou": 0.2,
                    }
                ],
            }
        ]
    },
}


def write(tmp_path: Path, content: Any) -> Path:
    path = tmp_path / "val.json"
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize("has_shared_goals", [True, False])
def test_the_fixture_is_read(tmp_path: Path, has_shared_goals: bool) -> None:
    expected = objectnav.write(tmp_path, has_shared_goals=has_shared_goals)
    source = open_source(tmp_path, split="val")
    assert differences(source, expected) == []
    chair, bed, other = list(source)[:3]
    assert len(chair.goals) == 4  # two chairs, two view points each
    assert chair.goals == other.goals
    assert {goal.radius_m for goal in chair.goals} == {0.1}
    assert len(bed.goals) == 2
    assert [
        (thing["object_id"], thing["num_view_points"]) for thing in chair.metadata["objects"]
    ] == [
        (0, 2),
        (1, 2),
    ]
    if has_shared_goals:
        assert chair.goals is other.goals  # made once, however many episodes share them


@pytest.mark.parametrize("is_first", [True, False])
def test_unknown_keys_are_kept_wherever_the_table_stands(tmp_path: Path, is_first: bool) -> None:
    content = dict(reversed(UNKNOWN_KEYS.items())) if is_first else UNKNOWN_KEYS
    path = write(tmp_path, content)
    for place in (tmp_path, path):
        assert detect(place, "val") == "objectnav"
        (episode,) = open_source(place, split="val")
    assert episode.key == ("objectnav", "val", "", "sceneB-0")
    assert (episode.instruction, episode.steps) == ("", ())
    assert [(goal.position, goal.radius_m) for goal in episode.goals] == [((1.6, 0.06, 1.3), 0.1)]
    raw = UNKNOWN_KEYS["episodes"][0]
    for key in ("scene_dataset_config", "additional_obj_config_paths", "start_room", "info"):
        assert episode.metadata[key] == raw[key]
    assert episode.metadata["object_category"] == "chair"
    assert episode.metadata["file"] == {"category_to_task_category_id": {"chair": 0}}
    assert episode.metadata["objects"] == [
        {
            "object_category": "chair",
            "object_id": 12,
            "position": [2.0, 0.5, 1.0],
            "radius": None,
            "num_view_points": 1,
        }
    ]


def test_an_object_without_view_points_is_its_own_goal(tmp_path: Path) -> None:
    content = copy.deepcopy(UNKNOWN_KEYS)
    del content["goals_by_category"][KEY][0]["view_points"]
    write(tmp_path, content)
    (episode,) = open_source(tmp_path, split="val")
    assert [goal.position for goal in episode.goals] == [(2.0, 0.5, 1.0)]


@pytest.mark.parametrize(
    ("goals", "message"),
    [
        (None, "key goals_by_category has no entry 'sceneB.basis.glb_chair'"),
        ([], r"key goals_by_category.sceneB.basis.glb_chair is \[\]"),
        ([3], r"key goals_by_category.sceneB.basis.glb_chair\[0\] is 3"),
        ([{"position": [0, 0]}], r"glb_chair\[0\].position is \[0, 0\]; allowed: 3 finite"),
        ([{"view_points": 3}], r"glb_chair\[0\].view_points is 3; allowed: a list"),
        ([{"view_points": [{}]}], r"view_points\[0\].agent_state.position is missing"),
        (
            [{"view_points": [{"agent_state": {"position": [0, float("nan"), 0]}}]}],
            r"view_points\[0\].agent_state.position is \[0, nan, 0\]",
        ),
        ([{"position": [0, 0, 0], "iou": float("inf")}], r"glb_chair\[0\].iou is inf"),
    ],
)
def test_goals_that_are_broken_are_named(tmp_path: Path, goals: Any, message: str) -> None:
    content = copy.deepcopy(UNKNOWN_KEYS)
    content["goals_by_category"] = {} if goals is None else {KEY: goals}
    path = write(tmp_path, content)
    (fault,) = episodes_and_errors(open_source(tmp_path, split="val"))
    assert isinstance(fault, EpisodeError)
    with pytest.raises(EpisodeError, match=rf"^{path}: episode 0: .*{message}"):
        raise fault
    assert str(fault).isprintable()


def test_every_cut_of_a_scene_is_named_and_the_scenes_before_it_are_read(tmp_path: Path) -> None:
    expected = objectnav.write(tmp_path)
    path = tmp_path / "val/content/sceneB.json.gz"
    text = gzip.decompress(path.read_bytes())
    for length in range(0, len(text), 29):
        path.write_bytes(gzip.compress(text[:length]))
        episodes = iter(open_source(tmp_path, split="val", format=expected.format))
        read = [next(episodes).episode_id for _ in range(3)]
        assert read == ["sceneA-0", "sceneA-1", "sceneA-2"]
        with pytest.raises(UserError, match=r"sceneB.json.gz: "):
            next(episodes)
