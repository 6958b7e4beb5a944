"""What routes are said to do, on a plan drawn by hand:

     x: 0    4    8    12
z -4  +----+----+----+        world: -z is up here (yaw 0), +x to the right
      | A  | B  | C  |        doors A, B, C at x = 2, 6, 10 in the wall at z = 0
z  0  +----+----+----+
      |   corridor   |        from z = 0 to 2
z  2  +----+----+----+
      | D       | E  |        doors D, E at x = 2, 10 in the wall at z = 2
z  6  +---------+----+
"""

import math

import numpy as np
import pytest

from vla_nav.simulators.houses.description import describe_route, turn_word
from vla_nav.simulators.houses.instructions import phrase_route
from vla_nav.simulators.houses.placement import PlacedObject
from vla_nav.simulators.houses.plan import Door, Plan, Rect, Room

ROOMS = (
    Room("a", "kitchen", 0, Rect(0, -4, 3.925, -0.075)),
    Room("b", "bedroom", 0, Rect(4.075, -4, 7.925, -0.075)),
    Room("c", "office", 0, Rect(8.075, -4, 12, -0.075)),
    Room("h", "corridor", 0, Rect(0, 0.075, 12, 1.925)),
    Room("d", "library", 0, Rect(0, 2.075, 7.925, 6)),
    Room("e", "bathroom", 0, Rect(8.075, 2.075, 12, 6)),
)
DOORS = (
    Door("door_a", ("h", "a"), 0, (2, 0), True, 1.0),
    Door("door_b", ("h", "b"), 0, (6, 0), True, 1.0),
    Door("door_c", ("h", "c"), 0, (10, 0), True, 1.0),
    Door("door_d", ("h", "d"), 0, (2, 2), True, 1.0),
    Door("door_e", ("h", "e"), 0, (10, 2), True, 1.0),
    Door("door_ab", ("a", "b"), 0, (4, -2), False, 1.0),
)
PLAN = Plan(1, ROOMS, DOORS, (), ())


def thing(kind, colour, room, x, z):
    rect = Rect(x - 0.3, z - 0.3, x + 0.3, z + 0.3)
    return PlacedObject(
        f"{room}_{kind}", kind, colour, room, 0, (x, 0, z), (0.6, 1, 0.6), 0, rect, (x, 0, z + 0.7)
    )


SOFA = thing("sofa", "red", "c", 11.6, -3)
PLANT = thing("plant", "green", "h", 4, 0.5)
BED = thing("bed", "blue", "b", 4.5, -3)
TUB = thing("bathtub", "white", "e", 10, 5.5)
OBJECTS = (SOFA, PLANT, BED, TUB)


def described(points, goal, yaw_deg=0.0):
    path = np.array([(x, 0.0, z) for x, z in points])
    return describe_route(PLAN, OBJECTS, path, start_yaw_rad=math.radians(yaw_deg), goal=goal)


A_TO_C = [(2, -3), (2, 1), (10, 1), (10, -2.5)]


def test_the_way_from_one_room_along_the_corridor_into_another():
    route = described(A_TO_C, SOFA)  # faces -z, has to go +z
    assert [leg.room.name for leg in route.legs] == ["a", "h", "c"]
    first, corridor, _ = route.legs
    assert first.turn == "around"
    assert corridor.turn == "left"  # coming out towards +z, +x is on the left
    assert corridor.exit_turn == "left"  # walking +x, -z is on the left
    assert corridor.exit_ordinal == 2  # behind the door of b
    assert not corridor.is_across
    assert corridor.landmarks == (PLANT,)
    assert route.goal_side == "right"  # entering towards -z, +x is on the right


@pytest.mark.parametrize(
    ("yaw_deg", "word"),
    [
        (180, "straight"),
        (150, "slight left"),
        (-150, "slight right"),
        (90, "left"),
        (-90, "right"),
        (0, "around"),
    ],
)
def test_the_first_turn_is_relative_to_the_start_heading(yaw_deg, word):
    assert described(A_TO_C, SOFA, yaw_deg).legs[0].turn == word


def test_walking_back_swaps_left_and_right():
    route = described([(10, -2.5), (10, 1), (6, 1), (6, -2)], BED)
    corridor = route.legs[1]
    assert (corridor.turn, corridor.exit_turn, corridor.exit_ordinal) == ("right", "right", 1)
    assert route.goal_side == "left"


def test_doors_are_counted_on_the_side_of_the_exit_only():
    route = described([(2, -3), (2, 1), (10, 1), (10, 3)], TUB)
    corridor = route.legs[1]
    assert (corridor.turn, corridor.exit_turn, corridor.exit_ordinal) == ("left", "right", 1)
    assert route.goal_side == "straight"


def test_facing_doors_are_across():
    route = described([(10, -2.5), (10, 1), (10, 3)], TUB)
    assert route.legs[1].is_across


def test_rooms_passed_through_are_legs():
    route = described([(2, -3), (2, -2), (6, -2), (6, 1), (10, 1), (10, -2.5)], SOFA)
    assert [leg.room.name for leg in route.legs] == ["a", "b", "h", "c"]


def test_a_path_through_a_wall_has_no_description():
    assert described([(6, -3), (10, -3)], SOFA) is None
    assert described([(2, -3), (2, 20)], SOFA) is None


def test_a_path_that_ends_in_another_room_has_no_description():
    assert described(A_TO_C, TUB) is None


@pytest.mark.parametrize(
    ("degrees", "word"),
    [
        (0, "straight"),
        (19, "straight"),
        (-19, "straight"),
        (40, "slight left"),
        (-90, "right"),
        (179, "around"),
        (-181, "around"),
        (360 + 90, "left"),
    ],
)
def test_turn_words(degrees, word):
    assert turn_word(math.radians(degrees)) == word


def test_phrasings_differ_and_all_tell_the_way():
    route = described(A_TO_C, SOFA, 150)
    texts = phrase_route(route, np.random.default_rng(0), num_phrasings=12)
    assert len(set(texts)) == 12
    for text in texts:
        assert text.startswith("Turn slightly left and")
        assert "the kitchen" in text
        assert "second door on" in text
        assert text.index("left", 15) < text.index("the office") or "the office, the" in text
        assert "the red sofa on" in text
        assert text.endswith("right.")
        assert 15 <= len(text.split()) <= 36
    assert any("the green plant" in text for text in texts)


def test_a_mirrored_route_swaps_left_and_right_in_its_words():
    """Walking A -> C and C -> A: the same doors, the other hands."""
    back = described([(10, -2.5), (10, 1), (2, 1), (2, -3)], thing("lamp", "pink", "a", 0.5, -3.5))
    for text in phrase_route(described(A_TO_C, SOFA), np.random.default_rng(1), num_phrasings=4):
        assert "door on your left" in text or "door on the left" in text
    for text in phrase_route(back, np.random.default_rng(1), num_phrasings=4):
        assert "second door on your right" in text or "second door on the right" in text
