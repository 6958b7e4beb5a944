"""One primitive at a time: exact steps, collisions, sliding, floors underfoot."""

from __future__ import annotations

import math

import numpy as np
import pytest
from mesh_scenes import SceneBuilder, load, two_floors_with_stairs

from vla_nav.episodes.types import (
    LOOK_UP,
    MOVE_FORWARD,
    STOP,
    TURN_LEFT,
    TURN_RIGHT,
    Pose,
)
from vla_nav.errors import UserError

RADIUS = 0.18


@pytest.fixture(scope="module")
def rooms(tmp_path_factory):
    """{is_sliding: simulator} of a 6 x 4 m room with a box in it."""

    def made(is_sliding):
        scene = SceneBuilder().room(0, 0, 6, 4).box((3, 0, 1.5), (4, 1, 2.5))
        return load(scene, tmp_path_factory.mktemp("room"), is_sliding=is_sliding)

    return {True: made(True), False: made(False)}


@pytest.mark.parametrize("yaw", np.linspace(-3.1, 3.1, 9))
def test_a_free_step_is_exact(rooms, yaw):
    pose = Pose.from_yaw((1.5, 0, 2), yaw)
    moved, has_collided = rooms[True].move(pose, MOVE_FORWARD)
    np.testing.assert_allclose(
        moved.position, (1.5 - 0.25 * math.sin(yaw), 0, 2 - 0.25 * math.cos(yaw)), atol=1e-9
    )
    assert not has_collided
    assert moved.rotation == pose.rotation


def test_turns_are_exact_and_close_a_circle(rooms):
    pose = start = Pose.from_yaw((1.5, 0, 2), 0.3)
    for count in range(1, 13):
        pose, has_collided = rooms[True].move(pose, TURN_LEFT)
        expected = math.remainder(0.3 + math.radians(30) * count, 2 * math.pi)
        assert pose.yaw_rad == pytest.approx(expected, abs=1e-12)
        assert not has_collided
    assert pose.position == start.position
    back, _ = rooms[True].move(rooms[True].move(start, TURN_LEFT).pose, TURN_RIGHT)
    np.testing.assert_allclose(back.rotation, start.rotation, atol=1e-15)


def test_stop_stays_and_unknown_actions_are_refused(rooms):
    pose = Pose.from_yaw((1.5, 0, 2), 0.3)
    assert rooms[True].move(pose, STOP) == (pose, False)
    with pytest.raises(UserError, match="pitch_deg"):
        rooms[True].move(pose, LOOK_UP)
    with pytest.raises(UserError, match="9"):
        rooms[True].move(pose, 9)
    with pytest.raises(UserError, match="off the floor"):
        rooms[True].move(Pose.from_yaw((99, 0, 2), 0.0), MOVE_FORWARD)


@pytest.mark.parametrize("is_sliding", [True, False])
def test_a_head_on_step_ends_at_the_wall(rooms, is_sliding):
    pose = Pose.from_yaw((RADIUS + 0.1, 0, 2), math.pi / 2)  # looks along -x
    moved, has_collided = rooms[is_sliding].move(pose, MOVE_FORWARD)
    assert has_collided
    np.testing.assert_allclose(moved.position, (RADIUS, 0, 2), atol=2e-3)
    again, has_collided = rooms[is_sliding].move(moved, MOVE_FORWARD)
    assert has_collided
    np.testing.assert_allclose(again.position, moved.position, atol=2e-3)


@pytest.mark.parametrize("degrees", [20, 45, 70])
def test_an_oblique_step_slides_along_the_wall_or_stops_there(rooms, degrees):
    yaw = math.pi / 2 - math.radians(degrees)  # degrees off the wall's normal, towards -z
    pose = Pose.from_yaw((RADIUS + 0.05, 0, 2), yaw)
    along_m = 0.25 * math.sin(math.radians(degrees))
    slid, has_collided = rooms[True].move(pose, MOVE_FORWARD)
    assert has_collided
    # The nearest walkable point to the target: the target's foot on the line x = radius.
    np.testing.assert_allclose(slid.position, (RADIUS, 0, 2 - along_m), atol=4e-3)
    stopped, has_collided = rooms[False].move(pose, MOVE_FORWARD)
    assert has_collided
    contact = 0.05 / math.cos(math.radians(degrees))
    expected = (RADIUS, 0, 2 - contact * math.sin(math.radians(degrees)))
    np.testing.assert_allclose(stopped.position, expected, atol=3e-3)


def test_sliding_follows_a_diagonal_wall(tmp_path):
    # A thin wall from (1, 3) to (3, 1); the agent walks along +x into it.
    room = SceneBuilder().room(0, 0, 4, 4)
    room.quad([[1, 0, 3], [3, 0, 1], [3, 2.5, 1], [1, 2.5, 3]])
    simulator = load(room, tmp_path)
    contact = 4 - RADIUS * math.sqrt(2)  # x + z there
    pose = Pose.from_yaw((contact - 2 - 0.02, 0, 2), -math.pi / 2)
    moved, has_collided = simulator.move(pose, MOVE_FORWARD)
    assert has_collided
    dx, dz = moved.position[0] - pose.position[0], moved.position[2] - pose.position[2]
    # 0.02 m free, then half of the rest along each axis. The wall is seen as a staircase of cells
    # of 0.1 m, hence the tolerance.
    assert dx == pytest.approx(0.02 + 0.115, abs=0.05)
    assert dz == pytest.approx(-0.115, abs=0.05)
    assert moved.position[0] + moved.position[2] < 4 - (RADIUS - 0.05) * math.sqrt(2)


