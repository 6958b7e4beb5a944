"""Where an agent fits: areas and clearances against hand-computed values, floors, stairs, walls."""

from __future__ import annotations

import numpy as np
import pytest
from mesh_scenes import SceneBuilder, load, two_floors_with_stairs

from vla_nav.errors import UserError

RADIUS = 0.18


def area_m2(simulator) -> float:
    return simulator.walkable.is_walkable.sum() * simulator.walkable.columns.cell_m**2


def is_walkable_at(simulator, x, z, y=0.0) -> bool:
    """Whether the agent can be reset there without being moved."""
    snapped = simulator.snap((x, y, z))
    return snapped is not None and np.hypot(snapped[0] - x, snapped[2] - z) < 1e-6


@pytest.mark.parametrize("cell_m", [0.1, 0.05])
def test_an_empty_room_is_walkable_up_to_the_radius(tmp_path, cell_m):
    simulator = load(SceneBuilder().room(0, 0, 5, 4), tmp_path, cell_m=cell_m)
    # A cell counts by its centre, so the area is off by at most half a cell along the border.
    expected = (5 - 2 * RADIUS) * (4 - 2 * RADIUS)
    assert abs(area_m2(simulator) - expected) < 0.5 * cell_m * 18
    for x, z, fits in (
        (RADIUS + 0.005, 2, True),
        (RADIUS - 0.005, 2, False),
        (5 - RADIUS - 0.005, 3.1, True),
        (5 - RADIUS + 0.005, 3.1, False),
        (1.33, RADIUS + 0.005, True),
        (1.33, RADIUS - 0.005, False),
    ):
        assert is_walkable_at(simulator, x, z) == fits, (x, z)


def test_clearance_is_the_distance_to_the_nearest_wall(tmp_path):
    simulator = load(SceneBuilder().room(0, 0, 5, 4).box((2, 0, 1.5), (3, 1, 2.5)), tmp_path)
    walkable = simulator.walkable
    x, z = walkable.columns.x_m, walkable.columns.z_m
    inside = (x > 0) & (x < 5) & (z > 0) & (z < 4)
    inside &= ~((x > 2) & (x < 3) & (z > 1.5) & (z < 2.5))
    to_walls = np.minimum.reduce([x, 5 - x, z, 4 - z])
    to_box = np.hypot(np.maximum(np.abs(x - 2.5) - 0.5, 0), np.maximum(np.abs(z - 2) - 0.5, 0))
    truth = np.minimum(np.minimum(to_walls, to_box), RADIUS + 0.35)
    error = (walkable.clearance_m - truth)[inside]
    # Faces are found exactly; a corner may be taken up to half a cell too far out.
    assert error.max() < 1e-3
    assert error.min() > -0.05


def test_a_wall_without_thickness_separates(tmp_path):
    room = SceneBuilder().room(0, 0, 6, 4)
    room.quad([[3.03, 0, 0], [3.03, 0, 4], [3.03, 2.5, 4], [3.03, 2.5, 0]])
    simulator = load(room, tmp_path)
    assert np.isinf(simulator.geodesic_distance((1, 0, 2), [(5, 0, 2)]))
    assert is_walkable_at(simulator, 3.03 - RADIUS - 0.005, 2)
    assert not is_walkable_at(simulator, 3.03 - RADIUS + 0.005, 2)
    assert is_walkable_at(simulator, 3.03 + RADIUS + 0.005, 2)
    assert not is_walkable_at(simulator, 3.03 + RADIUS - 0.005, 2)


@pytest.mark.parametrize(("gap", "passes"), [(0.9, True), (0.5, True), (0.3, False)])
def test_a_door_lets_through_what_fits(tmp_path, gap, passes):
    room = SceneBuilder().room(0, 0, 6, 4)
    room.box((3, 0, 0), (3.1, 2.5, 2 - gap / 2)).box((3, 0, 2 + gap / 2), (3.1, 2.5, 4))
    room.box((3, 2.0, 0), (3.1, 2.5, 4))  # the lintel
    simulator = load(room, tmp_path)
    assert np.isfinite(simulator.geodesic_distance((1, 0, 2), [(5, 0, 2)])) == passes


@pytest.mark.parametrize(("lintel", "passes"), [(1.7, True), (1.4, False)])
def test_a_low_lintel_stops_a_tall_agent(tmp_path, lintel, passes):
    room = SceneBuilder().room(0, 0, 6, 4).box((3, lintel, 0), (3.4, 2.5, 4))
    simulator = load(room, tmp_path)
    assert np.isfinite(simulator.geodesic_distance((1, 0, 2), [(5, 0, 2)])) == passes


