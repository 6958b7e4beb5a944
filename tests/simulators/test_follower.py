"""The expert reaches its goal from anywhere, says what it will do, and says why it cannot."""

from __future__ import annotations

import math

import numpy as np
import pytest
from mesh_scenes import SceneBuilder, crowded_hall, load, two_floors_with_stairs

from vla_nav.episodes.types import MOVE_FORWARD, STOP, TURN_LEFT, TURN_RIGHT, Pose
from vla_nav.errors import UserError
from vla_nav.simulators.follower import FollowerError, GreedyFollower
from vla_nav.simulators.protocol import Motion


class PublicOnly:
    """A simulator with the protocol's methods and nothing else; counts them."""

    def __init__(self, simulator):
        self.backend, self.embodiment = simulator.backend, simulator.embodiment
        self._simulator = simulator

    def move(self, pose, primitive):
        return self._simulator.move(pose, primitive)

    def geodesic_distance(self, start, goals):
        return self._simulator.geodesic_distance(start, goals)

    def shortest_path(self, start, goal):
        return self._simulator.shortest_path(start, goal)


def flat() -> SceneBuilder:
    """Four rooms round a corridor, doors of 0.9 m with lintels, a bed and a table in the way."""
    scene = SceneBuilder().room(0, 0, 9, 8)
    for z in (3.2, 4.6):
        previous = 0.0
        for door in (2.0, 7.0):
            scene.box((previous, 0, z), (door - 0.45, 2.5, z + 0.1))
            scene.box((door - 0.45, 2.1, z), (door + 0.45, 2.5, z + 0.1))
            previous = door + 0.45
        scene.box((previous, 0, z), (9, 2.5, z + 0.1))
    scene.box((4.4, 0, 0), (4.5, 2.5, 3.2)).box((4.4, 0, 4.7), (4.5, 2.5, 8))
    scene.box((0.8, 0, 1.2), (3.0, 0.5, 2.2)).box((6, 0, 6), (7.5, 0.8, 6.9))
    return scene.box((5.6, 0, 1.0), (6.3, 1.2, 2.4)).box((1.9, 0, 5.9), (2.4, 0.9, 8))


def follow(simulator, start, goal, rng, *, stop_radius_m=0.4, share_random=0.0):
    """Walk an episode in decisions of a turn and up to four steps: the pose where it stops."""
    follower = GreedyFollower(PublicOnly(simulator), goal, stop_radius_m=stop_radius_m)
    pose, length = simulator.reset(start), 0.0
    for _ in range(150):
        label = follower.plan(pose, 12)
        if label.primitives[0] == STOP:
            return pose, length
        if rng.random() < share_random:
            actions = rng.choice([MOVE_FORWARD, TURN_LEFT, TURN_RIGHT], rng.integers(1, 7)).tolist()
        else:
            is_step = [primitive == MOVE_FORWARD for primitive in label.primitives]
            first = is_step.index(True) if any(is_step) else 0
            actions = label.primitives[: first + 4]
        for action in actions:
            moved = simulator.move(pose, action).pose
            length += math.dist(pose.position, moved.position)
            pose = moved
    raise AssertionError(f"no STOP on the way from {start} to {goal}")


@pytest.mark.parametrize(("is_sliding", "turn_deg"), [(True, 30), (False, 30), (False, 15)])
@pytest.mark.parametrize("share_random", [0.0, 0.3])
def test_every_walkable_start_reaches_every_goal(tmp_path, is_sliding, turn_deg, share_random):
    simulator = load(flat(), tmp_path, is_sliding=is_sliding, turn_deg=turn_deg)
    rng = np.random.default_rng(7)
    efficiency = []
    for _ in range(25):
        start, goal = simulator.random_point(rng), simulator.random_point(rng)
        start = Pose.from_yaw(start, rng.uniform(-math.pi, math.pi))
        shortest = simulator.geodesic_distance(start.position, [goal])
        pose, length = follow(simulator, start, goal, rng, share_random=share_random)
        assert simulator.geodesic_distance(pose.position, [goal]) <= 0.4
        if shortest > 2:
            efficiency.append(shortest / max(shortest, length))
    if share_random == 0:
        assert np.mean(efficiency) > 0.9


@pytest.mark.parametrize("is_sliding", [True, False])
def test_the_expert_threads_a_crowded_hall(tmp_path, is_sliding):
    simulator = load(crowded_hall(2), tmp_path, is_sliding=is_sliding)
    rng = np.random.default_rng(11)
    walked = 0
    while walked < 25:
        start, goal = simulator.random_point(rng), simulator.random_point(rng)
        if math.isfinite(simulator.geodesic_distance(start, [goal])):
            pose = Pose.from_yaw(start, rng.uniform(-3, 3))
            follow(simulator, pose, goal, rng, stop_radius_m=0.25, share_random=0.2)
            walked += 1


