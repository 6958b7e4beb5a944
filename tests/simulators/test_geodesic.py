"""Geodesics against lengths worked out by hand and against a grid search built here."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.sparse as sp
from mesh_scenes import SceneBuilder, crowded_hall, load, two_floors_with_stairs
from scipy.sparse.csgraph import dijkstra

from vla_nav.episodes.types import MOVE_FORWARD, Pose

RADIUS = 0.18
BOXES = ((1.0, 1.0, 2.2, 1.9), (3.3, 0.0, 3.4, 2.6), (2.0, 3.1, 2.6, 4.0), (4.4, 1.6, 5.2, 2.4))


@pytest.fixture(scope="module")
def room(tmp_path_factory):
    scene = SceneBuilder().room(0, 0, 6, 4)
    for x0, z0, x1, z1 in BOXES:
        scene.box((x0, 0, z0), (x1, 1, z1))
    return load(scene, tmp_path_factory.mktemp("room"))


@pytest.fixture(scope="module")
def floors(tmp_path_factory):
    return load(two_floors_with_stairs(), tmp_path_factory.mktemp("floors"))


def round_corner(corner, start, goal, radius, *, away) -> float:
    """Length from start to goal round a disc: two tangents and the arc between them, on the side
    of `away` (a direction from the disc's centre)."""
    vectors = [np.subtract(point, corner) for point in (start, goal)]
    tangents = [math.sqrt(v @ v - radius**2) for v in vectors]
    arc = 0.0
    for v in vectors:
        cosine = np.dot(v, away) / np.linalg.norm(v) / np.linalg.norm(away)
        arc += math.acos(cosine) - math.acos(radius / np.linalg.norm(v))
    return sum(tangents) + radius * arc


def clearance(x, z) -> np.ndarray:
    """Distance to walls and boxes of the room, from their coordinates alone."""
    result = np.minimum.reduce([x, 6 - x, z, 4 - z])
    for x0, z0, x1, z1 in BOXES:
        dx, dz = (
            np.maximum(np.maximum(x0 - x, x - x1), 0),
            np.maximum(np.maximum(z0 - z, z - z1), 0),
        )
        result = np.minimum(result, np.hypot(dx, dz))
    return result


def test_a_free_line_of_sight_is_measured_exactly(room):
    for start, goal in (((0.5, 0, 0.4), (3.0, 0, 0.5)), ((0.4, 0, 3.5), (0.31, 0, 0.37))):
        expected = math.dist(start, goal)
        assert room.geodesic_distance(start, [goal]) == pytest.approx(expected, abs=1e-6)
        path = room.shortest_path(start, goal)
        np.testing.assert_allclose(path.points, [start, goal], atol=1e-5)


def test_one_corner_is_two_tangents_and_an_arc(tmp_path):
    scene = SceneBuilder().room(0, 0, 6, 6).box((0, 0, 0), (3, 2, 3))
    simulator = load(scene, tmp_path)
    rng = np.random.default_rng(0)
    for _ in range(10):
        start, goal = (rng.uniform(0.3, 2), rng.uniform(3.3, 4)), (3.4, rng.uniform(0.3, 2))
        expected = round_corner((3, 3), start, goal, RADIUS, away=(1, 1))
        distance = simulator.geodesic_distance((start[0], 0, start[1]), [(goal[0], 0, goal[1])])
        assert distance == pytest.approx(expected, rel=0.005)


def test_a_wall_is_walked_round_at_its_end(tmp_path):
    scene = SceneBuilder().room(0, 0, 6, 4).box((3, 0, 0), (3.1, 2, 3))
    simulator = load(scene, tmp_path)
    half = round_corner((3, 3), (2, 0.5), (3.0, 3 + RADIUS + 1e-9), RADIUS, away=(0, 1))
    distance = simulator.geodesic_distance((2, 0, 0.5), [(4.1, 0, 0.5)])
    assert distance == pytest.approx(2 * half + 0.1, rel=0.006)


def test_many_queries_agree_with_a_grid_search(room):
    cell = 0.05
    x, z = np.meshgrid(np.arange(0, 6, cell) + cell / 2, np.arange(0, 4, cell) + cell / 2)
    free = clearance(x, z) >= RADIUS
    index = np.arange(x.size).reshape(x.shape)
    rows, columns, lengths = [], [], []
    steps = [(1, 0), (0, 1), (1, 1), (1, -1), (2, 1), (1, 2), (2, -1), (1, -2)]
    for dx, dz in steps:
        a = index[max(0, -dz) : x.shape[0] - max(0, dz), : x.shape[1] - dx]
        b = a + dz * x.shape[1] + dx
        both = free.ravel()[a] & free.ravel()[b]
        rows.append(a[both])
        columns.append(b[both])
        lengths.append(np.full(both.sum(), math.hypot(dx, dz) * cell))
    graph = sp.csr_matrix(
        (np.concatenate(lengths), (np.concatenate(rows), np.concatenate(columns))),
        (x.size, x.size),
    )
    rng = np.random.default_rng(1)
    nodes = rng.choice(np.flatnonzero(free), 40, replace=False)
    search = dijkstra(graph, directed=False, indices=nodes[:8])[:, nodes]
    for i in range(8):
        goal = (x.flat[nodes[i]], 0.0, z.flat[nodes[i]])
        for j, node in enumerate(nodes):
            distance = room.geodesic_distance((x.flat[node], 0.0, z.flat[node]), [goal])
            # 16 directions are up to 2.75 % long; obstacle borders differ by a cell per bend.
            assert distance <= search[i, j] * 1.002 + 0.06
            assert distance >= search[i, j] / 1.0275 - 0.06


def test_distances_are_symmetric_and_obey_the_triangle(room):
    rng = np.random.default_rng(2)
    points = [room.random_point(rng) for _ in range(12)]
    d = np.array([[room.geodesic_distance(a, [b]) for b in points] for a in points])
    assert np.isfinite(d).all()
    # Points within a centimetre of a wall are looked at from a hair off it.
    np.testing.assert_allclose(d, d.T, atol=0.005)
    assert (d <= d[:, :, None] + d[None] + 0.02).all()
    np.testing.assert_allclose(np.diag(d), 0, atol=1e-9)


def test_paths_are_walkable_taut_and_as_long_as_said(room):
    rng = np.random.default_rng(3)
    for _ in range(40):
        start, goal = room.random_point(rng), room.random_point(rng)
        distance, points = room.shortest_path(start, goal)
        np.testing.assert_allclose(points[[0, -1]], [start, goal], atol=0.015)
        assert distance == pytest.approx(np.linalg.norm(np.diff(points, axis=0), axis=1).sum())
        assert distance >= math.dist(points[0], points[-1]) - 1e-9
        t = np.linspace(0, 1, 50)[:, None, None]
        along = (points[:-1] * (1 - t) + points[1:] * t).reshape(-1, 3)
        assert clearance(along[:, 0], along[:, 2]).min() > RADIUS - 0.02


def test_the_nearest_of_several_goals_counts(room):
    start, goals = (0.4, 0, 0.4), [(5.5, 0, 3.5), (0.5, 0, 3.5), (2.8, 0, 0.4)]
    each = [room.geodesic_distance(start, [goal]) for goal in goals]
    assert room.geodesic_distance(start, goals) == min(each)
    assert room.geodesic_distance(start, []) == math.inf
    assert room.geodesic_distance(start, [(50, 0, 50)]) == math.inf
    assert room.shortest_path(start, (50, 0, 50)).points.shape == (0, 3)


def test_stairs_are_measured_along_their_slope(floors):
    # 2 m of floor, 4.2 m of stairs that rise 2.8 m, 1.8 m of floor.
    expected = 2 + math.hypot(4.2, 2.8) + 1.8
    distance, points = floors.shortest_path((1, 0, 0.6), (9, 2.8, 0.6))
    assert distance == pytest.approx(expected, rel=0.01)
    assert (np.diff(points[:, 1]) > -1e-6).all()
    assert np.abs(points[:, 2] - 0.6).max() < 0.1


def test_a_point_above_another_is_far_by_foot(floors):
    below, above = (10.0, 0.0, 3.0), (10.0, 2.8, 3.0)
    distance = floors.geodesic_distance(below, [above])
    # To the foot of the stairs, up, and back: at least the straight legs.
    least = math.hypot(7, 1.8) + math.hypot(4.2, 2.8) + math.hypot(2.8, 1.8)
    assert least < distance < 1.15 * least
    assert distance == pytest.approx(floors.geodesic_distance(above, [below]), abs=0.01)


def test_a_field_answers_after_others_came_and_went(room):
    start, goal = (0.4, 0, 0.4), (5.5, 0, 3.5)
    before = room.geodesic_distance(start, [goal])
    rng = np.random.default_rng(4)
    for _ in range(100):
        room.geodesic_distance(start, [room.random_point(rng)])
    assert room.geodesic_distance(start, [goal]) == before


@pytest.mark.parametrize("seed", range(4))
def test_all_points_of_one_area_reach_each_other_and_no_other_area(tmp_path, seed):
    # Nooks, gaps of every width and slanted faces: nothing may fall out of the visibility graph.
    simulator = load(crowded_hall(seed), tmp_path)
    walkable, rng = simulator.walkable, np.random.default_rng(seed)
    nodes = rng.choice(np.flatnonzero(walkable.is_walkable), 60, replace=False)
    columns = walkable.columns
    points = np.stack([columns.x_m, columns.height_m, columns.z_m], 1)[nodes].tolist()
    area = walkable.island[nodes]
    for i in range(0, 60, 4):
        distance = [simulator.geodesic_distance(tuple(p), [tuple(points[i])]) for p in points]
        np.testing.assert_array_equal(np.isfinite(distance), area == area[i])


def test_a_point_pressed_into_a_nook_still_finds_its_way(tmp_path):
    simulator = load(crowded_hall(1), tmp_path)
    rng = np.random.default_rng(0)
    goal = simulator.random_point(rng)
    reached = 0
    for _ in range(150):  # walk blindly into corners, then ask
        pose = Pose.from_yaw(simulator.random_point(rng), rng.uniform(-3, 3))
        if not np.isfinite(simulator.geodesic_distance(pose.position, [goal])):
            continue
        for _ in range(30):
            pose = simulator.move(pose, MOVE_FORWARD).pose
        assert np.isfinite(simulator.geodesic_distance(pose.position, [goal]))
        assert np.isfinite(simulator.geodesic_distance(goal, [pose.position]))
        reached += 1
    assert reached > 50
