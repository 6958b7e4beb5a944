"""Every backend: shortest walkable lengths against lengths worked out by hand, and snapping."""

from __future__ import annotations

import math

import numpy as np
import pytest
from flat_oracles import round_corner
from known_scenes import apart, divided, hall, storeys

from vla_nav.episodes.types import MOVE_FORWARD, Pose
from vla_nav.errors import UserError

RADIUS = 0.18


def over_the_wall_end(start, goal) -> float:
    """Length in `divided` from the left room to the right one, round the wall's end at z = 4."""
    one = round_corner((3.95, 4), start, (4.0, 4 + RADIUS), RADIUS, away=(-1, 1))
    other = round_corner((4.05, 4), (4.0, 4 + RADIUS), goal, RADIUS, away=(1, 1))
    return one + other


def test_a_free_line_of_sight_has_its_own_length(bench):
    simulator = bench.open(hall)
    for start, goal in (
        ((1.0, 0.0, 1.0), (9.0, 0.0, 7.0)),
        ((1.0, 0.0, 4.0), (8.0, 0.0, 4.5)),
        ((5.0, 0.0, 4.0), (5.3, 0.0, 4.4)),
    ):
        length = simulator.geodesic_distance(start, [goal])
        assert length == pytest.approx(math.dist(start, goal), abs=2e-3)
        path = simulator.shortest_path(start, goal)
        assert path.distance_m == pytest.approx(length, abs=1e-4)
        assert len(path.points) >= 2
    assert simulator.geodesic_distance((5, 0, 4), [(5, 0, 4)]) == pytest.approx(0, abs=1e-3)


def test_a_wall_is_walked_round_at_its_end(bench):
    simulator = bench.open(divided)
    for start, goal in (((2.0, 1.0), (6.0, 1.5)), ((1.0, 3.0), (5.0, 2.0)), ((3.5, 0.5), (7, 3))):
        expected = over_the_wall_end(start, goal)
        begin, end = (start[0], 0.0, start[1]), (goal[0], 0.0, goal[1])
        length = simulator.geodesic_distance(begin, [end])
        assert length == pytest.approx(expected, rel=bench.promise.geodesic)
        assert length == pytest.approx(simulator.geodesic_distance(end, [begin]), rel=0.01)
        path = simulator.shortest_path(begin, end)
        assert path.distance_m == pytest.approx(length, rel=0.01)
        legs = np.linalg.norm(np.diff(path.points, axis=0), axis=1)
        assert legs.sum() == pytest.approx(path.distance_m, rel=0.01)
        np.testing.assert_allclose(path.points[[0, -1]][:, [0, 2]], [start, goal], atol=1e-2)
        turn = path.points[np.abs(path.points[:, 0] - 4).argmin()]
        nearer, farther = bench.promise.round_m
        assert 4 + RADIUS - nearer < turn[2] < 4 + RADIUS + farther + 0.05


def test_the_nearest_of_several_goals_counts(bench):
    simulator = bench.open(divided)
    start = (2.0, 0.0, 1.0)
    goals = [(6.0, 0.0, 1.0), (2.0, 0.0, 5.0), (7.0, 0.0, 5.0)]
    single = [simulator.geodesic_distance(start, [goal]) for goal in goals]
    assert simulator.geodesic_distance(start, goals) == pytest.approx(min(single), abs=1e-4)
    assert simulator.geodesic_distance(start, goals[::-1]) == pytest.approx(min(single), abs=1e-4)
    # 4 m through the wall are 8 by foot, and what cannot be reached does not count.
    assert simulator.geodesic_distance(start, [goals[0], (50, 0, 50)]) == pytest.approx(
        single[0], abs=1e-4
    )


def test_many_distances_in_one_call_are_the_single_ones(bench):
    simulator = bench.open(divided)
    rng = np.random.default_rng(2)
    points = np.array([simulator.random_point(rng) for _ in range(6)])
    goals = np.array([[6.0, 0.0, 1.0], [1.0, 0.0, 5.0]])
    together = simulator.distances(points, goals)
    assert together.shape == (6,)
    single = [
        simulator.geodesic_distance(tuple(point), [tuple(goal) for goal in goals.tolist()])
        for point in points.tolist()
    ]
    assert together.tolist() == single


def test_where_no_way_leads_the_distance_is_infinite(bench):
    simulator = bench.open(apart)
    there, island, outside = (1.0, 0.0, 2.0), (5.0, 0.0, 2.0), (40.0, 0.0, 2.0)
    for goal in (island, outside, (math.nan, 0.0, 2.0)):
        assert simulator.geodesic_distance(there, [goal]) == math.inf
        path = simulator.shortest_path(there, goal)
        assert path.distance_m == math.inf
        assert path.points.shape == (0, 3)
    assert simulator.geodesic_distance(there, []) == math.inf
    assert math.isfinite(simulator.geodesic_distance(there, [island, (2.0, 0.0, 3.0)]))


