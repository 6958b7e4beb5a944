"""PointNav: scenes in files of their own, ids that start again, goals without a radius."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest

from tests.episodes.fixtures import pointnav
from tests.episodes.fixtures.expected import differences
from vla_nav.episodes.formats import open_source
from vla_nav.episodes.source import EpisodeError, episodes_and_errors
from vla_nav.errors import UserError


@pytest.mark.parametrize("content", ["content", "by_scene"])
def test_scenes_are_read_by_name_under_ids_of_their_own(tmp_path: Path, content: str) -> None:
    expected = pointnav.write(tmp_path, content=content)
    source = open_source(tmp_path, split="val")
    assert differences(source, expected) == []
    episodes = list(source)
    assert [e.episode_id for e in episodes] == [
        "sceneA-0",
        "sceneA-1",
        "sceneA-2",
        "sceneB-0",
        "sceneB-1",
    ]
    assert [e.metadata["episode_id"] for e in episodes] == ["0", "1", "2", "0", "1"]
    assert {goal.radius_m for e in episodes for goal in e.goals} == {0.2}  # stated, and by default
    assert episodes[1].metadata["shortest_paths"][0][0]["action"] == 1


def test_one_file_for_all_scenes_is_read_too(tmp_path: Path) -> None:
    expected = pointnav.write(tmp_path, is_one_file=True)
    assert differences(open_source(tmp_path, split="val"), expected) == []


@pytest.mark.parametrize("stated", ["/etc/{scene}.json.gz", "{data_path}/../{scene}.json.gz", 3])
def test_a_folder_outside_the_data_set_is_refused(tmp_path: Path, stated: object) -> None:
    pointnav.write(tmp_path)
    top = {"episodes": [], "content_scenes_path": stated}
    pointnav.write_gzip(tmp_path / "val/val.json.gz", top)
    with pytest.raises(UserError, match=r"val.json.gz: key content_scenes_path is .*allowed:"):
        open_source(tmp_path, split="val", format="pointnav")


def test_a_damaged_scene_is_named(tmp_path: Path) -> None:
    pointnav.write(tmp_path)
    scene = tmp_path / "val/content/sceneB.json.gz"
    scene.write_bytes(scene.read_bytes()[:-20])
    episodes = iter(open_source(tmp_path, split="val"))
    assert [next(episodes).episode_id for _ in range(3)][-1] == "sceneA-2"
    with pytest.raises(UserError, match=r"content/sceneB.json.gz: damaged or cut short"):
        next(episodes)


def test_a_goal_that_cannot_be_reached_is_one_fault_and_the_rest_is_read(tmp_path: Path) -> None:
    """A goal on another island has an infinite geodesic distance: told, never a silent 0."""
    pointnav.write(tmp_path, is_one_file=True)
    path = tmp_path / "val/val.json"
    (tmp_path / "val/val.json.gz").unlink()
    raw = {
        "scene_id": "gibson/a.glb",
        "start_position": [0, 0, 0],
        "start_rotation": [0, 0, 0, 1],
        "goals": [{"position": [1, 0, 1]}],
    }
    island = {**raw, "episode_id": "0", "info": {"geodesic_distance": float("inf")}}
    path.write_text(json.dumps({"episodes": [island, {**raw, "episode_id": "1"}]}))
    fault, episode = episodes_and_errors(open_source(tmp_path, split="val"))
    assert isinstance(fault, EpisodeError)
    assert (fault.episode_id, fault.key) == ("0", "info.geodesic_distance")
    assert episode.episode_id == "a-1"


def test_memory_does_not_grow_with_the_number_of_episodes(tmp_path: Path) -> None:
    def peak_bytes(num_episodes: int) -> int:
        raw = {
            "scene_id": "gibson/a.glb",
            "start_position": [0, 0, 0],
            "start_rotation": [0, 0, 0, 1],
            "goals": [{"position": [1, 0, 1]}],
            "more": "x" * 20_000,
        }
        records = ({**raw, "episode_id": number} for number in range(num_episodes))
        (tmp_path / "val.json").write_text(json.dumps({"episodes": list(records)}))
        tracemalloc.start()
        try:
            assert sum(1 for _ in open_source(tmp_path, split="val")) == num_episodes
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    few, many = peak_bytes(150), peak_bytes(1000)  # 3 MB and 20 MB of JSON
    assert many < few + 2**20
