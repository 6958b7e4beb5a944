"""Every backend: where an agent stands after its actions on free ground, and what moving is."""

from __future__ import annotations

import math

import numpy as np
import pytest
from flat_oracles import dead_reckoning
from known_scenes import hall

from vla_nav.episodes.types import (
    LOOK_UP,
    MOVE_FORWARD,
    STOP,
    TURN_LEFT,
    TURN_RIGHT,
    Pose,
    wrap_angle,
)
from vla_nav.errors import UserError

CENTRE = (5.0, 0.0, 4.0)


@pytest.mark.parametrize(("turn_deg", "step_m"), [(30, 0.25), (15, 0.25), (10, 0.1)])
@pytest.mark.parametrize("yaw", [0.0, 0.7, -2.5])
def test_a_free_walk_is_dead_reckoning(bench, turn_deg, step_m, yaw):
    simulator = bench.open(hall, turn_deg=turn_deg, step_m=step_m)
    rng = np.random.default_rng(3)
    actions = rng.choice([MOVE_FORWARD, TURN_LEFT, TURN_RIGHT], 90, p=[0.4, 0.4, 0.2]).tolist()
    start = simulator.reset(Pose.from_yaw(CENTRE, yaw))
    expected = dead_reckoning(start, actions, step_m=step_m, turn_deg=turn_deg)
    for x, z, _ in expected:
        assert 0.5 < x < 9.5, "the walk of this seed must stay off the walls"
        assert 0.5 < z < 7.5, "the walk of this seed must stay off the walls"
    for action, (x, z, heading) in zip(actions, expected, strict=True):
        moved = simulator.act(action)
        assert not moved.has_collided
        assert math.hypot(moved.pose.position[0] - x, moved.pose.position[2] - z) < (
            bench.promise.free_m
        )
        assert 0 <= moved.pose.position[1] + 1e-3 <= bench.promise.height_m + 2e-3
        assert abs(wrap_angle(moved.pose.yaw_rad - heading)) < 1e-4
        assert np.linalg.norm(moved.pose.rotation) == pytest.approx(1, abs=1e-5)


def test_left_turns_the_view_to_the_left(bench):
    simulator = bench.open(hall)
    start = simulator.reset(Pose.from_yaw(CENTRE, 0.0))
    left = simulator.move(start, TURN_LEFT).pose
    assert left.yaw_rad == pytest.approx(math.radians(30), abs=1e-5)
    ahead = simulator.move(left, MOVE_FORWARD).pose.position
    assert ahead[0] < CENTRE[0] - 0.1  # yaw 0 looks along -z, left of it is -x
    assert ahead[2] < CENTRE[2] - 0.1


def test_moving_asks_and_acting_goes(bench):
    simulator = bench.open(hall)
    start = simulator.reset(Pose.from_yaw(CENTRE, 0.4))
    imagined = simulator.move(start, MOVE_FORWARD)
    assert simulator.observe().pose == start
    assert simulator.act(MOVE_FORWARD) == imagined
    assert simulator.observe().pose == imagined.pose
    assert imagined.pose.rotation == pytest.approx(start.rotation, abs=1e-6)
    simulator.place(start)
    assert simulator.observe().pose == start
    assert simulator.act(MOVE_FORWARD) == imagined


def test_a_stored_pose_continues_the_same_walk(bench):
    """What is recorded is enough: no state beside the pose decides where a step leads."""
    simulator = bench.open(hall)
    actions = [MOVE_FORWARD, TURN_LEFT, MOVE_FORWARD, MOVE_FORWARD, TURN_RIGHT, MOVE_FORWARD] * 4
    simulator.reset(Pose.from_yaw(CENTRE, 0.4))
    walked = [simulator.act(action) for action in actions]
    middle = walked[9].pose
    simulator.reset(Pose.from_yaw((2.0, 0.0, 2.0), -1.0))
    simulator.act(MOVE_FORWARD)
    simulator.place(middle)
    assert [simulator.act(action) for action in actions[10:]] == walked[10:]


def test_a_decision_in_one_call_is_its_single_steps(bench):
    simulator = bench.open(hall)
    plan = (TURN_LEFT, MOVE_FORWARD, MOVE_FORWARD, TURN_RIGHT, MOVE_FORWARD)
    simulator.reset(Pose.from_yaw(CENTRE, 0.4))
    single = [simulator.act(primitive) for primitive in plan]
    simulator.reset(Pose.from_yaw(CENTRE, 0.4))
    whole = simulator.execute(plan, wants_images=False, wants_label=False)
    assert list(whole.poses) == [motion.pose for motion in single]
    assert list(whole.collided) == [motion.has_collided for motion in single]


def test_stop_stays_and_what_is_not_offered_is_refused(bench):
    simulator = bench.open(hall)
    start = simulator.reset(Pose.from_yaw(CENTRE, 0.4))
    assert simulator.move(start, STOP) == (start, False)
    with pytest.raises(UserError, match="pitch_deg"):
        simulator.move(start, LOOK_UP)
    with pytest.raises(UserError, match="unknown primitive action 9"):
        simulator.move(start, 9)