def test_tables_cabinets_and_chairs_are_no_floor(tmp_path):
    room = SceneBuilder().room(0, 0, 6, 5)
    room.box((1, 0.7, 1), (2.6, 0.75, 2))  # a table top without legs
    room.box((3.5, 0, 1), (5, 2.2, 2.6))  # a closed cabinet, tall enough to stand in
    simulator = load(room, tmp_path)
    assert not is_walkable_at(simulator, 1.8, 1.5)  # under it
    assert not is_walkable_at(simulator, 1.8, 1.5, y=0.75)  # on it
    assert not is_walkable_at(simulator, 4.2, 1.8)  # inside
    assert not is_walkable_at(simulator, 4.2, 1.8, y=2.2)  # on top
    assert simulator.walkable.island.max() == 0


def test_a_flat_rug_and_a_low_threshold_are_walked_over(tmp_path):
    room = SceneBuilder().room(0, 0, 6, 4).box((1, 0, 1), (2, 0.015, 3))
    room.box((3, 0, 0), (3.1, 0.2, 4))
    simulator = load(room, tmp_path)
    assert is_walkable_at(simulator, 1.5, 2)
    assert simulator.snap((1.5, 0, 2))[1] == pytest.approx(0.015, abs=1e-5)
    assert np.isfinite(simulator.geodesic_distance((0.5, 0, 2), [(5, 0, 2)]))


def test_the_roof_is_not_a_floor(tmp_path):
    house = SceneBuilder().room(0, 0, 5, 4).box((-0.1, 2.5, -0.1), (5.1, 2.6, 4.1))
    simulator = load(house, tmp_path)
    assert simulator.snap((2, 2.6, 2)) is None
    rng = np.random.default_rng(0)
    assert all(simulator.random_point(rng)[1] < 0.1 for _ in range(50))


def test_two_floors_are_joined_by_stairs(tmp_path):
    simulator = load(two_floors_with_stairs(), tmp_path)
    assert is_walkable_at(simulator, 2, 3)
    assert is_walkable_at(simulator, 10, 3, y=0)
    assert is_walkable_at(simulator, 10, 3, y=2.8)
    assert simulator.snap((5.1, 1.4, 0.6))[1] == pytest.approx(1.4, abs=1e-4)  # the 7th step
    assert np.isfinite(simulator.geodesic_distance((10, 0, 3), [(10, 2.8, 3)]))
    heights = np.array([simulator.random_point(np.random.default_rng(k))[1] for k in range(300)])
    assert 0.35 < (heights < 0.1).mean() < 0.75
    assert 0.2 < (heights > 2.7).mean() < 0.6


def test_stairs_too_high_for_the_agent_do_not_join(tmp_path):
    simulator = load(two_floors_with_stairs(), tmp_path, max_climb_m=0.15)
    assert np.isinf(simulator.geodesic_distance((10, 0, 3), [(10, 2.8, 3)]))


def test_a_ramp_is_walked_up_to_the_slope_limit(tmp_path):
    for degrees, passes in ((30, True), (55, False)):
        room = SceneBuilder().room(0, 0, 4, 3)
        rise = 4 * np.tan(np.radians(degrees))
        room.quad([[4, 0, 0], [4, 0, 3], [8, rise, 3], [8, rise, 0]])
        scene = SceneBuilder().box((0, -0.1, 0), (4, 0, 3))
        scene.quad([[4, 0, 0], [4, 0, 3], [8, rise, 3], [8, rise, 0]])
        simulator = load(scene, tmp_path)
        middle = (6, rise / 2, 1.5)
        assert (simulator.snap(middle) is not None) == passes
        if passes:
            assert simulator.snap(middle)[1] == pytest.approx(rise / 2, abs=1e-3)
            distance = simulator.geodesic_distance((2, 0, 1.5), [middle])
            assert distance == pytest.approx(2 + 2 / np.cos(np.radians(degrees)), rel=0.01)


def test_a_grid_too_coarse_for_the_agent_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"cell_m 0\.3.*0\.24"):
        load(SceneBuilder().room(0, 0, 5, 4), tmp_path, cell_m=0.3)


def test_a_scene_without_floor_is_refused(tmp_path):
    wall = SceneBuilder().quad([[0, 0, 0], [5, 0, 0], [5, 3, 0], [0, 3, 0]])
    with pytest.raises(UserError, match=r"scene\.glb.*up axis"):
        load(wall, tmp_path)


def test_a_scene_in_centimetres_or_too_tight_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"scene\.glb.*metres"):
        load(SceneBuilder().room(0, 0, 0.3, 0.3), tmp_path)