def test_the_expert_climbs_to_another_floor_and_back(tmp_path):
    simulator = load(two_floors_with_stairs(), tmp_path)
    rng = np.random.default_rng(1)
    for start, goal in (((10, 0, 3), (11, 2.8, 3)), ((8, 2.8, 0.6), (6, 0, 2.5))):
        pose, _ = follow(simulator, Pose.from_yaw(start, 1.0), goal, rng, share_random=0.2)
        assert math.dist(pose.position, goal) < 0.5


def test_a_plan_is_what_the_simulator_does(tmp_path):
    simulator = load(flat(), tmp_path)
    rng = np.random.default_rng(3)
    for horizon in (1, 2, 7, 12, 40):
        pose = Pose.from_yaw(simulator.random_point(rng), 0.2)
        follower = GreedyFollower(simulator, simulator.random_point(rng), stop_radius_m=0.3)
        label = follower.plan(pose, horizon)
        assert label == follower.plan(pose, horizon)  # depends on the pose alone
        assert len(label.primitives) == len(label.poses)
        assert 1 <= len(label.primitives) <= horizon
        assert len(label.primitives) == horizon or label.primitives[-1] == STOP
        assert STOP not in label.primitives[:-1]
        for primitive, after in zip(label.primitives, label.poses, strict=True):
            pose = simulator.move(pose, primitive).pose
            assert pose == after


def test_stop_comes_exactly_within_the_radius(tmp_path):
    simulator = load(SceneBuilder().room(0, 0, 6, 4), tmp_path)
    goal = (3.0, 0.0, 2.0)
    for radius in (0.2, 0.5, 1.0):
        follower = GreedyFollower(simulator, goal, stop_radius_m=radius)
        for angle in np.linspace(0, 6, 13):
            for distance, stops in ((radius - 0.01, True), (radius + 0.01, False)):
                at = (3 + distance * math.cos(angle), 0.0, 2 + distance * math.sin(angle))
                label = follower.plan(Pose.from_yaw(at, 0.5), 12)
                assert (label.primitives[0] == STOP) == stops
                if stops:
                    assert label.poses == (Pose.from_yaw(at, 0.5),)


def test_stop_is_by_foot_not_through_the_wall(tmp_path):
    scene = SceneBuilder().room(0, 0, 6, 4).box((3, 0, 0), (3.1, 2, 3))
    simulator = load(scene, tmp_path)
    follower = GreedyFollower(simulator, (3.4, 0, 0.5), stop_radius_m=1.0)
    label = follower.plan(Pose.from_yaw((2.7, 0, 0.5), 0.0), 30)
    assert label.primitives[0] != STOP
    assert len(label.primitives) == 30 or label.primitives[-1] == STOP


def test_remaining_path_leads_from_the_pose_to_the_goal(tmp_path):
    simulator = load(flat(), tmp_path)
    start, goal = (0.5, 0.0, 0.5), (8.5, 0.0, 7.5)
    follower = GreedyFollower(simulator, goal, stop_radius_m=0.3)
    points = follower.remaining_path(Pose.from_yaw(start, 0.0))
    np.testing.assert_allclose(points[[0, -1]], [start, goal], atol=0.015)
    length = np.linalg.norm(np.diff(points, axis=0), axis=1).sum()
    assert length == pytest.approx(simulator.geodesic_distance(start, [goal]))


def test_no_way_is_said_with_both_ends(tmp_path):
    scene = SceneBuilder().room(0, 0, 6, 4).box((3, 0, 0), (3.1, 2, 4))
    simulator = load(scene, tmp_path)
    follower = GreedyFollower(simulator, (5, 0, 2), stop_radius_m=0.3)
    with pytest.raises(FollowerError, match=r"no path from \(1\.00.*\(5\.00"):
        follower.plan(Pose.from_yaw((1, 0, 2), 0.0), 12)
    with pytest.raises(FollowerError, match="no path"):
        follower.remaining_path(Pose.from_yaw((1, 0, 2), 0.0))


def test_an_agent_that_cannot_move_is_stuck_with_a_reason(tmp_path):
    simulator = load(SceneBuilder().room(0, 0, 6, 4), tmp_path)

    class Frozen(PublicOnly):
        def move(self, pose, primitive):
            is_step = primitive == MOVE_FORWARD
            return Motion(pose, True) if is_step else simulator.move(pose, primitive)

    follower = GreedyFollower(Frozen(simulator), (5, 0, 2), stop_radius_m=0.3)
    with pytest.raises(FollowerError, match=r"stuck at \(1\.00.*4\.00 m"):
        follower.plan(Pose.from_yaw((1, 0, 2), 0.0), 12)


def test_a_stop_radius_smaller_than_half_a_step_is_refused(tmp_path):
    simulator = load(SceneBuilder().room(0, 0, 6, 4), tmp_path)
    with pytest.raises(UserError, match=r"stop_radius_m 0\.1 .*0\.125"):
        GreedyFollower(simulator, (3, 0, 2), stop_radius_m=0.1)
