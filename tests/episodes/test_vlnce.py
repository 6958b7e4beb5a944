"""VLN-CE files: the faults that broke public readers, and the real R2R-CE files where present."""

from __future__ import annotations

import copy
import gzip
import json
import math
import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_episodes import heading_deg

from vla_nav.episodes.ground_truth import align_by_forward, ground_truth_poses
from vla_nav.episodes.scenes import resolve_scene
from vla_nav.episodes.types import Pose
from vla_nav.episodes.vlnce import read_vlnce, release_of, write_vlnce
from vla_nav.errors import UserError

HALF = math.sqrt(0.5)
R2R: dict[str, Any] = {
    "episode_id": 7,
    "trajectory_id": 3,
    "scene_id": "mp3d/aaa/aaa.glb",
    "start_position": [0.0, 0.1, 0.0],
    "start_rotation": [0.0, 0.0, 0.0, 1.0],
    "info": {"geodesic_distance": 5.5},
    "goals": [{"position": [1.0, 0.1, -5.0], "radius": 3.0}],
    "instruction": {"instruction_text": "Go in. Stop.", "instruction_tokens": [4, 5, 0]},
    "reference_path": [[0.0, 0.1, 0.0], [1.0, 0.1, -5.0]],
}
RXR: dict[str, Any] = R2R | {
    "episode_id": "12",
    "info": {"role": "guide", "geodesic_distance": 5.5},
    "instruction": {
        "instruction_id": "0",
        "instruction_text": "You are facing a door.",
        "language": "en-IN",
        "timed_instruction": [{"word": "You", "start_time": 0.0, "end_time": 0.4}],
    },
}
TRUTH: dict[str, Any] = {
    "actions": [1, 2, 1, 3, 0],
    "locations": [[0.0, 0.1, 0.0], [0.0, 0.1, -0.25], [-0.0647, 0.1, -0.4915]],
    "forward_steps": 2,
}
VOCABULARY = {"instruction_vocab": {"word_list": ["go", "stop"]}}


def write(path: Path, content: Any) -> Path:
    text = content if isinstance(content, str) else json.dumps(content)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def read(path: Path, **options: Any) -> list[Any]:
    return list(read_vlnce(path, dataset="r2r-ce", split="val", **options))


def test_an_episode_is_read_with_every_field(tmp_path: Path) -> None:
    path = write(tmp_path / "val.json.gz", {"episodes": [R2R], **VOCABULARY})
    (episode,) = read(path)
    assert episode.key == ("r2r-ce", "val", "", "7")
    assert episode.scene_id == "mp3d/aaa/aaa.glb"
    assert episode.instruction == "Go in. Stop."
    assert episode.start_pose == Pose((0.0, 0.1, 0.0), (0.0, 0.0, 0.0, 1.0))
    assert (episode.goals[0].position, episode.goals[0].radius_m) == ((1.0, 0.1, -5.0), 3.0)
    assert episode.reference_path.tolist() == R2R["reference_path"]
    assert (episode.embodiment, episode.steps) == (None, ())
    assert episode.metadata == {
        "trajectory_id": 3,
        "info": {"geodesic_distance": 5.5},
        "instruction": {"instruction_tokens": [4, 5, 0]},
    }


def test_rxr_without_vocabulary_keeps_language_and_role(tmp_path: Path) -> None:
    path = write(tmp_path / "guide.json", {"episodes": [RXR]})
    (episode,) = read(path)
    assert episode.key == ("r2r-ce", "val", "guide", "12")
    assert episode.metadata["instruction"]["language"] == "en-IN"
    assert episode.metadata["instruction"]["timed_instruction"][0]["word"] == "You"
    assert read(path, role="guide")[0].role == "guide"
    with pytest.raises(UserError, match=r"episode 12: key info.role is 'guide', asked for was"):
        read(path, role="follower")


def test_unknown_keys_are_kept(tmp_path: Path) -> None:
    """ObjectNav: no instruction, goals in a table of the file, keys that change per version."""
    raw = {k: R2R[k] for k in ("scene_id", "start_position", "start_rotation")}
    raw |= {"episode_id": "0", "object_category": "chair", "scene_dataset_config": "x.json"}
    raw |= {"goals": [], "start_room": None, "shortest_paths": None}
    table = {"aaa.glb_chair": [{"radius": None}], "bbb.glb_bed": [{"radius": None}]}
    content = {"episodes": [raw], "goals_by_category": table, "category_to_id": {"chair": 0}}
    (episode,) = read(write(tmp_path / "o.json", content))
    assert (episode.instruction, episode.goals) == ("", ())
    assert episode.reference_path.shape == (0, 3)
    assert episode.metadata["scene_dataset_config"] == "x.json"
    assert episode.metadata["start_room"] is None
    assert episode.metadata["file"] == {
        "goals_by_category": {"aaa.glb_chair": [{"radius": None}]},
        "category_to_id": {"chair": 0},
    }


