"""Every backend: the expert reaches its goals, stops by foot, and says why it cannot go on."""

from __future__ import annotations

import math

import numpy as np
import pytest
from known_scenes import apart, divided, hall, storeys
from mesh_scenes import crowded_hall

from vla_nav.episodes.types import MOVE_FORWARD, STOP, Pose
from vla_nav.simulators.agent import ExpertSettings
from vla_nav.simulators.follower import FollowerError, GreedyFollower

STOP_RADIUS_M = 0.3


def crowded():
    """A hall of 9 x 7 m full of turned boxes, columns and thin walls."""
    return crowded_hall(2)


def follow(simulator, start: Pose, goal, *, limit: int = 200) -> tuple[Pose, float, bool]:
    """Walk with the worker's expert, a label a decision: the last pose, the length, success."""
    expert = ExpertSettings((tuple(map(float, goal)),), STOP_RADIUS_M, 12)
    pose, length = simulator.reset(start, expert), 0.0
    outcome = simulator.execute((), wants_images=False, wants_label=True)
    for _ in range(limit):
        if outcome.label is None:
            return pose, length, False
        actions = outcome.label.primitives
        ends = STOP in actions
        actions = actions[: actions.index(STOP)] if ends else actions
        before = pose
        outcome = simulator.execute(actions, wants_images=False, wants_label=True)
        for after in outcome.poses:
            length += math.dist(before.position, after.position)
            before = pose = after
        if ends:
            left = simulator.geodesic_distance(pose.position, [goal])
            return pose, length, left <= STOP_RADIUS_M + 1e-3
    return pose, length, False


def pairs(simulator, count: int, seed: int, *, least_m: float = 2.0):
    """Starts and goals on the ground that a way of at least `least_m` joins, and its length."""
    rng = np.random.default_rng(seed)
    found = []
    while len(found) < count:
        start, goal = simulator.random_point(rng), simulator.random_point(rng)
        length = simulator.geodesic_distance(start, [goal])
        if max(start[1], goal[1]) < 0.4 and least_m <= length < math.inf:
            found.append((Pose.from_yaw(start, rng.uniform(-math.pi, math.pi)), goal, length))
    return found


@pytest.mark.parametrize(("is_sliding", "turn_deg"), [(True, 30), (True, 15), (False, 30)])
@pytest.mark.parametrize("scene", [divided, crowded])
def test_the_expert_reaches_every_goal(bench, scene, is_sliding, turn_deg):
    simulator = bench.open(scene, is_sliding=is_sliding, turn_deg=turn_deg)
    efficiency = []
    for start, goal, shortest in pairs(simulator, 12, seed=5):
        pose, length, has_arrived = follow(simulator, start, goal)
        assert has_arrived, f"from {start} to {goal}: ended at {pose}"
        efficiency.append(shortest / max(shortest, length + STOP_RADIUS_M))
    assert np.mean(efficiency) > 0.85


def test_the_expert_climbs_to_another_floor_and_back(bench):
    simulator = bench.open(storeys)
    for start, goal in (((10, 0, 3), (11, 2.8, 3)), ((9, 2.8, 0.6), (6, 0, 2.5))):
        pose, _, has_arrived = follow(simulator, Pose.from_yaw(start, 1.0), goal)
        assert has_arrived, f"ended at {pose}"
        assert math.hypot(pose.position[0] - goal[0], pose.position[2] - goal[2]) < 0.5


def test_a_plan_is_what_the_simulator_does(bench):
    simulator = bench.open(crowded)
    for start, goal, _ in pairs(simulator, 4, seed=9):
        label = GreedyFollower(simulator, goal, stop_radius_m=STOP_RADIUS_M).plan(start, 15)
        expert = ExpertSettings((goal,), STOP_RADIUS_M, 15)
        pose = simulator.reset(start, expert)
        if pose == start:  # otherwise the plan begins elsewhere
            told = simulator.execute((), wants_images=False, wants_label=True).label
            assert told.primitives == label.primitives
        pose = start
        for primitive, after in zip(label.primitives, label.poses, strict=True):
            pose = simulator.move(pose, primitive).pose
            assert pose == after


def test_stop_comes_within_the_radius_and_by_foot(bench):
    simulator = bench.open(divided)
    follower = GreedyFollower(simulator, (2.0, 0.0, 3.0), stop_radius_m=0.5)
    for distance, stops in ((0.45, True), (0.6, False)):
        at = simulator.snap((2.0 + distance, 0.0, 3.0))
        label = follower.plan(Pose.from_yaw(at, math.pi / 2), 12)
        assert (label.primitives[0] == STOP) == stops
    behind = GreedyFollower(simulator, simulator.snap((4.5, 0.0, 1.0)), stop_radius_m=1.5)
    label = behind.plan(Pose.from_yaw(simulator.snap((3.5, 0.0, 1.0)), 0.0), 20)
    assert label.primitives[0] != STOP
    assert MOVE_FORWARD in label.primitives


def test_no_way_is_said_with_its_reason(bench):
    simulator = bench.open(apart)
    expert = ExpertSettings(((5.2, 0.0, 2.0),), STOP_RADIUS_M, 12)
    pose = simulator.reset(Pose.from_yaw((1.0, 0.0, 2.0), 0.0), expert)
    outcome = simulator.execute((), wants_images=False, wants_label=True)
    assert outcome.label is None
    assert "no path" in outcome.stuck
    with pytest.raises(FollowerError, match="no path"):
        GreedyFollower(simulator, (5.2, 0.0, 2.0), stop_radius_m=0.3).plan(pose, 5)


def test_the_expert_turns_first_and_walks_straight(bench):
    simulator = bench.open(hall)
    start = simulator.reset(Pose.from_yaw((8.0, 0.0, 4.0), -math.pi / 2))  # away from the goal
    label = GreedyFollower(simulator, (3.0, 0.0, 4.0), stop_radius_m=0.3).plan(start, 12)
    assert label.primitives[:6] in ((2,) * 6, (3,) * 6)
    assert label.primitives[6:] == (MOVE_FORWARD,) * 6
