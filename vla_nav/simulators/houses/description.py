"""What happens on a route, in words' terms: rooms, doors, turns, landmarks, the goal's side.

A path through a plan falls into legs, one per room that it visits, joined by doors:

    start room --door--> corridor --door--> ... --door--> goal room

Turns compare headings: the start heading with the first metre of the path, the direction through
the door with the direction along the corridor, and so on. Doors passed are counted on each side of
the way, so "the second door on the left" is what a walker sees.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from vla_nav.simulators.houses.placement import PlacedObject
from vla_nav.simulators.houses.plan import STOREY_M, WALL_M, Door, Plan, Room

_SAMPLE_M = 0.1
_LOOK_AHEAD_M = 1.0  # the start turn is towards this point of the path
_LANDMARK_M = 1.2  # an object this near to the path is passed
_ACROSS_M = 0.9  # doors nearer than this along the corridor face each other
_STRAIGHT_DEG, _SLIGHT_DEG, _AROUND_DEG = 20.0, 60.0, 135.0


@dataclass(frozen=True, slots=True)
class Leg:
    """One room of a route.

    turn: on entering, `straight`, `left`, `right` (with `slight ` before it) or `around`; for the
        first leg, from the start heading.
    exit_turn: the side on which the leg's exit lies when walking along it.
    exit_ordinal: the exit is so many doors along that side, from 1; 0 where that says nothing.
    is_across: the way in and the way out face each other.
    climb: +1 up the stairs, -1 down, 0 level.
    landmarks: objects passed, in order.
    """

    room: Room
    turn: str
    exit_turn: str
    exit_ordinal: int
    is_across: bool
    climb: int
    landmarks: tuple[PlacedObject, ...]


@dataclass(frozen=True, slots=True)
class RouteDescription:
    """Legs from the start room to the goal room, the goal object, its side seen from the door."""

    legs: tuple[Leg, ...]
    goal: PlacedObject
    goal_side: str

    @property
    def living_rooms(self) -> tuple[str, ...]:
        """Names of the rooms visited that are neither corridor nor stairs."""
        rooms = [leg.room for leg in self.legs]
        return tuple(room.name for room in rooms if room.kind not in ("corridor", "stairs"))


def describe_route(
    plan: Plan,
    objects: tuple[PlacedObject, ...],
    path: np.ndarray,
    *,
    start_yaw_rad: float,
    goal: PlacedObject,
) -> RouteDescription | None:
    """Describe a path (P, 3), metres, world; None if it does not lead through the plan's doors."""
    points = _resampled(path)
    followed = _visits_and_doors(plan, points)
    if followed is None:
        return None
    visits, doors = followed
    if visits[-1].rooms[-1].name != goal.room or not doors:
        return None

    legs = []
    for i, visit in enumerate(visits):
        entry = doors[i - 1] if i > 0 else None
        leave = doors[i] if i < len(doors) else None
        walked = points[visit.first : visit.last + 1]
        room = visit.rooms[-1]
        climb = int(np.sign(walked[-1, 1] - walked[0, 1])) if room.kind == "stairs" else 0
        turn, exit_turn, ordinal, is_across = "straight", "straight", 0, False
        if entry is None:
            ahead = points[min(len(points) - 1, round(_LOOK_AHEAD_M / _SAMPLE_M))] - points[0]
            turn = turn_word(_heading(ahead[0], ahead[2]) - start_yaw_rad)
        elif leave is not None and climb == 0:
            turn, exit_turn, ordinal, is_across = _crossing(plan, room, entry, leave)
        landmarks = ()
        if leave is not None:
            landmarks = _landmarks(room, objects, walked)
        legs.append(Leg(room, turn, exit_turn, ordinal, is_across, climb, landmarks))

    inward = _direction(doors[-1], visits[-1].rooms[-1])
    door_x, door_z = doors[-1].centre
    to_goal = _heading(goal.position[0] - door_x, goal.position[2] - door_z)
    side = turn_word(to_goal - _heading(*inward)).removeprefix("slight ")
    return RouteDescription(tuple(legs), goal, side)


def turn_word(angle_rad: float) -> str:
    """The word for a turn, counter-clockwise positive: straight, [slight ]left|right, around."""
    degrees = math.degrees(math.remainder(angle_rad, 2 * math.pi))
    size, side = abs(degrees), "left" if degrees > 0 else "right"
    if size < _STRAIGHT_DEG:
        return "straight"
    if size > _AROUND_DEG:
        return "around"
    return side if size > _SLIGHT_DEG else f"slight {side}"


def _heading(dx: float, dz: float) -> float:
    """Yaw of a direction: 0 along -z, counter-clockwise."""
    return math.atan2(-dx, -dz)


def _resampled(path: np.ndarray) -> np.ndarray:
    """Points every `_SAMPLE_M` along the path (n, 3), both ends included."""
    lengths = np.linalg.norm(np.diff(path, axis=0), axis=1)
    at = np.concatenate([[0.0], np.cumsum(lengths)])
    marks = np.linspace(0, at[-1], max(2, math.ceil(at[-1] / _SAMPLE_M) + 1))
    return np.stack([np.interp(marks, at, path[:, i]) for i in range(3)], axis=1)