def test_rotations_are_xyzw(tmp_path: Path) -> None:
    """By hand: q = (0, sin a/2, 0, cos a/2) turns by a = 2 atan2(0.6199, -0.7847) = -76.62 deg
    (mod 360), so -Z looks along (-sin a, -cos a) = (0.9728, -0.2315). Read as wxyz it would be a
    tilt out of the plane."""
    rotation = [0, 0.6198966754439885, 0, -0.7846834468583432]
    path = write(tmp_path / "a.json", {"episodes": [R2R | {"start_rotation": rotation}]})
    (episode,) = read(path)
    assert heading_deg(episode.start_pose) == pytest.approx(-76.617, abs=1e-3)
    yaw = episode.start_pose.yaw_rad
    forward = (-math.sin(yaw), -math.cos(yaw))
    assert forward == pytest.approx((0.97285, -0.23146), abs=1e-4)
    quarter = write(
        tmp_path / "b.json", {"episodes": [R2R | {"start_rotation": [0, HALF, 0, HALF]}]}
    )
    assert heading_deg(read(quarter)[0].start_pose) == pytest.approx(90)


def test_ground_truth_is_aligned_by_forward(tmp_path: Path) -> None:
    path = write(tmp_path / "val.json.gz", {"episodes": [R2R], **VOCABULARY})
    gt = write(tmp_path / "val_gt.json.gz", {"7": TRUTH, "8": {}})
    (episode,) = read(path, gt=gt)
    start, one, two = (tuple(place) for place in TRUTH["locations"])
    poses = ground_truth_poses(episode, turn_deg=15.0)
    assert [pose.position for pose in poses] == [start, one, one, two, two, two]
    assert [heading_deg(pose) for pose in poses] == pytest.approx([0, 0, 15, 15, 0, 0])
    with pytest.raises(UserError, match="has no ground truth"):
        ground_truth_poses(read(path)[0], turn_deg=15.0)


@pytest.mark.parametrize("size", [1, 63, 97, 130])
def test_alignment_equals_a_walk(size: int) -> None:
    rng = np.random.default_rng(size)
    actions = [*rng.integers(1, 6, size - 1).tolist(), 0]
    place, locations, expected = np.zeros(3), [[0.0, 0.0, 0.0]], [[0.0, 0.0, 0.0]]
    for action in actions:
        if action == 1:
            place = place + rng.random(3)
            locations.append(place.tolist())
        expected.append(place.tolist())
    assert align_by_forward(actions, locations).tolist() == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"locations": TRUTH["locations"][:2]}, "2 locations do not fit 2 MOVE_FORWARD"),
        ({"locations": TRUTH["locations"] * 2}, "6 locations do not fit 2 MOVE_FORWARD"),
        ({"forward_steps": 3}, "key forward_steps is 3; actions have 2"),
        ({"actions": [1, 0, 1, 0]}, "STOP before the end"),
        ({"actions": [1, 9, 1, 0]}, "key actions must be a list of ids"),
        ({"actions": None}, "key actions must be a list of ids"),
        ({"locations": [[0, 0]] * 3}, "key locations must be a list of points"),
        ({"locations": [[float("nan"), 0, 0]] * 3}, "key locations holds a non-finite"),
        ({"locations": [[9.0, 0.1, 0.0]] * 3}, "starts 9.00 m from the episode's start_position"),
    ],
)
def test_broken_ground_truth_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = write(tmp_path / "val.json.gz", {"episodes": [R2R], **VOCABULARY})
    gt = write(tmp_path / "val_gt.json.gz", {"7": TRUTH | change})
    with pytest.raises(UserError, match=f"val_gt.json.gz: episode 7: .*{message}"):
        read(path, gt=gt)
    with pytest.raises(UserError, match=r"val_gt.json.gz: episode 7: is not in the file"):
        read(path, gt=write(tmp_path / "val_gt.json.gz", {"8": TRUTH}))


