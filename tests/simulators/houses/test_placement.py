"""Furniture: inside its room, apart, clear of doors, of the kinds that the room may have."""

import math

import numpy as np

from vla_nav.simulators.houses.furniture import FURNITURE, ROOM_FURNITURE
from vla_nav.simulators.houses.house import generate_house
from vla_nav.simulators.houses.palette import OBJECT_COLOURS, ROOM_SCHEMES
from vla_nav.simulators.houses.placement import distance_to
from vla_nav.simulators.houses.plan import Rect
from vla_nav.simulators.houses.shapes import quads_of_parts

HOUSES = [generate_house(seed) for seed in range(12)]


def test_objects_stand_inside_their_rooms_and_apart():
    for house in HOUSES:
        for i, item in enumerate(house.objects):
            room = house.plan.room(item.room).rect
            assert room.x0 <= item.rect.x0 < item.rect.x1 <= room.x1
            assert room.z0 <= item.rect.z0 < item.rect.z1 <= room.z1
            assert not any(item.rect.overlaps(other.rect) for other in house.objects[:i])


def test_doors_are_clear_on_both_sides():
    for house in HOUSES:
        for door in house.plan.doors:
            (x, z), half = door.centre, door.width_m / 2
            passage = (
                Rect(x - half, z - 1, x + half, z + 1)
                if door.is_along_x
                else Rect(x - 1, z - half, x + 1, z + half)
            )
            assert not any(passage.overlaps(item.rect) for item in house.objects)


def test_kinds_and_colours_are_those_of_the_tables():
    for house in HOUSES:
        for item in house.objects:
            always, extra = ROOM_FURNITURE[house.plan.room(item.room).kind]
            assert item.kind in always + extra
            assert item.colour in OBJECT_COLOURS


def test_no_two_objects_of_a_room_share_kind_and_colour():
    for house in HOUSES:
        named = [(item.room, item.kind, item.colour) for item in house.objects]
        assert len(named) == len(set(named))


def test_kinds_and_colours_recur_between_rooms():
    """So that an instruction's object is ambiguous without its room."""
    for house in HOUSES:
        shared = sum(
            any(
                other is not item and (other.kind == item.kind or other.colour == item.colour)
                for other in house.objects
            )
            for item in house.objects
        )
        assert shared >= 0.9 * len(house.objects)


def test_every_kind_fits_its_box_and_shows_its_colour():
    colour = (201, 33, 44)
    for kind, spec in FURNITURE.items():
        width, height, depth = spec.width_m[1], spec.height_m[1], spec.depth_m[1]
        corners, colours, _ = quads_of_parts(spec.build(width, height, depth, colour))
        points = corners.reshape(-1, 3)
        assert (np.abs(points[:, 0]) <= width / 2 + 0.06).all(), kind
        assert (np.abs(points[:, 2]) <= depth / 2 + 0.06).all(), kind
        assert points[:, 1].min() >= -1e-9, kind
        assert (colours == colour).all(1).any(), kind


def test_every_room_kind_has_furniture_and_every_kind_of_furniture_a_room():
    assert set(ROOM_SCHEMES) | {"corridor"} == set(ROOM_FURNITURE)
    used = {kind for always, extra in ROOM_FURNITURE.values() for kind in always + extra}
    assert used == set(FURNITURE)


def test_the_place_beside_an_object_lies_before_its_front():
    for house in HOUSES:
        for item in house.objects:
            x, _, z = item.beside
            away = distance_to(item.rect, x, z)
            assert math.isclose(away, 0.45, abs_tol=1e-6)


def test_distance_to_a_rectangle():
    rect = Rect(0, 0, 2, 1)
    assert distance_to(rect, 1, 0.5) == 0
    assert distance_to(rect, 5, 5) == 5
