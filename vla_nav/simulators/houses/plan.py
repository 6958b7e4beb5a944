"""Floor plans: rooms along both sides of a corridor, one room at its end, stairs between floors.

Drawn in plan coordinates (u along the corridor, v across), then mirrored and turned into the
world's (x, z) at random. Rectangles are the rooms' insides; walls fill the gaps between them.

    +---------+--------+-----------+---------+
    | kitchen | office | bedroom   |         |     u ->
    +---- ----+--- ----+---- ------+ living  |     v
      corridor                       room    |     |
    +---- ---+----- ------+-- -----+         |     v
    | stairs | library    | bath   |         |
    +--------+------------+--------+---------+

A floor stands `STOREY_M` above the one below; every floor has the same corridor and stairs, its
other rooms are drawn anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from vla_nav.simulators.houses.palette import ROOM_SCHEMES

WALL_M = 0.15
CEILING_M = 2.6
STOREY_M = 2.8
DOOR_HEIGHT_M = 2.1

FLIGHT_M = 1.1  # width of one flight of stairs
NUM_RISERS = 8  # of each of the two flights: 16 x 0.175 m = STOREY_M
TREAD_M = 0.28
_FOOT_M = 0.3  # level ground between the corridor's wall and the first riser
_LANDING_M = 1.1
_STAIRS_WIDTH_M = 2 * FLIGHT_M + 0.1
_STAIRS_DEPTH_M = _FOOT_M + (NUM_RISERS - 1) * TREAD_M + _LANDING_M


@dataclass(frozen=True, slots=True)
class Rect:
    """An axis-aligned rectangle on the floor, metres."""

    x0: float
    z0: float
    x1: float
    z1: float

    @property
    def centre(self) -> tuple[float, float]:
        """Its middle (x, z)."""
        return (self.x0 + self.x1) / 2, (self.z0 + self.z1) / 2

    @property
    def area(self) -> float:
        """Square metres."""
        return (self.x1 - self.x0) * (self.z1 - self.z0)

    def grown(self, margin_m: float) -> Rect:
        """Moved outward on every side."""
        return Rect(self.x0 - margin_m, self.z0 - margin_m, self.x1 + margin_m, self.z1 + margin_m)

    def overlaps(self, other: Rect) -> bool:
        """Whether the insides meet."""
        return (
            self.x0 < other.x1 and other.x0 < self.x1 and self.z0 < other.z1 and other.z0 < self.z1
        )

    def contains(self, x: float, z: float) -> bool:
        """Whether a point lies inside or on the edge."""
        return self.x0 <= x <= self.x1 and self.z0 <= z <= self.z1


@dataclass(frozen=True, slots=True)
class Room:
    """A room, a corridor (kind `corridor`) or a stairwell (kind `stairs`) of one floor."""

    name: str
    kind: str
    floor: int
    rect: Rect


@dataclass(frozen=True, slots=True)
class Door:
    """An opening of `width_m` in the wall between two rooms; the wall runs along x or along z."""

    name: str
    rooms: tuple[str, str]
    floor: int
    centre: tuple[float, float]
    is_along_x: bool
    width_m: float


@dataclass(frozen=True, slots=True)
class Wall:
    """A straight wall of `WALL_M`: the rooms on its side of smaller and of larger coordinate
    (None outside) and its doors, in order along it."""

    name: str
    floor: int
    rect: Rect
    is_along_x: bool
    rooms: tuple[str | None, str | None]
    doors: tuple[Door, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """A solid of the stairs: a rectangle, its height range and which of the two it is."""

    rect: Rect
    low_m: float
    high_m: float
    is_wall: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """All floors of a house."""

    num_floors: int
    rooms: tuple[Room, ...]
    doors: tuple[Door, ...]
    walls: tuple[Wall, ...]
    steps: tuple[Step, ...]

    def room(self, name: str) -> Room:
        """The room of that name."""
        return next(room for room in self.rooms if room.name == name)

    def doors_of(self, room_name: str) -> tuple[Door, ...]:
        """The doors of a room."""
        return tuple(door for door in self.doors if room_name in door.rooms)

    def room_at(self, x: float, z: float, floor: int) -> Room | None:
        """The room of a floor at a point; a doorway belongs to the room that is nearer."""
        for room in self.rooms:
            if room.floor == floor and room.rect.grown(WALL_M / 2).contains(x, z):
                return room
        return None


def draw_plan(
    rng: np.random.Generator, *, num_rooms: tuple[int, int], num_floors: int, side_door_share: float
) -> Plan:
    """A random plan with `num_rooms` (least, most) rooms a floor, corridor and stairs not counted.

    `side_door_share` of neighbouring rooms on one side of the corridor get a door between them.
    """
    counts = [int(rng.integers(num_rooms[0], num_rooms[1] + 1)) for _ in range(num_floors)]
    has_stairs = num_floors > 1
    longest_side = max(-(-count // 2) for count in counts)
    length = max(3, longest_side) * float(rng.uniform(3.4, 4.0)) + has_stairs * 1.2
    breadth = float(rng.uniform(1.7, 2.1))
    depths = (float(rng.uniform(3.6, 4.6)), float(rng.uniform(3.6, 4.6)))
    end_depth = float(rng.uniform(3.4, 4.2))

    rooms: list[Room] = []
    doors: list[Door] = []
    kinds_left: list[str] = []
    for floor in range(num_floors):
        kinds: list[str] = []
        while len(kinds) < counts[floor]:
            if not kinds_left:
                kinds_left = [str(kind) for kind in rng.permutation(sorted(ROOM_SCHEMES))]
            kind = next((kind for kind in kinds_left if kind not in kinds), None)
            if kind is None:
                kinds_left = []
                continue
            kinds_left.remove(kind)
            kinds.append(kind)
        floor_rooms, floor_doors = _draw_floor(
            rng,
            floor=floor,
            kinds=kinds,
            length=length,
            breadth=breadth,
            depths=depths,
            end_depth=end_depth,
            has_stairs=has_stairs,
            side_door_share=side_door_share,
        )
        rooms += floor_rooms
        doors += floor_doors
    steps = _stairs(breadth, num_floors)

    is_mirrored, num_quarters = bool(rng.integers(2)), int(rng.integers(4))
    to_world = _plan_to_world(is_mirrored, num_quarters)
    rooms = [replace(room, rect=_mapped(room.rect, to_world)) for room in rooms]
    doors = [
        replace(
            door,
            centre=to_world(*door.centre),
            is_along_x=door.is_along_x == (num_quarters % 2 == 0),
        )
        for door in doors
    ]
    steps = [replace(step, rect=_mapped(step.rect, to_world)) for step in steps]
    walls = [
        wall
        for floor in range(num_floors)
        for wall in _walls([room for room in rooms if room.floor == floor], doors, floor)
    ]
    return Plan(num_floors, tuple(rooms), tuple(doors), tuple(walls), tuple(steps))


def _draw_floor(
    rng: np.random.Generator,
    *,
    floor: int,
    kinds: list[str],
    length: float,
    breadth: float,
    depths: tuple[float, float],
    end_depth: float,
    has_stairs: bool,
    side_door_share: float,
) -> tuple[list[Room], list[Door]]:
    """Rooms and doors of one floor in plan coordinates."""
    prefix = f"f{floor}"
    corridor = Room(f"{prefix}_corridor", "corridor", floor, Rect(0, 0, length, breadth))
    rooms, doors = [corridor], []
    kinds = list(kinds)
    near_v, far_v = -WALL_M, breadth + WALL_M  # where the rooms of the two sides begin

    def add_door(a: Room, b: Room, centre: tuple[float, float], is_along_x: bool) -> None:
        width = FLIGHT_M - 0.1 if b.kind == "stairs" else float(rng.uniform(0.95, 1.1))
        doors.append(
            Door(f"{prefix}_door{len(doors)}", (a.name, b.name), floor, centre, is_along_x, width)
        )

    if len(kinds) >= 6 and rng.random() < 0.5:  # a room at the corridor's end, behind one side
        kind = kinds.pop()
        rect = Rect(length + WALL_M, 0, length + WALL_M + end_depth, far_v + depths[1])
        rooms.append(Room(_room_name(prefix, kind), kind, floor, rect))
        add_door(corridor, rooms[-1], (length + WALL_M / 2, breadth / 2), is_along_x=False)

    far_start = 0.0
    if has_stairs:
        far_start = _STAIRS_WIDTH_M + WALL_M
        rect = Rect(0, far_v, _STAIRS_WIDTH_M, far_v + _STAIRS_DEPTH_M)
        rooms.append(Room(f"{prefix}_stairs", "stairs", floor, rect))
        flights = {0: [0.5], 1: [1.5]}  # which flights open to this floor, in flight widths
        for place in flights[floor]:
            u = place * FLIGHT_M + (0.1 if place > 1 else 0.0)
            add_door(corridor, rooms[-1], (u, breadth + WALL_M / 2), is_along_x=True)

    num_near = -(-len(kinds) // 2) if has_stairs or rng.random() < 0.5 else len(kinds) // 2
    for is_far, num_side in ((False, num_near), (True, len(kinds) - num_near)):
        start = far_start if is_far else 0.0
        edges = _split(rng, start, length, num_side)
        side: list[Room] = []
        for u0, u1 in edges:
            kind = kinds.pop()
            v0, v1 = (far_v, far_v + depths[1]) if is_far else (near_v - depths[0], near_v)
            side.append(Room(_room_name(prefix, kind), kind, floor, Rect(u0, v0, u1, v1)))
            door_v = breadth + WALL_M / 2 if is_far else -WALL_M / 2
            door_u = float(rng.uniform(u0 + 0.8, u1 - 0.8))
            add_door(corridor, side[-1], (door_u, door_v), is_along_x=True)
        for a, b in pairwise(side):
            if rng.random() < side_door_share:
                v = float(rng.uniform(a.rect.z0 + 0.9, a.rect.z1 - 0.9))
                add_door(a, b, ((a.rect.x1 + b.rect.x0) / 2, v), is_along_x=False)
        rooms += side
    return rooms, doors


def _split(
    rng: np.random.Generator, start: float, end: float, count: int
) -> list[tuple[float, float]]:
    """`count` intervals of similar width with walls between them."""
    weights = rng.uniform(0.82, 1.18, count)
    widths = weights / weights.sum() * (end - start - (count - 1) * WALL_M)
    edges, u = [], start
    for width in widths:
        edges.append((u, u + float(width)))
        u += float(width) + WALL_M
    return edges


def _stairs(breadth: float, num_floors: int) -> list[Step]:
    """Solids of the half-turn stairs: up along one flight, a landing, back along the other."""
    if num_floors == 1:
        return []
    v0 = breadth + WALL_M
    first, rise = v0 + _FOOT_M, STOREY_M / (2 * NUM_RISERS)
    landing = first + (NUM_RISERS - 1) * TREAD_M
    second_u = FLIGHT_M + 0.1
    steps = [
        Step(Rect(FLIGHT_M, v0, second_u, landing), 0.0, STOREY_M + CEILING_M, is_wall=True),
        Step(
            Rect(0, landing, _STAIRS_WIDTH_M, landing + _LANDING_M),
            0.0,
            NUM_RISERS * rise,
            is_wall=False,
        ),
        Step(
            Rect(second_u, v0 - WALL_M / 2, _STAIRS_WIDTH_M, first), STOREY_M - 0.1, STOREY_M, False
        ),
    ]
    for i in range(NUM_RISERS - 1):
        low, high = first + i * TREAD_M, first + (i + 1) * TREAD_M
        up = Rect(0, low, FLIGHT_M, high)
        steps.append(Step(up, 0.0, (i + 1) * rise, is_wall=False))
        back = Rect(second_u, low, _STAIRS_WIDTH_M, high)
        steps.append(Step(back, 0.0, STOREY_M - (i + 1) * rise, is_wall=False))
    return steps


def _walls(rooms: list[Room], doors: list[Door], floor: int) -> list[Wall]:
    """The walls around the rooms of one floor, each between at most one room on either side."""
    walls: list[Wall] = []
    for room in rooms:
        for is_along_x in (True, False):
            for is_high in (False, True):
                walls += _walls_of_side(room, rooms, is_along_x, is_high)
    kept: list[Wall] = []
    for wall in walls:
        x, z = wall.rect.centre
        inside = tuple(
            door
            for door in sorted(doors, key=lambda door: door.centre)
            if door.floor == floor
            and door.is_along_x == wall.is_along_x
            and wall.rect.contains(*door.centre)
        )
        if any(other.rect.contains(x, z) for other in kept):
            continue
        kept.append(replace(wall, name=f"f{floor}_wall{len(kept)}", doors=inside))
    for room in rooms:  # posts where two outer walls meet
        r = room.rect
        for x in (r.x0 - WALL_M, r.x1):
            for z in (r.z0 - WALL_M, r.z1):
                post = Rect(x, z, x + WALL_M, z + WALL_M)
                if not any(other.rect.contains(*post.centre) for other in kept):
                    kept.append(
                        Wall(f"f{floor}_wall{len(kept)}", floor, post, True, (None, None), ())
                    )
    return kept


def _walls_of_side(room: Room, rooms: list[Room], is_along_x: bool, is_high: bool) -> list[Wall]:
    """The walls along one side of a room, cut where the neighbour behind them changes."""
    r = room.rect
    span = (r.x0, r.x1) if is_along_x else (r.z0, r.z1)
    edges = (r.z0, r.z1) if is_along_x else (r.x0, r.x1)
    low = edges[1] if is_high else edges[0] - WALL_M
    neighbours = []
    for other in rooms:
        o = other.rect
        other_span = (o.x0, o.x1) if is_along_x else (o.z0, o.z1)
        other_edges = (o.z0, o.z1) if is_along_x else (o.x0, o.x1)
        facing = other_edges[0] if is_high else other_edges[1]
        begin, end = max(span[0], other_span[0]), min(span[1], other_span[1])
        is_adjacent = abs(facing - (low + WALL_M if is_high else low)) < 1e-6
        if is_adjacent and end - begin > 1e-6 and other is not room:
            neighbours.append((begin, end, other.name))
    pieces: list[tuple[float, float, str | None]] = []
    at = span[0]
    for begin, end, name in sorted(neighbours):
        if begin - at > 1e-6:
            pieces.append((at, begin, None))
        pieces.append((begin, end, name))
        at = end
    if span[1] - at > 1e-6:
        pieces.append((at, span[1], None))
    walls = []
    for begin, end, name in pieces:
        rect = (
            Rect(begin, low, end, low + WALL_M)
            if is_along_x
            else Rect(low, begin, low + WALL_M, end)
        )
        sides = (room.name, name) if is_high else (name, room.name)
        walls.append(Wall("", room.floor, rect, is_along_x, sides, ()))
    return walls


def _room_name(prefix: str, kind: str) -> str:
    return f"{prefix}_{kind.replace(' ', '_')}"


def _plan_to_world(
    is_mirrored: bool, num_quarters: int
) -> Callable[[float, float], tuple[float, float]]:
    def to_world(u: float, v: float) -> tuple[float, float]:
        x, z = (-u if is_mirrored else u), v
        for _ in range(num_quarters):
            x, z = z, -x
        return x, z

    return to_world


def _mapped(rect: Rect, to_world: Callable[[float, float], tuple[float, float]]) -> Rect:
    (xa, za), (xb, zb) = to_world(rect.x0, rect.z0), to_world(rect.x1, rect.z1)
    return Rect(min(xa, xb), min(za, zb), max(xa, xb), max(za, zb))
