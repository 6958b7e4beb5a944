"""The simulator as a whole: loading, resetting, acting, and what is refused when."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from mesh_scenes import SceneBuilder, embodiment, load

from vla_nav.episodes.types import MOVE_FORWARD, TURN_LEFT, Camera, Pose
from vla_nav.errors import UserError
from vla_nav.simulators.mesh import MeshSimulator


@pytest.fixture
def room(tmp_path):
    return load(SceneBuilder().room(0, 0, 6, 4).box((3, 0, 1.5), (4, 1, 2.5)), tmp_path)


def test_nothing_works_before_a_scene_is_loaded_or_after_close(room):
    fresh = MeshSimulator(embodiment())
    room.close()
    for simulator in (fresh, room):
        for call in (
            lambda s: s.reset(Pose.from_yaw((1, 0, 1), 0)),
            lambda s: s.act(MOVE_FORWARD),
            lambda s: s.observe(),
            lambda s: s.geodesic_distance((1, 0, 1), [(2, 0, 1)]),
            lambda s: s.random_point(np.random.default_rng(0)),
            lambda s: s.snap((1, 0, 1)),
        ):
            with pytest.raises(RuntimeError, match="load_scene"):
                call(simulator)


def test_a_failed_load_leaves_the_loaded_scene_in_place(room, tmp_path):
    room.reset(Pose.from_yaw((1, 0, 1), 0))
    before = room.observe()
    (tmp_path / "bad.glb").write_bytes(b"glTF nonsense")
    with pytest.raises(UserError, match=r"bad\.glb"):
        room.load_scene(str(tmp_path / "bad.glb"))
    np.testing.assert_array_equal(room.observe().rgb["front"], before.rgb["front"])
    assert np.isfinite(room.geodesic_distance((1, 0, 1), [(5, 0, 3)]))


def test_loading_again_keeps_the_agent_and_another_scene_does_not(room, tmp_path):
    room.reset(Pose.from_yaw((1, 0, 1), 0))
    room.load_scene(str(tmp_path / "scene.glb"))
    room.observe()
    other = SceneBuilder().room(0, 0, 3, 3).write(tmp_path / "other.glb")
    room.load_scene(str(other))
    with pytest.raises(RuntimeError, match="reset"):
        room.observe()
    assert room.snap((5, 0, 3)) is None


def test_reset_snaps_to_the_floor_and_refuses_far_points(room):
    pose = room.reset(Pose.from_yaw((1, 0.2, 1), 0.7))
    np.testing.assert_allclose(pose.position, (1, 0, 1), atol=1e-5)
    assert pose.yaw_rad == pytest.approx(0.7)
    pose = room.reset(Pose.from_yaw((0.06, 0, 2.03), 0.7))  # in the wall's margin: straight out
    np.testing.assert_allclose(pose.position, (0.18, 0, 2.03), atol=1e-3)
    pose = room.reset(Pose.from_yaw((3.5, 0, 2.2), 0.0))  # inside the box
    assert np.hypot(pose.position[0] - 3.5, pose.position[2] - 2.2) < 0.6
    for far in ((9, 0, 2), (2, 5, 2), (np.nan, 0, 2)):
        with pytest.raises(UserError, match=r"scene\.glb: start"):
            room.reset(Pose.from_yaw(far, 0.0))


def test_acting_moves_and_move_does_not(room):
    start = room.reset(Pose.from_yaw((1, 0, 1), 0.0))
    imagined = room.move(start, TURN_LEFT)
    assert room.observe().pose == start
    assert room.act(TURN_LEFT) == imagined
    assert room.observe().pose == imagined.pose
    room.place(start)
    assert room.observe().pose == start


def test_every_camera_gives_what_it_has(tmp_path):
    cameras = (
        Camera("front", 31, 17, 79.0, 0.88, has_depth=True),
        Camera("down", 8, 8, 90.0, 1.25, pitch_deg=-45.0),
    )
    simulator = load(SceneBuilder().room(0, 0, 6, 4), tmp_path, cameras=cameras)
    simulator.reset(Pose.from_yaw((3, 0, 2), 1.0))
    seen = simulator.observe(semantic=True)
    assert {name: image.shape for name, image in seen.rgb.items()} == {
        "front": (17, 31, 3),
        "down": (8, 8, 3),
    }
    assert list(seen.depth) == ["front"]
    assert set(seen.semantic) == {"front", "down"}
    assert simulator.observe().semantic == {}


def test_a_camera_that_sees_all_round_is_refused_at_once():
    camera = Camera("front", 31, 17, 180.0, 0.88)
    with pytest.raises(UserError, match=r"hfov_deg 180 .*\[1, 179\]"):
        MeshSimulator(dataclasses.replace(embodiment(), cameras=(camera,)))


def test_images_are_equal_between_simulators_and_renders(room, tmp_path):
    other = MeshSimulator(embodiment())
    other.load_scene(str(tmp_path / "scene.glb"))
    pose = room.reset(Pose.from_yaw((1.2, 0, 1.1), -0.8))
    other.reset(pose)
    first = room.observe().rgb["front"]
    np.testing.assert_array_equal(first, other.observe().rgb["front"])
    other.reset(Pose.from_yaw((5, 0, 3), 0.0))
    assert (other.observe().rgb["front"] != first).any()
    np.testing.assert_array_equal(room.observe().rgb["front"], first)


def test_random_points_are_walkable_spread_and_seeded(room):
    points = [room.random_point(np.random.default_rng(k)) for k in range(200)]
    assert points == [room.random_point(np.random.default_rng(k)) for k in range(200)]
    for x, y, z in points:
        assert min(x, 6 - x, z, 4 - z) > 0.17
        assert np.hypot(max(abs(x - 3.5) - 0.5, 0), max(abs(z - 2) - 0.5, 0)) > 0.16
        assert room.snap((x, y, z)) == pytest.approx((x, y, z), abs=1e-9)
    assert 60 < sum(x < 3 for x, _, _ in points) < 140


def test_snap_keeps_walkable_points_and_finds_near_ones(room):
    assert room.snap((1.234, 0.0, 0.987)) == pytest.approx((1.234, 0, 0.987), abs=1e-5)
    assert room.snap((1.2, 1.9, 1.0)) is None
    assert room.snap((-0.3, 0, 2)) is not None
    assert room.snap((-0.9, 0, 2)) is None
