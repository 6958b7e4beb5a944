"""Every backend: walls, ledges and doors; sliding along obstacles or stopping at them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from flat_oracles import dead_reckoning
from known_scenes import HALL, hall, ledges, narrow_door, slanted, wide_door

from vla_nav.episodes.types import MOVE_FORWARD, TURN_LEFT, TURN_RIGHT, Pose

RADIUS = 0.18
WEST = math.pi / 2  # looks along -x, into the wall x = 0


def pressed(simulator, pose: Pose, count: int = 12):
    """The last motion of `count` steps ahead from a pose."""
    simulator.reset(pose)
    return [simulator.act(MOVE_FORWARD) for _ in range(count)][-1]


def test_a_collision_is_a_step_that_falls_short(bench):
    for is_sliding in (True, False):
        simulator = bench.open(hall, is_sliding=is_sliding)
        pose = simulator.reset(Pose.from_yaw((5, 0, 4), 0.3))
        rng = np.random.default_rng(8)
        collided = 0
        for action in rng.choice([MOVE_FORWARD, TURN_LEFT], 300, p=[0.85, 0.15]).tolist():
            moved = simulator.act(action)
            gone = math.hypot(*np.subtract(moved.pose.position, pose.position)[[0, 2]])
            # float32 positions leave 1e-6 of noise in the length of a step
            if action == TURN_LEFT:
                assert gone == 0
                assert not moved.has_collided
            elif moved.has_collided:
                assert gone < 0.25 - 1e-5
            else:
                assert gone == pytest.approx(0.25, abs=2.5e-5)
            collided += moved.has_collided
            pose = moved.pose
        assert 20 < collided < 250


def test_a_head_on_walk_ends_a_radius_from_the_wall(bench):
    nearer, farther = bench.promise.contact_m
    for is_sliding in (True, False):
        simulator = bench.open(hall, is_sliding=is_sliding)
        moved = pressed(simulator, Pose.from_yaw((2, 0, 4), WEST))
        assert moved.has_collided
        x, _, z = moved.pose.position
        assert RADIUS - nearer <= x <= RADIUS + farther
        assert z == pytest.approx(4, abs=2e-3)
        again = simulator.act(MOVE_FORWARD)
        assert again.has_collided
        assert math.dist(again.pose.position, moved.pose.position) < 2e-3


@pytest.mark.parametrize("degrees", [20, 45, 70])
def test_sliding_keeps_the_part_of_the_step_along_the_wall(bench, degrees):
    simulator = bench.open(hall, is_sliding=True)
    contact = pressed(simulator, Pose.from_yaw((2, 0, 4), WEST)).pose
    yaw = WEST - math.radians(degrees)  # degrees off the wall's normal, towards -z
    slid = simulator.move(Pose.from_yaw(contact.position, yaw), MOVE_FORWARD)
    assert slid.has_collided
    dx, _, dz = np.subtract(slid.pose.position, contact.position)
    assert dx == pytest.approx(0, abs=5e-3)
    assert dz == pytest.approx(-0.25 * math.sin(math.radians(degrees)), abs=5e-3)


@pytest.mark.parametrize("degrees", [20, 45, 70])
def test_without_sliding_the_agent_stops_where_it_touches(bench, degrees):
    simulator = bench.open(hall, is_sliding=False)
    contact = pressed(simulator, Pose.from_yaw((2, 0, 4), WEST)).pose.position
    yaw = WEST - math.radians(degrees)
    start = Pose.from_yaw((contact[0] + 0.05, contact[1], contact[2]), yaw)
    stopped = simulator.move(start, MOVE_FORWARD)
    assert stopped.has_collided
    x, _, z = stopped.pose.position
    assert x == pytest.approx(contact[0], abs=5e-3)
    assert z == pytest.approx(4 - 0.05 * math.tan(math.radians(degrees)), abs=5e-3)


def test_sliding_follows_a_slanted_wall(bench):
    simulator = bench.open(slanted, is_sliding=True)
    contact = pressed(simulator, Pose.from_yaw((2, 0, 2), -3 * math.pi / 4)).pose  # along +x +z
    nearer, farther = bench.promise.round_m
    gap = (8 - contact.position[0] - contact.position[2]) / math.sqrt(2)
    assert RADIUS - nearer <= gap <= RADIUS + farther
    at = Pose.from_yaw(contact.position, -math.pi / 2)  # looks along +x, at 45 degrees
    moved = simulator.move(at, MOVE_FORWARD)
    assert moved.has_collided
    dx, _, dz = np.subtract(moved.pose.position, contact.position)
    assert dx == pytest.approx(0.125, abs=0.05)
    assert dz == pytest.approx(-0.125, abs=0.05)


def test_no_walk_leaves_the_hall(bench):
    for is_sliding in (True, False):
        simulator = bench.open(hall, is_sliding=is_sliding)
        simulator.reset(Pose.from_yaw((5, 0, 4), 0.0))
        rng = np.random.default_rng(4)
        low_x, low_z, high_x, high_z = HALL
        for action in rng.choice([MOVE_FORWARD, TURN_LEFT, TURN_RIGHT], 400, p=[0.7, 0.2, 0.1]):
            x, y, z = simulator.act(int(action)).pose.position
            least = RADIUS - bench.promise.contact_m[0]
            assert min(x - low_x, high_x - x, z - low_z, high_z - z) > least
            assert -1e-3 <= y <= bench.promise.height_m


def test_a_door_lets_through_what_fits(bench):
    for scene, passes in ((wide_door, True), (narrow_door, False)):
        simulator = bench.open(scene, is_sliding=True)
        end = pressed(simulator, Pose.from_yaw((1.5, 0, 2), -math.pi / 2)).pose.position
        assert (end[0] > 4) == passes
        assert math.isfinite(simulator.geodesic_distance((1, 0, 2), [(5, 0, 2)])) == passes


def test_a_sill_is_walked_over_and_a_block_is_not(bench):
    simulator = bench.open(ledges, is_sliding=True)
    start = simulator.reset(Pose.from_yaw((2, 0, 2), -math.pi / 2))
    actions = [MOVE_FORWARD] * 10
    expected = dead_reckoning(start, actions, step_m=0.25, turn_deg=30)
    for action, (x, z, _) in zip(actions, expected, strict=True):
        position = simulator.act(action).pose.position
        assert math.hypot(position[0] - x, position[2] - z) < 5e-3  # over the sill, in plan
        floor = 0.1 if 3.1 < x < 3.5 else 0.0
        assert floor - 2e-3 <= position[1] <= 0.1 + bench.promise.height_m
    end = pressed(simulator, Pose.from_yaw((4.5, 0, 2), -math.pi / 2))
    assert end.has_collided
    assert end.pose.position[0] < 6 - RADIUS + bench.promise.contact_m[0]
