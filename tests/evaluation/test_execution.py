"""Going to a waypoint along the shortest path: where the agent is carried, what it is charged."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from worlds import body_of, episodes_of, evaluate_config

from tests.simulators.mesh_scenes import embodiment, two_floors_with_stairs
from vla_nav.actions.pointing import PointingSpace
from vla_nav.actions.projection import project, to_agent_frame
from vla_nav.actions.targets import FAR_M, Target, target_of
from vla_nav.actions.types import Pointing, Primitives, Stop, Waypoint
from vla_nav.actions.waypoint import WaypointSpace
from vla_nav.episodes.types import MOVE_FORWARD, STOP, TURN_LEFT, TURN_RIGHT, Camera, Pose
from vla_nav.evaluation.approach import Call, approach, walk
from vla_nav.simulators.client import LocalWorker

RULE = "turn_then_forward(4)"
START = Pose.from_yaw((0.0, 0.0, 0.0), 0.0)  # looks along -Z, left is -X
F, L, R = MOVE_FORWARD, TURN_LEFT, TURN_RIGHT


@pytest.fixture(scope="module")
def config(world, tmp_path_factory):
    return evaluate_config(world, tmp_path_factory.mktemp("out"))


@pytest.fixture(scope="module")
def body(config):
    return body_of(config)


def places_of(done):
    return np.array([pose.position for pose in done.poses])


def test_a_straight_way_is_walked_in_steps_and_ends_at_the_target(body):
    done = walk(np.array([[0, 0, 0], [0, 0, -0.6]]), START, yaw_rad=0.0, reach_m=1.0, body=body)
    assert done.primitives == (F, F, F)
    assert np.allclose(places_of(done)[:, 2], [-0.2, -0.4, -0.6])
    assert not done.has_collided


def test_turns_are_charged_by_the_body_s_angle_and_the_last_heading_is_exact(body):
    # Half a metre to the left, then face back: three turns, two steps, three turns more.
    done = walk(np.array([[0, 0, 0], [-0.5, 0, 0]]), START, yaw_rad=math.pi, reach_m=1.0, body=body)
    assert done.primitives == (L, L, L, F, F, L, L, L)
    assert np.allclose(places_of(done)[-1], [-0.5, 0, 0])
    assert abs(done.poses[-1].yaw_rad) == pytest.approx(math.pi)
    # 20 degrees are less than half a turn beyond the first: one turn is charged, the rest is free.
    at = np.array([[0, 0, 0], [-math.sin(0.7), 0, -math.cos(0.7)]])
    slanted = walk(at, START, yaw_rad=0.7, reach_m=1.0, body=body)
    assert slanted.primitives == (L, F, F, F, F)
    assert slanted.poses[-1].yaw_rad == pytest.approx(0.7)


def test_a_slow_bend_is_not_free(body):
    """Ten degrees a step never make half a turn at once; a right angle still costs three turns."""
    angles = np.radians(np.arange(0, 100, 10))
    legs = 0.25 * np.stack([-np.sin(angles), 0 * angles, -np.cos(angles)], axis=1)
    points = np.concatenate([[[0, 0, 0]], np.cumsum(legs, axis=0)])
    done = walk(points, START, yaw_rad=math.pi / 2, reach_m=10.0, body=body)
    assert done.primitives.count(L) == 3
    assert done.primitives.count(R) == 0
    assert np.allclose(places_of(done)[-1], points[-1])


@pytest.mark.parametrize("reach_m", [0.3, 0.55, 0.8, 2.0])
def test_the_reach_cuts_the_way_and_corners_are_walked_not_cut(body, reach_m):
    points = np.array([[0, 0, 0], [0, 0, -0.6], [0.6, 0, -0.6]])
    done = walk(points, START, yaw_rad=0.0, reach_m=reach_m, body=body)
    places = np.concatenate([[[0, 0, 0]], places_of(done)])
    length = np.linalg.norm(np.diff(places, axis=0), axis=1).sum()
    assert length == pytest.approx(min(reach_m, 1.2), abs=1e-6)
    for x, _, z in places:
        assert abs(x) < 1e-6 or abs(z + 0.6) < 1e-6  # on one leg or the other
    if reach_m == 2.0:
        assert done.primitives == (F, F, F, R, R, R, F, F, F, L, L, L)
    elif reach_m == 0.8:  # cut short of the target: it faces along the way
        assert done.poses[-1].yaw_rad == pytest.approx(-math.pi / 2)


def test_a_way_of_no_length_costs_a_step_on_the_spot(body):
    done = walk(np.zeros((2, 3)), START, yaw_rad=0.0, reach_m=1.0, body=body)
    assert done == ((F,), (START,), True)
    turned = walk(np.zeros((2, 3)), START, yaw_rad=-math.pi / 3, reach_m=1.0, body=body)
    assert turned.primitives == (R, R)
    assert not turned.has_collided


def test_a_target_is_the_place_that_the_action_names(body):
    space = WaypointSpace(decision=RULE)
    target = target_of(space, Waypoint(0.5, -0.5, 0.3), body)
    assert (target.forward_m, target.left_m, target.yaw_rad) == (0.5, -0.5, 0.3)
    assert target.reach_m == 1.0
    assert target.primitives == space.primitives(Waypoint(0.5, -0.5, 0.3), body)
    assert target_of(space, Stop(), body) is None
    assert target_of(space, Primitives((L,)), body) is None
    wide = WaypointSpace(decision=RULE, range_m=3.0)
    assert target_of(wide, Waypoint(3.0, 0.0, 0.0), body).reach_m == 3.0


def test_a_pixel_s_target_is_what_it_shows(body):
    camera = Camera("front", 33, 33, hfov_deg=90.0, height_m=1.25, has_depth=True)
    seeing = SimpleNamespace(cameras=(camera,), turn_deg=30.0, step_m=0.25)
    space = PointingSpace(decision=RULE)
    depth = {"front": np.full((33, 33), 2.0, np.float32)}
    ahead = target_of(space, Pointing("front", 0.5, 0.5, 0.0), seeing, depth)
    assert (ahead.forward_m, ahead.left_m) == pytest.approx((2.0, 0.0))
    assert ahead.up_m == pytest.approx((1.25, 0.0))  # on a wall, that may rise from the own floor
    low = target_of(space, Pointing("front", 0.5, 0.75, 0.0), seeing, depth)
    assert low.up_m == pytest.approx((0.25, 0.0))
    # Without depth the ray meets the floor; above the horizon it is a direction.
    floor = target_of(space, Pointing("front", 0.25, 0.75, 0.0), seeing)
    assert (floor.forward_m, floor.left_m) == pytest.approx((2.5, 1.25))
    sky = target_of(space, Pointing("front", 0.5, 0.1, 0.0), seeing)
    assert sky.forward_m == pytest.approx(FAR_M)
    assert sky.reach_m == 1.0


class Houses:
    """A host with a generated house loaded, asked as the evaluation asks its workers."""

    def __init__(self, config):
        self.episodes, scenes = episodes_of(config)
        self.body = body_of(config)
        self.worker = LocalWorker("mesh", self.body, config["simulators"]["options"])
        self.scenes = scenes

    def go(self, episode, target, pose):
        scene = self.scenes[episode.scene_id]
        asking = approach(target, pose, scene=scene, body=self.body)
        answer = None
        while True:
            try:
                call = asking.send(answer)
            except StopIteration as end:
                return end.value
            assert isinstance(call, Call)
            answer = self.worker.call(call.method, **call.arguments)

    def distance(self, episode, start, goal):
        scene = self.scenes[episode.scene_id]
        asked = {"points": np.array([start]), "goals": np.array([goal])}
        return float(self.worker.call("distances", scene=scene, **asked)[0])


def test_walks_in_a_house_stay_on_the_floor_and_are_as_long_as_the_geodesic(config):
    houses = Houses(config)
    rng = np.random.default_rng(0)
    num_round_a_corner = 0
    for number in range(40):
        episode = houses.episodes[number % len(houses.episodes)]
        scene = houses.scenes[episode.scene_id]
        start = Pose.from_yaw(
            tuple(houses.worker.call("random_point", scene=scene, seed=number)),
            rng.uniform(-np.pi, np.pi),
        )
        goal = houses.worker.call("random_point", scene=scene, seed=1000 + number)
        forward, left, _ = start.relative(Pose.from_yaw(tuple(goal), 0.0))
        if abs(goal[1] - start.position[1]) > 0.1:
            continue  # the target is named at the agent's own height
        target = Target(forward, left, (0.0,), 0.0, 1e3, (STOP,))
        done = houses.go(episode, target, start)
        geodesic = houses.distance(episode, start.position, goal)
        places = np.concatenate([[start.position], places_of(done)])
        walked = np.linalg.norm(np.diff(places, axis=0), axis=1).sum()
        assert walked == pytest.approx(geodesic, rel=0.01, abs=0.03)
        assert np.allclose(places[-1], goal, atol=0.02)
        assert done.poses[-1].yaw_rad == pytest.approx(start.yaw_rad, abs=1e-6)
        num_round_a_corner += geodesic > 1.05 * np.linalg.norm(np.subtract(goal, start.position))
        for place in places[1:]:
            floor = houses.worker.call("snap", scene=scene, point=place.tolist())
            assert math.dist(floor, place) < 0.06
        assert done.primitives.count(F) >= walked / houses.body.step_m - 0.1 - 1e-6
    assert num_round_a_corner >= 10  # straight lines would have proved nothing


def test_a_target_without_a_way_is_none(config):
    houses = Houses(config)
    episode = houses.episodes[0]
    nowhere = Target(500.0, 0.0, (0.0,), 0.0, 1.0, (F,))
    assert houses.go(episode, nowhere, episode.start_pose) is None


class Stairs:
    """Two floors with stairs along +x between them (`two_floors_with_stairs`), seen with depth."""

    CAMERA = Camera("front", 65, 65, hfov_deg=90.0, height_m=1.25, has_depth=True)

    def __init__(self, folder):
        self.body = embodiment(cameras=(self.CAMERA,))
        self.scene = str(two_floors_with_stairs().write(folder / "stairs.glb"))
        self.worker = LocalWorker("mesh", self.body, {})

    def go(self, space, action, pose):
        plain_pose = [*pose.position, *pose.rotation]
        seen = self.worker.call("observe_at", scene=self.scene, pose=plain_pose, semantic=False)
        target = target_of(space, action, self.body, dict(seen["depth"]))
        asking = approach(target, pose, scene=self.scene, body=self.body)
        answer = None
        while True:
            try:
                call = asking.send(answer)
            except StopIteration as end:
                return end.value
            answer = self.worker.call(call.method, **call.arguments)

    def pixel(self, pose, point):
        """The action that points at a world point."""
        seen = to_agent_frame(np.array([point]), pose)
        u, v, _ = project(seen, self.CAMERA)
        return Pointing("front", float(u[0]), float(v[0]), 0.0)


@pytest.fixture(scope="module")
def stairs(tmp_path_factory):
    return Stairs(tmp_path_factory.mktemp("stairs"))


def test_waypoints_lead_up_the_stairs_and_down_again(stairs):
    """A waypoint has no height: on stairs the place a metre ahead is looked for on them."""
    space = WaypointSpace(decision=RULE)
    pose = Pose.from_yaw((2.0, 0.0, 0.6), -math.pi / 2)  # at the foot, facing up
    heights = []
    for _ in range(8):
        done = stairs.go(space, Waypoint(1.0, 0.0, 0.0), pose)
        assert set(done.primitives) == {F}
        assert 4 <= len(done.primitives) <= 5  # steps are horizontal, as on the level
        pose = done.poses[-1]
        heights.append(pose.position[1])
        assert pose.position[2] == pytest.approx(0.6, abs=0.15)
    assert heights[-1] == pytest.approx(2.8, abs=0.01)
    assert heights == sorted(heights)
    pose = Pose.from_yaw(pose.position, math.pi / 2)
    for _ in range(8):
        pose = stairs.go(space, Waypoint(1.0, 0.0, 0.0), pose).poses[-1]
    assert pose.position[1] == pytest.approx(0.0, abs=0.01)


@pytest.mark.parametrize("point", [(3.9, 0.6, 0.6), (4.65, 1.0, 0.6), (5.5, 1.8, 0.6)])
def test_a_pixel_on_the_stairs_means_the_stairs(stairs, point):
    foot = Pose.from_yaw((2.0, 0.0, 0.6), -math.pi / 2)
    done = stairs.go(PointingSpace(decision=RULE), stairs.pixel(foot, point), foot)
    x, _, z = done.poses[-1].position
    assert (x, z) == pytest.approx((3.0, 0.6), abs=0.1)  # a metre on, not aside


@pytest.mark.parametrize("height_m", [0.3, 0.9, 1.2, 2.2])
def test_a_pixel_on_a_wall_means_the_floor_before_it(stairs, height_m):
    """Behind this thin wall the stairs rise, and their surface is nearer to most such pixels."""
    aside = Pose.from_yaw((5.0, 0.0, 3.0), 0.0)  # faces the wall at z = 1.3
    action = stairs.pixel(aside, (5.0, height_m, 1.3))
    done = stairs.go(PointingSpace(decision=RULE), action, aside)
    assert done.primitives == (F, F, F, F)
    assert done.poses[-1].position == pytest.approx((5.0, 0.0, 2.0), abs=0.01)
