"""InternData-N1: poses through each camera's axes, pictures beside the schema, both of its parts.

Numbers of vln_n1 (first action, extrinsics, intrinsics) are those of published episodes as quoted
in InternRobotics/InternNav issues and notes: an action is p_world = T p_camera with +x right,
+y up, +z back, mounted 0.738 m high and pitched 12.8 degrees down.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.episodes.fixtures import interndata_n1, lerobot_v2
from tests.episodes.fixtures.expected import differences
from tests.episodes.fixtures.marks import read_mark
from tests.episodes.fixtures.videos import write_picture
from vla_nav.episodes.camera_axes import AXES, body_poses, check_same_body
from vla_nav.episodes.formats import detect, open_source
from vla_nav.episodes.source import EpisodeError, episodes_and_errors
from vla_nav.episodes.types import STOP, Pose
from vla_nav.errors import UserError

IDS = ("sceneA/0", "sceneA/0_1", "sceneA/1", "sceneB/0")
ACTION = [
    [0.432, -0.199, 0.879, -3.602],
    [0.902, 0.095, -0.422, 2.020],
    [0.0, 0.975, 0.221, 0.738],
    [0.0, 0.0, 0.0, 1.0],
]
MOUNT = [[1.0, 0, 0, 0], [0, 0.221, -0.975, 0], [0, 0.975, 0.221, 0.738], [0, 0, 0, 1.0]]
LENS = [[355.8, 0, 240.0], [0, 351.7, 135.0], [0, 0, 1.0]]


def errors(root: Path) -> list[str]:
    found = episodes_and_errors(open_source(root, split="train", format="interndata_n1"))
    return [str(e) for e in found if isinstance(e, EpisodeError)]


def change_table(path: Path, **columns: Any) -> None:
    table = pq.read_table(path)
    for name, values in columns.items():
        name = name.replace("__", ".")
        if name in table.column_names:
            table = table.drop_columns([name])
        table = table.append_column(name, [values])
    pq.write_table(table, path)


def test_what_the_public_reader_reads_is_read(tmp_path: Path) -> None:
    """Ids name the scene too: each scene has an episode 0."""
    expected = interndata_n1.write(tmp_path / "set")
    renamed = tuple(
        replace(episode, episode_id=name)
        for episode, name in zip(expected.episodes, IDS, strict=True)
    )
    assert detect(expected.root, "train") == "interndata_n1"
    source = open_source(expected.root, split="train")
    assert differences(source, replace(expected, episodes=renamed)) == []
    assert len({episode.key for episode in source}) == len(IDS)


def test_every_row_has_one_action_and_stop_is_added(tmp_path: Path) -> None:
    expected = interndata_n1.write(tmp_path / "set")
    for episode in open_source(expected.root, split="train"):
        executed = [step.executed for step in episode.steps]
        assert executed[-1] == (STOP,)
        assert sum(p == (STOP,) for p in executed) == 1
        assert episode.scene_id == episode.episode_id.split("/")[0]
        assert episode.metadata["axes"] == "opencv, +z up"
        assert episode.metadata["goal.125cm_30deg"][0] == [40, 30]
        assert all(label.pixel is None for step in episode.steps for label in step.labels)
        assert episode.metadata["cameras"]["125cm_30deg"] == {"height_m": 1.25, "pitch_deg": -30.0}


def test_scenes_may_lie_deeper_or_be_the_root_itself(tmp_path: Path) -> None:
    interndata_n1.write(tmp_path / "traj_data/r2r")
    source = open_source(tmp_path, split="train")
    assert source.facts.format == "interndata_n1"
    assert [e.episode_id for e in source] == [f"traj_data/r2r/{name}" for name in IDS]
    one = open_source(tmp_path / "traj_data/r2r/sceneB", split="train")
    assert [(e.episode_id, e.scene_id) for e in one] == [("0", "sceneB")]
    frames = next(iter(one)).steps[2].frames
    assert read_mark(one.frames.read(frames["125cm_0deg"])) == 6002


def test_depth_is_metres(tmp_path: Path) -> None:
    expected = interndata_n1.write(tmp_path / "set")
    source = open_source(expected.root, split="train")
    depth = source.frames.read(next(iter(source)).steps[0].frames["125cm_30deg.depth"])
    assert depth.dtype == np.float32
    assert np.allclose(depth, 1.5)


@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("world", ["+z up", "+y up"])
@pytest.mark.parametrize("pitch_deg", [0, 15, 30, 45])
def test_axes_are_told_by_what_keeps_the_body_upright(
    axes: str, world: str, pitch_deg: int
) -> None:
    """The oracle draws the camera: where it is and which way its three axes point in our frame."""
    poses, matrices = [], []
    for yaw_deg, place in ((0, (1, 0.5, -2)), (75, (1, 0.5, -2.25)), (200, (-3.0, 0.5, 7))):
        yaw, pitch = math.radians(yaw_deg), math.radians(pitch_deg)
        ahead = np.array([-math.sin(yaw), 0, -math.cos(yaw)])
        looks = math.cos(pitch) * ahead + [0, -math.sin(pitch), 0]
        right = np.array([math.cos(yaw), 0, -math.sin(yaw)])
        above = np.cross(right, looks)
        columns = {
            "opencv": (right, -above, looks),
            "opengl": (right, above, -looks),
            "blender": (right, looks, above),
        }[axes]
        matrix = np.eye(4)
        matrix[:3, :3] = np.stack(columns, axis=1)
        matrix[:3, 3] = np.add(place, [0, 0.6, 0])
        if world == "+z up":  # ours (x, y, z) is theirs (x, -z, y)
            turn = np.array([[1, 0, 0], [0, 0, -1], [0, 1, 0]])
            matrix[:3] = turn @ matrix[:3]
        poses.append((place, yaw_deg))
        matrices.append(matrix)
    found = body_poses(np.stack(matrices), height_m=0.6, pitch_deg=pitch_deg, where="here")
    assert found.axes == f"{axes}, {world}"
    for pose, (place, yaw_deg) in zip(found.poses, poses, strict=True):
        assert np.allclose(pose.position, place, atol=1e-9)
        assert abs(math.remainder(math.degrees(pose.yaw_rad) - yaw_deg, 360)) < 1e-6


def test_matrices_that_are_no_poses_are_named() -> None:
    good = np.eye(4)
    for change, message in (
        ((0, 0, math.nan), "row 1 is no rigid motion"),
        ((0, 0, 2.0), "row 1 is no rigid motion"),
        ((1, 1, -1.0), "row 1 is no rigid motion"),
        ((3, 0, 1.0), "row 1 is no rigid motion"),
    ):
        row, column, value = change
        bad = good.copy()
        bad[row, column] = value
        with pytest.raises(UserError, match=f"here: {message}"):
            body_poses(np.stack([good, bad]), height_m=1, pitch_deg=0, where="here")
    roll = np.eye(4)
    roll[:2, :2] = [[math.cos(0.7), -math.sin(0.7)], [math.sin(0.7), math.cos(0.7)]]
    tilted = np.stack([np.eye(4), roll])
    with pytest.raises(UserError, match="the body leans 40 degrees"):
        body_poses(tilted, height_m=1, pitch_deg=0, where="here", allowed=("opencv", "opengl"))


def test_cameras_of_one_body_must_agree(tmp_path: Path) -> None:
    expected = interndata_n1.write(tmp_path / "set")
    path = expected.root / "sceneB/data/chunk-000/episode_000000.parquet"
    matrices = np.array(pq.read_table(path).column("pose.125cm_30deg").to_pylist())
    lower = matrices.copy()
    lower[:, 2, 3] -= 0.65
    change_table(path, pose__60cm_30deg=lower.tolist())
    assert errors(expected.root) == []
    lower[3, 0, 3] += 0.25
    change_table(path, pose__60cm_30deg=lower.tolist())
    (message,) = errors(expected.root)
    assert "column 'pose.60cm_30deg': row 3 places the body 0.25 m" in message
    level = matrices.copy()  # an angle of another camera
    change_table(path, pose__60cm_30deg=lower.tolist(), pose__125cm_0deg=level.tolist())
    assert "the body leans 30 degrees" in errors(expected.root)[0]
    here = [Pose.from_yaw((0, 0, 0), 0.0)]
    with pytest.raises(UserError, match=r"row 0 places the body 0\.00 m and 6 degrees"):
        check_same_body(here, [Pose.from_yaw((0, 0, 0), 0.1)], "x")


def test_lengths_may_be_twice_the_rows_and_nothing_else(tmp_path: Path) -> None:
    expected = interndata_n1.write(tmp_path / "set")
    path = expected.root / "sceneB/meta/episodes.jsonl"
    line = json.loads(path.read_text())
    path.write_text(json.dumps(line | {"length": 12, "note": "kept"}))
    (*_, last) = open_source(expected.root, split="train")
    assert len(last.steps) == 6
    assert (last.metadata["stated_length"], last.metadata["note"]) == (12, "kept")
    path.write_text(json.dumps(line | {"length": 7}))
    assert "has 6 rows, length in meta/episodes.jsonl is 7" in errors(expected.root)[0]


def test_frames_and_rows_must_match_at_the_ends(tmp_path: Path) -> None:
    expected = interndata_n1.write(tmp_path / "set")
    folder = expected.root / "sceneB/videos/chunk-000/observation.images.rgb.125cm_0deg"
    extra = folder / "episode_000000_6.jpg"
    write_picture(extra, 1)
    assert "frame episode_000000_5.jpg is there, and one more" in errors(expected.root)[0]
    extra.unlink()
    (folder / "episode_000000_5.jpg").unlink()
    assert "frame episode_000000_5.jpg is missing" in errors(expected.root)[0]
    (folder / "episode_000000_0.jpg").unlink()
    assert "has no frame 0" in errors(expected.root)[0]


def write_vln_n1(root: Path, matrices: list[Any], *, folder: str = "observation.images") -> Path:
    """One scene of vln_n1: 4x4 actions, extrinsics, padded names, no length, tables as tasks."""
    scene = root / "hm3d_d435i/scene_x"
    count = len(matrices)
    (scene / "meta").mkdir(parents=True)
    (scene / "data/chunk-000").mkdir(parents=True)
    matrix = {"dtype": "float32", "shape": [4, 4]}
    features = {"observation.camera_extrinsic": matrix, "action": matrix}
    features["observation.camera_intrinsic"] = {"dtype": "float32", "shape": [3, 3]}
    info = {"codebase_version": "v2.1", "fps": 30, "chunks_size": 1000, "splits": {"train": "0:1"}}
    (scene / "meta/info.json").write_text(json.dumps(info | {"features": features}))
    tasks = [
        {"sub_instruction": "Past the cabinet.", "sub_indexes": [0, count - 1]},
        {"sum_instruction": "Stroll to the wall.", "sum_indexes": [0, count - 1]},
    ]
    lines = [{"episode_index": n, "tasks": tasks} for n in (0, 1)]
    (scene / "meta/episodes.jsonl").write_text("\n".join(map(json.dumps, lines)))
    kind = pa.list_(pa.list_(pa.float32()))
    table = pa.table(
        {
            "index": range(count),
            "observation.camera_intrinsic": pa.array([LENS] * count, kind),
            "observation.camera_extrinsic": pa.array([MOUNT] * count, kind),
            "action": pa.array(matrices, kind),
        }
    )
    for number in (0, 1):
        pq.write_table(table, scene / f"data/chunk-000/episode_{number:06d}.parquet")
        for at in range(count):
            name = f"videos/chunk-000/%s/episode_{number:06d}_{at:03d}"
            write_picture(scene / (name % f"{folder}.rgb" + ".jpg"), 10 * number + at)
            depth = scene / (name % f"{folder}.depth" + ".png")
            depth.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((48, 64), 15000, np.uint16)).save(depth)
    return scene


def test_vln_n1_has_the_cameras_poses_as_actions(tmp_path: Path) -> None:
    """Heading by hand: the camera looks along -z of its own, (-0.879, 0.422, -0.221) in the world;
    in our frame that is x -0.879 and z -0.422, so yaw is atan2(0.879, 0.422) = 64.4 degrees."""
    moved = np.array(ACTION)
    moved[:2, 3] += [-0.0879, 0.0422]
    write_vln_n1(tmp_path, [ACTION, moved.tolist()])
    source = open_source(tmp_path, split="train")
    assert source.facts.format == "interndata_n1"
    first, second = source  # though splits says 0:1
    assert second.episode_id == "hm3d_d435i/scene_x/1"
    assert first.instruction == "Stroll to the wall."
    assert first.metadata["motion"] == "continuous"
    pose = first.steps[0].pose
    assert np.allclose(pose.position, (-3.602, 0.0, -2.020), atol=1e-6)
    assert math.degrees(pose.yaw_rad) == pytest.approx(64.4, abs=0.1)
    forward, left, turn = pose.relative(first.steps[1].pose)
    assert forward == pytest.approx(0.0975, abs=1e-4)
    assert left == pytest.approx(0, abs=1e-3)
    assert turn == pytest.approx(0, abs=1e-6)
    assert all(not step.executed and not step.labels for step in first.steps)
    assert read_mark(source.frames.read(second.steps[1].frames["rgb"])) == 11
    depth = source.frames.read(second.steps[1].frames["rgb.depth"])
    assert np.allclose(depth, 1.5)  # tenths of a millimetre here


def test_vln_n1_with_a_changing_mounting_is_refused(tmp_path: Path) -> None:
    scene = write_vln_n1(tmp_path, [ACTION, ACTION])
    higher = np.array(MOUNT)
    higher[2, 3] = 1.0
    change_table(
        scene / "data/chunk-000/episode_000000.parquet",
        observation__camera_extrinsic=[MOUNT, higher.tolist()],
    )
    (message,) = errors(tmp_path)
    assert "'observation.camera_extrinsic' changes from row to row" in message


def test_what_is_no_interndata_says_what_was_missing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no InternData-N1 scene"):
        open_source(tmp_path, split="train", format="interndata_n1")
    (tmp_path / "r2r").mkdir()
    (tmp_path / "r2r/17DRP5sb8fy.tar.gz").write_bytes(b"")
    with pytest.raises(UserError, match=r"unpack 17DRP5sb8fy\.tar\.gz"):
        open_source(tmp_path, split="train", format="interndata_n1")
    plain = lerobot_v2.write(tmp_path / "plain").root
    with pytest.raises(UserError, match=r"neither pose\.\* columns"):
        open_source(plain, split="train", format="interndata_n1")
    expected = interndata_n1.write(tmp_path / "set")
    with pytest.raises(UserError, match=r"no split 'val'; allowed as data\.split: train"):
        open_source(expected.root, split="val", format="interndata_n1")
