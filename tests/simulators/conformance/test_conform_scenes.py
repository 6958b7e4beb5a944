"""Every backend: loading one scene after another, bad files, the state before and after."""

from __future__ import annotations

import math

import numpy as np
import pytest
from known_scenes import apart, divided, furnished, hall

from vla_nav.episodes.types import MOVE_FORWARD, Camera, Pose
from vla_nav.errors import UserError

CAMERA = Camera("front", 32, 24, 90.0, 1.25, has_depth=True)


def test_scenes_follow_one_another_and_come_back_the_same(bench):
    simulator = bench.open(furnished, cameras=(CAMERA,))
    pose = simulator.reset(Pose.from_yaw((3.2, 0.0, 2.6), 0.4))
    first = simulator.observe()
    distance = simulator.geodesic_distance(pose.position, [(0.5, 0.0, 3.5)])
    for scene in (hall, apart, divided):
        other = bench.open(scene, cameras=(CAMERA,))
        other.reset(Pose.from_yaw((1.0, 0.0, 2.0), 0.0))
        assert (other.observe().rgb["front"] != first.rgb["front"]).any()
        assert math.isfinite(other.geodesic_distance((1.0, 0.0, 2.0), [(2.0, 0.0, 3.0)]))
    back = bench.open(furnished, cameras=(CAMERA,))
    assert back.reset(Pose.from_yaw((3.2, 0.0, 2.6), 0.4)) == pose
    again = back.observe()
    np.testing.assert_array_equal(again.rgb["front"], first.rgb["front"])
    np.testing.assert_array_equal(again.depth["front"], first.depth["front"])
    assert back.geodesic_distance(pose.position, [(0.5, 0.0, 3.5)]) == distance


def test_the_body_decides_what_is_walkable(bench):
    low, high = bench.promise.contact_m
    for radius_m in (0.18, 0.3, 0.5):
        simulator = bench.open(hall, radius_m=radius_m)
        simulator.reset(Pose.from_yaw((2.0, 0.0, 4.0), math.pi / 2))
        x = [simulator.act(MOVE_FORWARD).pose.position[0] for _ in range(10)][-1]
        assert radius_m - low <= x <= radius_m + high


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("absent.glb", None, "no such scene file"),
        ("empty.glb", b"", r"empty|damaged"),
        ("text.glb", b"this is no glTF at all", "damaged"),
        ("scene.xyz", b"1 2 3", "not a scene file"),
    ],
)
def test_bad_files_are_one_line_with_the_file_and_the_worker_lives_on(
    bench, tmp_path, name, content, says
):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=says) as caught:
        bench.open(tmp_path / name)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)
    simulator = bench.open(hall)
    simulator.reset(Pose.from_yaw((5.0, 0.0, 4.0), 0.0))
    assert not simulator.act(MOVE_FORWARD).has_collided


@pytest.mark.parametrize("share", [0.05, 0.5, 0.95])
def test_a_truncated_scene_is_damaged(bench, tmp_path, share):
    data = bench.file(furnished).read_bytes()
    path = tmp_path / "cut.glb"
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(UserError, match=r"cut\.glb.*damaged"):
        bench.open(path)


def test_agents_of_one_worker_do_not_disturb_each_other(bench):
    first = bench.open(furnished, cameras=(CAMERA,))
    second = bench.open(furnished, cameras=(CAMERA,))
    starts = Pose.from_yaw((3.2, 0.0, 2.6), 0.4), Pose.from_yaw((2.0, 0.0, 2.2), -1.3)

    def walk(simulator, start):
        simulator.reset(start)
        for _ in range(4):
            outcome = simulator.execute((MOVE_FORWARD,), wants_images=True, wants_label=False)
            yield outcome.poses, outcome.observation.rgb["front"].tobytes()

    alone = [list(walk(first, starts[0])), list(walk(second, starts[1]))]
    mixed = list(zip(walk(first, starts[0]), walk(second, starts[1]), strict=True))
    assert [list(one) for one in zip(*mixed, strict=True)] == alone
    assert alone[0] != alone[1]
