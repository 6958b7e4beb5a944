"""`pointing`: pixels by hand-computed geometry, visibility by depth, execution back to it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from spaces import embodiment

from vla_nav.actions import Pointing, PointingSpace, Stop, Waypoint, farthest_visible
from vla_nav.actions.projection import project, sample_depth, to_agent_frame, unproject
from vla_nav.episodes.types import MOVE_FORWARD as F
from vla_nav.episodes.types import STOP, Camera, ExpertLabel, PixelTarget, Pose
from vla_nav.episodes.types import TURN_LEFT as L
from vla_nav.episodes.types import TURN_RIGHT as R
from vla_nav.errors import UserError

CAMERA = Camera("front", 100, 50, 90.0, 1.25)


def floor_depth(camera: Camera, wall_m: float = np.inf) -> np.ndarray:
    """Planar depth of an endless floor and a wall `wall_m` ahead, level camera, by hand."""
    rows = (np.arange(camera.height_px) + 0.5) / camera.height_px
    tan_v = math.tan(math.radians(camera.hfov_deg) / 2) * camera.height_px / camera.width_px
    down = (rows - 0.5) * 2 * tan_v
    with np.errstate(divide="ignore"):
        floor = np.where(down > 0, camera.height_m / np.maximum(down, 1e-9), np.inf)
    depth = np.minimum(floor, wall_m)
    depth = np.where(np.isfinite(depth), depth, 0.0)
    return np.repeat(depth[:, None], camera.width_px, axis=1).astype(np.float32)


def test_a_point_straight_ahead_on_the_floor():
    u, v, depth = project(np.array([[2.5, 0.0, 0.0]]), CAMERA)
    # tan(vfov/2) = 1/2, so v = 1/2 + 1.25 / (2 * 2.5 * 1/2)
    assert (u[0], v[0], depth[0]) == pytest.approx((0.5, 1.0, 2.5))


def test_left_is_left_and_up_is_up():
    u, v, _ = project(np.array([[2.0, 2.0, 1.25], [2.0, 0.0, 2.25]]), CAMERA)
    assert u[0] == pytest.approx(0.0)
    assert v[1] == pytest.approx(0.0)


@pytest.mark.parametrize("pitch_deg", [-30.0, 0.0, 20.0])
def test_unproject_inverts_project(pitch_deg):
    camera = Camera("front", 64, 48, 79.0, 0.88, pitch_deg)
    points = np.array([[3.0, 0.5, 0.0], [1.5, -0.7, 1.0], [4.0, 0.1, 2.0]])
    u, v, depth = project(points, camera)
    for i, point in enumerate(points):
        assert unproject(u[i], v[i], depth[i], camera) == pytest.approx(tuple(point))


def test_points_behind_the_camera_have_no_pixel():
    u, _, depth = project(np.array([[-1.0, 0.0, 1.25]]), CAMERA)
    assert np.isnan(u[0])
    assert depth[0] < 0


def test_agent_frame_agrees_with_relative_poses():
    pose = Pose.from_yaw((1.0, 0.5, -2.0), 0.7)
    point = (3.0, 0.5, 1.0)
    forward, left, up = to_agent_frame(np.array([point]), pose)[0]
    expected = pose.relative(Pose.from_yaw(point, 0.0))
    assert (forward, left, up) == pytest.approx((*expected[:2], 0.0))


def test_depth_of_a_floor_is_read_exactly_between_pixels():
    depth = floor_depth(CAMERA)
    v = np.array([0.81234, 0.9, 0.6123])
    exact = CAMERA.height_m / ((v - 0.5) * 2 * 0.5)
    assert sample_depth(depth, np.full(3, 0.5), v) == pytest.approx(exact, rel=1e-5)


def path_ahead(length_m: float, pose: Pose) -> np.ndarray:
    yaw = pose.yaw_rad
    ends = [0.0, length_m]
    return np.array(
        [
            (pose.position[0] - s * math.sin(yaw), 0.0, pose.position[2] - s * math.cos(yaw))
            for s in ends
        ]
    )


@pytest.mark.parametrize("yaw", [0.0, 2.0, -1.1])
def test_a_wall_ends_what_is_visible(yaw):
    pose = Pose.from_yaw((2.0, 0.0, 3.0), yaw)
    path = path_ahead(8.0, pose)
    free = farthest_visible(path, pose, CAMERA, floor_depth(CAMERA))
    blocked = farthest_visible(path, pose, CAMERA, floor_depth(CAMERA, wall_m=4.0))
    assert free is not None
    assert blocked is not None
    assert free.u == pytest.approx(0.5)
    assert free.yaw_rad == pytest.approx(0.0, abs=1e-9)
    far, near = (1.25 / (target.v - 0.5) for target in (free, blocked))
    assert far == pytest.approx(8.0, rel=1e-6)
    assert 3.9 <= near <= 4.4, "the wall at 4 m, plus the tolerance"


def test_without_depth_the_field_of_view_alone_decides():
    pose = Pose.from_yaw((0.0, 0.0, 0.0), 0.0)
    assert farthest_visible(path_ahead(8.0, pose), pose, CAMERA, None) is not None
    behind = path_ahead(8.0, Pose.from_yaw((0.0, 0.0, 0.0), math.pi))
    assert farthest_visible(behind, pose, CAMERA, None) is None
    assert farthest_visible(np.zeros((1, 3)), pose, CAMERA, None) is None
    assert farthest_visible(np.zeros((0, 3)), pose, CAMERA, None) is None


def test_the_heading_is_that_of_the_path_there():
    pose = Pose.from_yaw((0.0, 0.0, 0.0), 0.0)
    path = np.array([(0.0, 0.0, 0.0), (0.0, 0.0, -4.0), (-3.0, 0.0, -4.0)])  # ahead, then left
    target = farthest_visible(path, pose, CAMERA, None)
    assert target is not None
    assert target.yaw_rad == pytest.approx(math.pi / 2)
    assert target.u < 0.5


def test_labels_take_the_pixel_or_the_waypoint():
    space = PointingSpace()
    pose = Pose.from_yaw((0.0, 0.0, 0.0), 0.0)
    poses = (Pose.from_yaw((0.0, 0.0, -0.25), 0.0), pose)
    pixel = PixelTarget("front", 0.3, 0.8, 0.0)
    assert space.label(pose, ExpertLabel((F, STOP), poses, pixel)) == Pointing(
        "front", 0.3, 0.8, 0.0
    )
    assert space.label(pose, ExpertLabel((F, STOP), poses)) == Waypoint(0.25, 0.0, 0.0)
    other = PixelTarget("rear", 0.3, 0.8, 0.0)
    assert space.label(pose, ExpertLabel((F, STOP), poses, other)) == Waypoint(0.25, 0.0, 0.0)
    assert space.label(pose, ExpertLabel((STOP,), (pose,), pixel)) == Stop()


def test_pixels_are_kept_to_half_a_bin():
    space = PointingSpace(cameras=("front", "left"), num_u=32, num_v=16)
    action = space.decode(space.encode(Pointing("left", 0.717, 0.93, -1.6))).action
    assert action.camera == "left"
    assert abs(action.u - 0.717) <= 1 / 64 + 1e-9
    assert abs(action.v - 0.93) <= 1 / 32 + 1e-9
    assert action.yaw_rad == pytest.approx(math.radians(-90))


@pytest.mark.parametrize("has_depth", [False, True])
@pytest.mark.parametrize(
    ("forward", "left", "yaw_deg", "expected"),
    [
        (0.75, 0.0, 0, (F, F, F)),
        (0.866 * 0.75, 0.5 * 0.75, 30, (L, F, F, F)),
        (3.0, 0.0, 0, (F, F, F, F)),  # no farther than one decision
        (2.0, -2.0, -90, (R, R, F, F, F, F)),  # 45 degrees, between two turns
    ],
)
def test_execution_walks_to_the_point(has_depth, forward, left, yaw_deg, expected):
    """With a level and a pitched camera, by the floor or by the depth image of a floor."""
    body = embodiment(pitch_deg=-40.0)
    camera = body.cameras[0]
    u, v, planar = project(np.array([[forward, left, 0.0]]), camera)
    depth = None
    if has_depth:
        depth = {"front": np.full((48, 64), planar[0], dtype=np.float32)}
    action = Pointing("front", float(u[0]), float(v[0]), math.radians(yaw_deg))
    primitives = PointingSpace().primitives(action, body, depth)
    if expected[0] == R:
        assert primitives in (expected, (R, *expected[1:][1:]), (R, *expected))
        assert primitives.count(F) == 4
    else:
        assert primitives == expected


def test_a_ray_above_the_horizon_is_a_direction():
    action = Pointing("front", 0.0, 0.1, 0.0)
    assert PointingSpace().primitives(action, embodiment()) in ((L, F, F, F, F), (L, L, F, F, F, F))


def test_depth_beats_the_flat_floor():
    body = embodiment()
    action = Pointing("front", 0.5, 0.6, 0.0)  # the floor there is 8 m away
    near = {"front": np.full((48, 64), 0.5, dtype=np.float32)}
    assert PointingSpace().primitives(action, body, near) == (F, F)
    assert PointingSpace().primitives(action, body) == (F, F, F, F)
    empty = {"front": np.zeros((48, 64), dtype=np.float32)}
    assert PointingSpace().primitives(action, body, empty) == (F, F, F, F)


def test_bad_grids_are_refused():
    with pytest.raises(UserError, match=r"actions\.cameras"):
        PointingSpace(cameras=())
    with pytest.raises(UserError, match="divides 360"):
        PointingSpace(angle_deg=35)
