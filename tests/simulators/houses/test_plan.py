"""Floor plans: rooms apart, walls around them, doors where they belong."""

import numpy as np
import pytest

from vla_nav.simulators.houses.plan import STOREY_M, WALL_M
from vla_nav.simulators.houses.plan_drawing import draw_plan

SEEDS = range(25)


def plan_of(seed, num_floors=1, side_door_share=0.5):
    return draw_plan(
        np.random.default_rng(seed),
        num_rooms=(5, 8),
        num_floors=num_floors,
        side_door_share=side_door_share,
    )


@pytest.mark.parametrize("num_floors", [1, 2])
def test_rooms_lie_a_wall_apart(num_floors):
    for seed in SEEDS:
        plan = plan_of(seed, num_floors)
        for i, room in enumerate(plan.rooms):
            for other in plan.rooms[:i]:
                if room.floor == other.floor:
                    gap = WALL_M / 2 - 1e-6
                    assert not room.rect.grown(gap).overlaps(other.rect.grown(gap))


def test_every_floor_has_five_to_eight_rooms_of_different_kinds_and_a_corridor():
    counts = set()
    for seed in SEEDS:
        plan = plan_of(seed, 2)
        for floor in range(2):
            kinds = [room.kind for room in plan.rooms if room.floor == floor]
            assert len(kinds) == len(set(kinds))
            assert {"corridor", "stairs"} <= set(kinds)
            counts.add(len(kinds) - 2)
    assert counts == {5, 6, 7, 8}


def test_rooms_are_wide_enough_to_live_in():
    for seed in SEEDS:
        for room in plan_of(seed, 2).rooms:
            width, depth = room.rect.x1 - room.rect.x0, room.rect.z1 - room.rect.z0
            assert min(width, depth) >= (1.7 if room.kind == "corridor" else 2.2)


@pytest.mark.parametrize("num_floors", [1, 2])
def test_doors_stand_in_exactly_one_wall_between_their_rooms(num_floors):
    for seed in SEEDS:
        plan = plan_of(seed, num_floors)
        for door in plan.doors:
            walls = [wall for wall in plan.walls if door in wall.doors]
            assert len(walls) == 1
            assert set(walls[0].rooms) == set(door.rooms)
            (x, z), half = door.centre, door.width_m / 2
            rect = walls[0].rect
            low, high = (rect.x0, rect.x1) if door.is_along_x else (rect.z0, rect.z1)
            middle = x if door.is_along_x else z
            assert low <= middle - half
            assert middle + half <= high


@pytest.mark.parametrize("num_floors", [1, 2])
def test_a_ray_out_of_a_room_meets_a_wall(num_floors):
    """Just outside every edge of every room, at any place along it, lies a wall."""
    rng = np.random.default_rng(0)
    for seed in SEEDS:
        plan = plan_of(seed, num_floors)
        for room in plan.rooms:
            r = room.rect
            walls = [wall.rect for wall in plan.walls if wall.floor == room.floor]
            for share in rng.uniform(0.001, 0.999, 4):
                x, z = r.x0 + share * (r.x1 - r.x0), r.z0 + share * (r.z1 - r.z0)
                out = WALL_M / 2
                for place in ((x, r.z0 - out), (x, r.z1 + out), (r.x0 - out, z), (r.x1 + out, z)):
                    assert sum(wall.contains(*place) for wall in walls) == 1


def test_every_room_is_connected_to_its_corridor_by_doors():
    for seed in SEEDS:
        plan = plan_of(seed, 2)
        reached, frontier = {"f0_corridor"}, ["f0_corridor"]
        links = [set(door.rooms) for door in plan.doors] + [{"f0_stairs", "f1_stairs"}]
        while frontier:
            here = frontier.pop()
            for link in links:
                for name in link - reached if here in link else ():
                    reached.add(name)
                    frontier.append(name)
        assert reached == {room.name for room in plan.rooms}


def test_floors_share_corridor_and_stairwell():
    for seed in SEEDS:
        plan = plan_of(seed, 2)
        for kind in ("corridor", "stairs"):
            assert plan.room(f"f0_{kind}").rect == plan.room(f"f1_{kind}").rect
        assert max(step.high_m for step in plan.steps if not step.is_wall) == pytest.approx(
            STOREY_M
        )


def test_risers_can_be_climbed():
    heights = sorted({step.high_m for step in plan_of(0, 2).steps if not step.is_wall} | {0.0})
    assert max(np.diff(heights)) <= 0.2


def test_orientations_and_mirrorings_all_occur():
    shapes = set()
    for seed in range(60):
        plan = plan_of(seed, 2)
        corridor, stairs = plan.room("f0_corridor").rect, plan.room("f0_stairs").rect
        is_along_x = corridor.x1 - corridor.x0 > corridor.z1 - corridor.z0
        shapes.add(
            (
                is_along_x,
                stairs.centre[0] > corridor.centre[0],
                stairs.centre[1] > corridor.centre[1],
            )
        )
    assert len(shapes) == 8