@pytest.mark.parametrize("is_sliding", [True, False])
def test_no_walk_enters_an_obstacle_or_jumps(rooms, is_sliding):
    rng = np.random.default_rng(5)
    simulator = rooms[is_sliding]
    pose = simulator.reset(Pose.from_yaw((2, 0, 2), 0.0))
    num_collisions = 0
    for _ in range(3000):
        action = int(rng.choice([MOVE_FORWARD, MOVE_FORWARD, MOVE_FORWARD, TURN_LEFT, TURN_RIGHT]))
        moved, has_collided = simulator.move(pose, action)
        num_collisions += has_collided
        x, y, z = moved.position
        step = math.hypot(x - pose.position[0], z - pose.position[2])
        assert step <= 0.25 + 1e-9
        if action == MOVE_FORWARD:
            assert has_collided == (step < 0.25 - 1e-5)
        to_walls = min(x, 6 - x, z, 4 - z)
        to_box = math.hypot(max(abs(x - 3.5) - 0.5, 0), max(abs(z - 2) - 0.5, 0))
        # Bilinear clearance round a corner may be off by a tenth of a cell.
        assert min(to_walls, to_box) > RADIUS - 0.012
        assert y == pytest.approx(0, abs=1e-5)
        pose = moved
    assert num_collisions > 300


def test_the_agent_climbs_stairs_and_comes_down(tmp_path):
    simulator = load(two_floors_with_stairs(), tmp_path)
    pose = Pose.from_yaw((2.5, 0, 0.6), -math.pi / 2)  # along +x
    heights = []
    for _ in range(24):
        pose, has_collided = simulator.move(pose, MOVE_FORWARD)
        assert not has_collided
        heights.append(pose.position[1])
    assert heights[0] == pytest.approx(0, abs=1e-4)
    assert heights[-1] == pytest.approx(2.8, abs=1e-4)
    assert (np.diff(heights) > -1e-9).all()
    assert set(np.round(np.array(heights) / 0.2, 2)) <= set(range(15))
    pose = Pose.from_yaw(pose.position, math.pi / 2)
    for _ in range(24):
        pose, _ = simulator.move(pose, MOVE_FORWARD)
    assert pose.position[1] == pytest.approx(0, abs=1e-4)


def test_a_ledge_stops_the_agent(tmp_path):
    simulator = load(two_floors_with_stairs(), tmp_path)
    # On the upper floor beside the stairwell: x 3 .. 7.2, z 0 .. 1.2 is open below x = 7.2.
    pose = Pose.from_yaw((2.9 + 0.4, 2.8, 2.5), math.pi / 2)
    for _ in range(5):
        pose, has_collided = simulator.move(pose, MOVE_FORWARD)
    assert has_collided
    assert pose.position[1] == pytest.approx(2.8, abs=1e-4)
    assert pose.position[0] > 3.0


def test_a_pose_too_near_an_obstacle_can_leave_but_not_go_deeper(rooms):
    pose = Pose.from_yaw((0.1, 0, 2), math.pi / 2)
    deeper, has_collided = rooms[False].move(pose, MOVE_FORWARD)
    assert has_collided
    assert deeper.position[0] > 0.09
    away, has_collided = rooms[False].move(Pose.from_yaw((0.1, 0, 2), -math.pi / 2), MOVE_FORWARD)
    assert not has_collided
    assert away.position[0] == pytest.approx(0.35)


def test_a_drive_of_a_step_or_a_turn_is_the_primitive(rooms):
    for is_sliding, simulator in rooms.items():
        for position in ((1.5, 0, 2), (RADIUS + 0.05, 0, 2)):
            pose = Pose.from_yaw(position, math.pi / 2 - 0.4)
            assert simulator.drive(pose, 0.25, 0.0) == simulator.move(pose, MOVE_FORWARD)
        turned = simulator.drive(pose, 0.0, math.radians(30)).pose
        left = simulator.move(pose, TURN_LEFT).pose
        np.testing.assert_allclose(turned.rotation, left.rotation, atol=1e-15)
        assert is_sliding == simulator.embodiment.is_sliding


def test_a_long_drive_turns_first_and_stops_at_walls(rooms):
    pose = Pose.from_yaw((1.0, 0, 0.7), 0.2)
    far, has_collided = rooms[True].drive(pose, 1.37, -0.2 - math.pi / 2)  # along +x
    assert not has_collided
    np.testing.assert_allclose(far.position, (2.37, 0, 0.7), atol=1e-9)
    assert far.yaw_rad == pytest.approx(-math.pi / 2, abs=1e-12)
    back, has_collided = rooms[True].drive(far, -0.37, 0.0)
    assert not has_collided
    np.testing.assert_allclose(back.position, (2.0, 0, 0.7), atol=1e-9)
    wall, has_collided = rooms[True].drive(far, 9.0, 0.0)
    assert has_collided
    np.testing.assert_allclose(wall.position, (6 - RADIUS, 0, 0.7), atol=2e-3)