class _Visit(NamedTuple):
    """A stay in one room (or in both storeys of a stairwell): its first and last point."""

    rooms: tuple[Room, ...]
    first: int
    last: int


def _visits_and_doors(plan: Plan, points: np.ndarray) -> tuple[list[_Visit], list[Door]] | None:
    """Rooms in order and the doors between them; None where the points leave the plan."""
    visits: list[_Visit] = []
    doors: list[Door] = []
    numbers = _room_numbers(plan, points)
    if numbers.min() < 0:
        return None
    last = len(points) - 1
    starts = np.flatnonzero(np.diff(numbers, prepend=-1))
    ends = np.append(starts[1:] - 1, last)
    for i, end in zip(starts.tolist(), ends.tolist(), strict=True):
        room = plan.rooms[numbers[i]]
        if not visits:
            visits.append(_Visit((room,), i, end))
            continue
        rooms, first, _ = visits[-1]
        if room.kind == rooms[-1].kind == "stairs":
            visits[-1] = _Visit((*rooms, room), first, end)
        else:
            door = _door_between(plan, rooms[-1], room, points[i])
            if door is None:
                return None
            doors.append(door)
            visits.append(_Visit((room,), i, end))
    return visits, doors


def _room_numbers(plan: Plan, points: np.ndarray) -> np.ndarray:
    """(n,) index of each point's room in `plan.rooms`, -1 outside; a doorway is halved."""
    numbers = np.full(len(points), -1)
    x, y, z = points.T
    floors = np.clip(np.round(y / STOREY_M), 0, plan.num_floors - 1)
    for number, room in enumerate(plan.rooms):
        rect = room.rect.grown(WALL_M / 2)
        is_inside = (rect.x0 <= x) & (x <= rect.x1) & (rect.z0 <= z) & (z <= rect.z1)
        numbers[is_inside & (floors == room.floor)] = number
    return numbers


def _door_between(plan: Plan, room: Room, following: Room, point: np.ndarray) -> Door | None:
    """The door from one room to the next that lies nearest to a point."""
    names = {room.name, following.name}
    shared = [door for door in plan.doors if set(door.rooms) == names]
    return min(
        shared,
        key=lambda door: math.hypot(door.centre[0] - point[0], door.centre[1] - point[2]),
        default=None,
    )


def _direction(door: Door, into: Room) -> tuple[float, float]:
    """Unit direction (x, z) through a door into a room."""
    (x, z), (room_x, room_z) = door.centre, into.rect.centre
    if door.is_along_x:
        return 0.0, math.copysign(1.0, room_z - z)
    return math.copysign(1.0, room_x - x), 0.0


def _crossing(plan: Plan, room: Room, entry: Door, leave: Door) -> tuple[str, str, int, bool]:
    """(turn on entering, side of the exit, its ordinal on that side, whether they face)."""
    inward = _direction(entry, room)
    outward = tuple(-part for part in _direction(leave, room))
    is_long_x = room.rect.x1 - room.rect.x0 > room.rect.z1 - room.rect.z0
    axis = 0 if is_long_x else 1
    along = leave.centre[axis] - entry.centre[axis]
    if abs(along) < _ACROSS_M:
        return "straight", "straight", 0, True
    walk = [0.0, 0.0]
    walk[axis] = math.copysign(1.0, along)
    turn = turn_word(_heading(walk[0], walk[1]) - _heading(*inward))
    exit_turn = turn_word(_heading(*outward) - _heading(walk[0], walk[1]))
    same_side = [
        door
        for door in plan.doors_of(room.name)
        if door.is_along_x == leave.is_along_x
        and tuple(-part for part in _direction(door, room)) == outward
        and (door.centre[axis] - entry.centre[axis]) * walk[axis] > 0.3
    ]
    same_side.sort(key=lambda door: abs(door.centre[axis] - entry.centre[axis]))
    ordinal = same_side.index(leave) + 1 if exit_turn in ("left", "right") else 0
    return turn, exit_turn, ordinal, False


def _landmarks(
    room: Room, objects: tuple[PlacedObject, ...], points: np.ndarray
) -> tuple[PlacedObject, ...]:
    """Objects of the room that the points come near to, in the order of passing."""
    passed = []
    for item in objects:
        if item.room != room.name:
            continue
        rect = item.rect
        away_x = np.maximum(np.maximum(rect.x0 - points[:, 0], points[:, 0] - rect.x1), 0)
        away_z = np.maximum(np.maximum(rect.z0 - points[:, 2], points[:, 2] - rect.z1), 0)
        distances = np.hypot(away_x, away_z)
        nearest = int(distances.argmin())
        if distances[nearest] < _LANDMARK_M and 0 < nearest < len(points) - 1:
            passed.append((nearest, item))
    return tuple(item for _, item in sorted(passed, key=lambda pair: pair[0]))
