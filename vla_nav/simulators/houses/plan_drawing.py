"""Random floor plans: rooms along both sides of a corridor, one at its end, stairs between floors.

Drawn in plan coordinates (u along the corridor, v across), then mirrored and turned into the
world's (x, z) at random.

    +---------+--------+-----------+---------+
    | kitchen | office | bedroom   |         |     u ->
    +---- ----+--- ----+---- ------+ living  |     v
      corridor                       room    |     |
    +---- ---+----- ------+-- -----+         |     v
    | stairs | library    | bath   |         |
    +--------+------------+--------+---------+

Every floor has the same corridor and stairs; its other rooms are drawn anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np

from vla_nav.simulators.houses.palette import ROOM_SCHEMES
from vla_nav.simulators.houses.plan import WALL_M, Door, Plan, Rect, Room
from vla_nav.simulators.houses.stairs import (
    FLIGHT_M,
    STAIRS_DEPTH_M,
    STAIRS_WIDTH_M,
    door_u,
    draw_stairs,
)
from vla_nav.simulators.houses.walls import walls_around


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
    steps = draw_stairs(breadth + WALL_M) if has_stairs else []

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
        for wall in walls_around([room for room in rooms if room.floor == floor], doors, floor)
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
        far_start = STAIRS_WIDTH_M + WALL_M
        rect = Rect(0, far_v, STAIRS_WIDTH_M, far_v + STAIRS_DEPTH_M)
        rooms.append(Room(f"{prefix}_stairs", "stairs", floor, rect))
        add_door(corridor, rooms[-1], (door_u(floor), breadth + WALL_M / 2), is_along_x=True)

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
            place_u = float(rng.uniform(u0 + 0.8, u1 - 0.8))
            add_door(corridor, side[-1], (place_u, door_v), is_along_x=True)
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