def test_distances_obey_the_triangle_and_shrink_by_a_step(bench):
    simulator = bench.open(divided)
    rng = np.random.default_rng(6)
    a, b, c = (simulator.snap((x, 0.0, z)) for x, z in ((1.0, 1.0), (6.5, 1.0), (3.0, 5.0)))
    distance = simulator.geodesic_distance
    assert distance(a, [b]) <= distance(a, [c]) + distance(c, [b]) + 1e-3
    for _ in range(10):
        pose = Pose.from_yaw(simulator.random_point(rng), rng.uniform(-3, 3))
        moved = simulator.move(pose, MOVE_FORWARD).pose
        change = distance(moved.position, [b]) - distance(pose.position, [b])
        gone = math.hypot(*np.subtract(moved.position, pose.position)[[0, 2]])
        assert abs(change) <= gone * (1 + bench.promise.geodesic) + 0.02


def test_stairs_are_the_way_to_the_other_floor(bench):
    simulator = bench.open(storeys)
    below, above = (2.0, 0.0, 0.6), (9.0, 2.8, 0.6)
    length = simulator.geodesic_distance(below, [above])
    sloped = 1.0 + math.hypot(4.8, 2.8) + 1.2  # flat, up 16 stairs, flat
    assert length == pytest.approx(sloped, rel=bench.promise.geodesic, abs=0.1)
    # A point above another is near by air and far by foot.
    assert simulator.geodesic_distance((10.0, 0.0, 2.0), [(10.0, 2.8, 2.0)]) > 12
    pose = simulator.reset(Pose.from_yaw(below, -math.pi / 2))
    for _ in range(28):
        pose = simulator.act(MOVE_FORWARD).pose
    assert pose.position[0] > 8.3
    assert 2.8 - 1e-2 <= pose.position[1] <= 2.8 + bench.promise.height_m


def test_floors_are_told_apart(bench):
    simulator = bench.open(storeys)
    floors = simulator.floors()
    heights = [floor.height_m for floor in floors]
    # habitat-sim takes the top of the roof (y = 5.7) for a floor of its own.
    assert len(floors) == 2 or (len(floors) == 3 and heights[2] > 5.6)
    assert -0.1 < heights[0] < bench.promise.height_m + 0.05
    assert 2.7 < heights[1] < 2.8 + bench.promise.height_m + 0.05
    for floor, (x, z), is_walkable in (
        (floors[0], (1.5, 2.0), True),
        (floors[0], (10.0, 3.0), True),
        (floors[1], (10.0, 3.0), True),
        (floors[1], (1.5, 2.0), False),
    ):
        column, row = (int(value) for value in floor.pixel(np.array(x), np.array(z)))
        shape = floor.is_walkable.shape
        inside = 0 <= row < shape[0] and 0 <= column < shape[1]
        assert (inside and bool(floor.is_walkable[row, column])) == is_walkable


def test_snap_keeps_what_is_walkable_and_gives_nothing_far_off(bench):
    simulator = bench.open(hall)
    nearer, farther = bench.promise.contact_m
    x, y, z = simulator.snap((1.234, 0.0, 0.987))
    assert (x, z) == pytest.approx((1.234, 0.987), abs=1e-4)
    assert -1e-3 <= y <= bench.promise.height_m
    assert simulator.snap((x, y, z)) == pytest.approx((x, y, z), abs=1e-5)
    for outside_x in (0.05, -0.05, -0.4):  # in the wall's margin, in the wall, behind it
        x, _, z = simulator.snap((outside_x, 0.0, 4.03))
        assert RADIUS - nearer <= x <= RADIUS + farther
        assert z == pytest.approx(4.03, abs=2e-3)
    for far in ((15.0, 0.0, 4.0), (5.0, 4.0, 4.0), (math.nan, 0.0, 4.0), (5.0, math.inf, 4.0)):
        assert simulator.snap(far) is None
        with pytest.raises(UserError, match="start"):
            simulator.reset(Pose.from_yaw(far, 0.0))


def test_random_points_are_walkable_seeded_and_spread_by_area(bench):
    simulator = bench.open(apart)
    points = [simulator.random_point(np.random.default_rng(k)) for k in range(200)]
    assert points[:20] == [simulator.random_point(np.random.default_rng(k)) for k in range(20)]
    least = RADIUS - bench.promise.contact_m[0]
    for x, y, z in points:
        if y > 1:  # the top of the wall between the rooms is no place for an agent
            continue
        room = (0.0, 4.0) if x < 4.1 else (4.2, 6.2)
        assert min(x - room[0], room[1] - x, z, 4 - z) > least
        assert simulator.snap((x, y, z)) == pytest.approx((x, y, z), abs=1e-4)
    shares = np.mean([x < 4.1 for x, y, _ in points if y < 1])
    assert shares == pytest.approx(3.64 / (3.64 + 1.64), abs=0.1)  # 3 standard deviations
