"""Routes in the mesh simulator: walkable, long enough, solvable, and true to their words."""

import math

import numpy as np
import pytest

from vla_nav.episodes.types import STOP, Camera, Embodiment, Pose
from vla_nav.errors import UserError
from vla_nav.seeding import generator
from vla_nav.simulators.follower import GreedyFollower
from vla_nav.simulators.houses import HouseOptions, export_house, generate_house
from vla_nav.simulators.houses.plan import STOREY_M
from vla_nav.simulators.houses.routes import RouteOptions, sample_routes
from vla_nav.simulators.mesh import MeshSimulator

EMBODIMENT = Embodiment((Camera("front", 48, 48, 90.0, 1.25),), 0.18, 1.5, 30.0, 0.25, True)


@pytest.fixture(scope="module")
def houses(tmp_path_factory):
    """(house, simulator with it loaded, routes) of three flat houses and one of two floors."""
    loaded = []
    for seed, num_floors in ((11, 1), (12, 1), (13, 1), (14, 2)):
        house = generate_house(seed, HouseOptions(num_floors=num_floors))
        simulator = MeshSimulator(EMBODIMENT)
        simulator.load_scene(str(export_house(house, tmp_path_factory.mktemp("house"))))
        options = RouteOptions(max_geodesic_m=15.0 if num_floors == 1 else 40.0)
        rng = generator(seed, "routes")
        loaded.append(
            (house, simulator, sample_routes(house, simulator, rng, num_routes=8, options=options))
        )
    return loaded


def test_every_door_and_every_object_can_be_reached(houses):
    for house, simulator, _ in houses:
        corridor = house.plan.room("f0_corridor").rect.centre
        start = simulator.snap((corridor[0], 0.0, corridor[1]))
        for door in house.plan.doors:
            place = (door.centre[0], door.floor * STOREY_M, door.centre[1])
            assert math.dist(simulator.snap(place), place) < 0.1
            assert math.isfinite(simulator.geodesic_distance(start, [place]))
        reached = [
            place is not None
            and math.dist(place, item.beside) < 0.5
            and math.isfinite(simulator.geodesic_distance(start, [place]))
            for item in house.objects
            for place in [simulator.snap(item.beside)]
        ]
        assert np.mean(reached) >= 0.9


def test_walls_stop_the_agent(houses):
    """Between two rooms without a common door the way is longer than the straight line."""
    house, simulator, _ = houses[0]
    rooms = [room for room in house.plan.rooms if room.kind not in ("corridor", "stairs")]
    joined = [set(door.rooms) for door in house.plan.doors]
    for a in rooms:
        for b in rooms:
            if a.name < b.name and {a.name, b.name} not in joined:
                start, goal = (
                    simulator.snap((room.rect.centre[0], 0.0, room.rect.centre[1]))
                    for room in (a, b)
                )
                if start and goal:
                    distance = simulator.geodesic_distance(start, [goal])
                    assert distance > math.dist(start, goal) * 1.02


def test_routes_join_different_rooms_and_are_long(houses):
    for house, _, routes in houses:
        assert len(routes) == 8
        for route in routes:
            assert route.geodesic_m >= 6
            floor = round(route.start[1] / STOREY_M)
            (start_room,) = (
                room
                for room in house.plan.rooms
                if room.floor == floor and room.rect.contains(route.start[0], route.start[2])
            )
            assert start_room.name != route.goal_object.room
            assert start_room.name == route.description.legs[0].room.name
            assert route.description.legs[-1].room.name == route.goal_object.room
            assert math.dist(route.goal, route.goal_object.beside) < 0.4
    lengths = [route.geodesic_m for _, _, routes in houses for route in routes]
    assert np.mean(lengths) >= 8


def test_goals_are_ambiguous_without_the_instruction(houses):
    for house, _, routes in houses:
        for route in routes:
            goal = route.goal_object
            rivals = [
                item
                for item in house.objects
                if item is not goal and (item.kind == goal.kind or item.colour == goal.colour)
            ]
            assert len(rivals) >= 2


def test_paths_join_start_and_goal_and_have_the_geodesic_length(houses):
    for _, _, routes in houses:
        for route in routes:
            np.testing.assert_allclose(route.path[0], route.start, atol=0.15)
            np.testing.assert_allclose(route.path[-1], route.goal, atol=0.15)
            length = np.linalg.norm(np.diff(route.path, axis=0), axis=1).sum()
            assert length == pytest.approx(route.geodesic_m, rel=0.06, abs=0.1)


def test_the_expert_solves_the_routes(houses):
    num_solved, lengths = 0, []
    for _, simulator, routes in houses:
        for route in routes[:4]:
            follower = GreedyFollower(simulator, route.goal, stop_radius_m=0.3)
            pose, primitives = Pose.from_yaw(route.start, route.start_yaw_rad), []
            while len(primitives) < 300 and STOP not in primitives:
                label = follower.plan(pose, 12)
                primitives += label.primitives
                pose = label.poses[-1]
            num_solved += math.dist(pose.position, route.goal) < 0.5
            lengths.append(len(primitives))
    assert num_solved == 16
    assert np.mean(lengths) >= 30


def test_stairs_join_the_floors(houses):
    house, _, routes = houses[3]
    assert house.plan.num_floors == 2
    climbs = [[leg.climb for leg in route.description.legs if leg.climb] for route in routes]
    crossing = [route for route in routes if abs(route.start[1] - route.goal[1]) > 2]
    assert crossing
    for route, climb in zip(routes, climbs, strict=True):
        assert climb == ([np.sign(route.goal[1] - route.start[1])] if route in crossing else [])


def test_the_semantic_image_shows_the_goal_object(houses):
    house, simulator, routes = houses[0]
    ids = {node.name: node.semantic_id for node in house.nodes}
    for route in routes[:4]:
        x, _, z = route.goal_object.position
        yaw = math.atan2(-(x - route.goal[0]), -(z - route.goal[2]))
        simulator.reset(Pose.from_yaw(route.goal, yaw))
        labels = simulator.observe(semantic=True).semantic["front"]
        assert (labels == ids[route.goal_object.name]).any()


def test_impossible_lengths_are_refused():
    with pytest.raises(UserError, match="min_geodesic_m"):
        RouteOptions(min_geodesic_m=3.0)
    with pytest.raises(UserError, match="max_geodesic_m"):
        RouteOptions(min_geodesic_m=9.0, max_geodesic_m=8.0)