def without(*keys: str) -> Callable[[dict[str, Any]], Any]:
    return lambda raw: {key: value for key, value in raw.items() if key not in keys}


def with_(**changes: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda raw: raw | changes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("episode_id"), "episode number 0: key episode_id is missing"),
        (with_(episode_id=True), "episode number 0: key episode_id is True"),
        (lambda _: [1], "episode number 0: is \\[1\\], not an object"),
        (without("scene_id"), "episode 7: key scene_id is missing"),
        (without("start_position"), "episode 7: key start_position is missing"),
        (with_(start_position=[1, 2]), "key start_position is \\[1, 2\\]; allowed: 3 finite"),
        (with_(start_position=[1, "2", 3]), "key start_position"),
        (with_(start_position=[float("inf"), 0, 0]), "key start_position is \\[inf, 0, 0\\]"),
        (with_(start_rotation=[0, 1, 0, 1]), "key start_rotation has norm 1.414; .* unit xyzw"),
        (with_(start_rotation=[0, 0, 1]), "key start_rotation is \\[0, 0, 1\\]; allowed: 4"),
        (with_(reference_path=[[0, 0, 0], [0, 0]]), "key reference_path\\[1\\] is \\[0, 0\\]"),
        (with_(reference_path=3), "key reference_path is 3"),
        (with_(goals=[{"radius": 3.0}]), "key goals\\[0\\].position is missing"),
        (with_(goals=[{"position": [0, 0, 0], "radius": -1}]), "key goals\\[0\\].radius is -1"),
        (with_(goals=[{"position": [0, 0, 0]}]), "radius is missing; pass default_radius_m"),
        (with_(goals={"a": 1}), "key goals is {'a': 1}"),
        (with_(instruction={"text": "x"}), "key instruction.instruction_text is missing"),
        (with_(info={"geodesic_distance": float("nan")}), "key info.geodesic_distance is nan"),
        (with_(info={"a": [0.5, [float("inf")]]}), "key info.a\\[1\\]\\[0\\] is inf"),
    ],
)
def test_a_fault_is_one_line_with_file_episode_and_key(
    tmp_path: Path, change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    path = write(tmp_path / "val.json.gz", {"episodes": [change(copy.deepcopy(R2R))]})
    with pytest.raises(UserError, match=f"^{path}: .*{message}") as caught:
        read(path)
    assert "\n" not in str(caught.value)


def test_files_that_are_not_episode_files_are_named(tmp_path: Path) -> None:
    whole = gzip.compress(json.dumps({"episodes": [R2R] * 50}).encode())
    faults = {
        "cut.json.gz": (whole[: len(whole) // 2], "damaged or cut short"),
        "flipped.json.gz": (whole[:40] + b"\x00\xff" + whole[42:], "damaged|not valid JSON"),
        "text.json": (b"{ not json", "not valid JSON"),
        "latin.json": (b'{"episodes": "\xff"}', "not valid JSON"),
        "deep.json": (b"[" * 10**5, "not valid JSON"),
        "list.json": (b"[]", "key 'episodes' is missing"),
        "empty.json": (b"", "not valid JSON"),
        "gt.json": (json.dumps({"7": TRUTH}).encode(), "is it an episode file"),
    }
    for name, (content, message) in faults.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=f"{name}: .*({message})"):
            read(tmp_path / name)
    with pytest.raises(UserError, match=r"no.json.gz: no such file; see data/README.md"):
        read(tmp_path / "no.json.gz")
    twice = write(tmp_path / "twice.json", {"episodes": [R2R, R2R | {"episode_id": "7"}]})
    with pytest.raises(UserError, match="episode_id 7 occurs twice"):
        read(twice)


def test_a_missing_radius_takes_the_stated_default(tmp_path: Path) -> None:
    raw = R2R | {"goals": [{"position": [0, 0, 0], "radius": None}]}
    path = write(tmp_path / "p.json", {"episodes": [raw]})
    assert read(path, default_radius_m=0.2)[0].goals[0].radius_m == 0.2


def test_headings_tell_the_release(tmp_path: Path) -> None:
    """Multiples of 30 degrees in v1-3; anything in v1 and v1-2."""

    def turned(number: int, degrees: float) -> dict[str, Any]:
        half = math.radians(degrees) / 2
        rotation = [0.0, math.sin(half), 0.0, math.cos(half)]
        return R2R | {"episode_id": number, "start_rotation": rotation}

    good = {"episodes": [turned(n, 30.0 * n) for n in range(12)], **VOCABULARY}
    bad = {"episodes": [*good["episodes"], turned(12, 47.3)], **VOCABULARY}
    assert release_of(good) == "r2r-ce v1-3"
    assert release_of(bad) == "r2r-ce before v1-3"
    assert release_of({"episodes": [RXR]}) == "other"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read(write(tmp_path / "good.json", good))
    with pytest.warns(UserWarning, match=r"bad.json: .*v1 or v1-2, whose headings are wrong"):
        read(write(tmp_path / "bad.json", bad))


def test_what_is_written_is_read_and_equal_episodes_give_equal_bytes(tmp_path: Path) -> None:
    extra = {"episode_id": "b", "goals": [R2R["goals"][0] | {"object_id": 4}]}
    source = {"episodes": [RXR, RXR | extra], "more": {"x": 1}}
    episodes = read(write(tmp_path / "a.json", source))
    write_vlnce(tmp_path / "b.json.gz", episodes)
    again = read(tmp_path / "b.json.gz")
    assert [replace(e, reference_path=0) for e in again] == [
        replace(e, reference_path=0) for e in episodes
    ]
    assert all(
        np.array_equal(a.reference_path, b.reference_path)
        for a, b in zip(again, episodes, strict=True)
    )
    write_vlnce(tmp_path / "c.json.gz", iter(again))
    assert (tmp_path / "b.json.gz").read_bytes() == (tmp_path / "c.json.gz").read_bytes()
    content = json.loads(gzip.decompress((tmp_path / "b.json.gz").read_bytes()))
    assert "door" in content["instruction_vocab"]["word_list"]


def test_scenes_are_found_or_named(tmp_path: Path) -> None:
    scene = tmp_path / "mp3d/aaa/aaa.glb"
    scene.parent.mkdir(parents=True)
    scene.write_bytes(b"")
    assert resolve_scene("mp3d/aaa/aaa.glb", tmp_path) == scene
    assert resolve_scene("mp3d/aaa/aaa.glb", tmp_path / "mp3d") == scene
    with pytest.raises(UserError, match=r"'mp3d/bbb/bbb.glb' is missing: no .*data/README.md"):
        resolve_scene("mp3d/bbb/bbb.glb", tmp_path)
    with pytest.raises(UserError, match="no such scenes folder"):
        resolve_scene("mp3d/aaa/aaa.glb", tmp_path / "nowhere")
    for outside in ("../aaa.glb", "/etc/aaa.glb"):
        with pytest.raises(UserError, match="a path inside the scenes folder"):
            resolve_scene(outside, tmp_path)


@pytest.fixture
def real() -> Path:
    folder = os.environ.get("VLA_NAV_REAL_DATA")
    if not folder:
        pytest.skip("VLA_NAV_REAL_DATA is unset: no real R2R-CE files to read")
    return Path(folder) / "r2r_ce_v1-3"


def test_real_r2r_ce_train(real: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # v1-3: no warning about headings
        episodes = read(real / "train/train.json.gz")
    assert len(episodes) == 10_819
    assert len({episode.scene_id for episode in episodes}) == 61
    assert {goal.radius_m for episode in episodes for goal in episode.goals} == {3.0}


def test_real_r2r_ce_val_unseen_joined_with_its_ground_truth(real: Path) -> None:
    folder = real / "val_unseen"
    episodes = read(folder / "val_unseen.json.gz", gt=folder / "val_unseen_gt.json.gz")
    assert len(episodes) == 1839
    assert len({episode.scene_id for episode in episodes}) == 11
    counts = [len(episode.metadata["ground_truth"]["actions"]) for episode in episodes]
    assert (round(np.mean(counts), 1), max(counts)) == (57.3, 136)
    num_forward = num_off = 0
    for episode in episodes:
        poses = ground_truth_poses(episode, turn_deg=15.0)
        actions = episode.metadata["ground_truth"]["actions"]
        for action, before, after in zip(actions, poses[:-1], poses[1:], strict=True):
            if action == 1:
                forward_m, left_m, _ = before.relative(after)
                num_forward += 1
                num_off += abs(math.atan2(left_m, forward_m)) > math.radians(1)
    assert 0.01 < num_off / num_forward < 0.03  # sliding; a wrong alignment or frame gives > 0.5
