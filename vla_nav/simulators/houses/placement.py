"""Where furniture stands: along walls or free in the room, doors and ways left clear.

                 wall                       c  clear ground in front of a door, both sides of it
    +------[sofa]---[lamp]---+              .  at least WAY_M between objects of different walls
    |         .              |              x  the place beside an object where a route may end
    cc        x   [table]    [desk]
    cc                       |
    +-------------------[bed]+

Doors stay clear, and objects that do not stand at the same wall keep a way between them, so every
object can be reached.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from vla_nav.simulators.houses.furniture import FURNITURE, ROOM_FURNITURE
from vla_nav.simulators.houses.palette import OBJECT_COLOURS
from vla_nav.simulators.houses.plan import STOREY_M, WALL_M, Door, Plan, Rect, Room

WAY_M = 0.75
_DOOR_CLEAR_M = 1.0
_WALL_GAP_M = 0.03
_SAME_WALL_GAP_M = 0.15
_NUM_TRIES = 12


@dataclass(frozen=True, slots=True)
class PlacedObject:
    """A piece of furniture: its front looks along (sin, cos) of `num_quarters` quarter turns.

    position: floor point of its middle (x, y, z); size: (width, height, depth) in its own frame;
    rect: the ground that it covers; beside: the floor point before its front.
    """

    name: str
    kind: str
    colour: str
    room: str
    floor: int
    position: tuple[float, float, float]
    size: tuple[float, float, float]
    num_quarters: int
    rect: Rect
    beside: tuple[float, float, float]


def place_furniture(
    plan: Plan, rng: np.random.Generator, *, num_objects: tuple[int, int]
) -> tuple[PlacedObject, ...]:
    """Furnish every room with about `num_objects` (least, most) objects, no two of one kind and
    colour in a room. Corridors get one or two narrow ones, stairs none."""
    placed: list[PlacedObject] = []
    for room in plan.rooms:
        if room.kind == "stairs":
            continue
        always, extra = ROOM_FURNITURE[room.kind]
        wanted = list(always) + [str(kind) for kind in rng.permutation(extra)]
        count = (
            2 if room.kind == "corridor" else int(rng.integers(num_objects[0], num_objects[1] + 1))
        )
        clear = [_clear_ground(door) for door in plan.doors_of(room.name)]
        in_room: list[PlacedObject] = []
        walls: list[int] = []  # which wall each stands at, -1 in the middle
        for kind in wanted[:count]:
            found = _place(kind, room, clear, in_room, walls, rng)
            if found is not None:
                in_room.append(found[0])
                walls.append(found[1])
        placed += in_room
    return tuple(placed)


def _clear_ground(door: Door) -> Rect:
    """The ground that must stay free at a door, on both sides of the wall."""
    (x, z), half = door.centre, door.width_m / 2 + 0.2
    reach = _DOOR_CLEAR_M + WALL_M / 2
    return (
        Rect(x - half, z - reach, x + half, z + reach)
        if door.is_along_x
        else Rect(x - reach, z - half, x + reach, z + half)
    )


def _place(
    kind: str,
    room: Room,
    clear: list[Rect],
    others: list[PlacedObject],
    walls: list[int],
    rng: np.random.Generator,
) -> tuple[PlacedObject, int] | None:
    """One object and its wall (0: -z, 1: -x, 2: +z, 3: +x; the front looks away from it), or None
    if no try fits."""
    spec = FURNITURE[kind]
    width, depth, height = (
        float(rng.uniform(*extent)) for extent in (spec.width_m, spec.depth_m, spec.height_m)
    )
    if room.kind == "corridor":
        width, depth = min(width, 0.4), min(depth, 0.4)
    taken = {(other.kind, other.colour) for other in others}
    colours = [colour for colour in OBJECT_COLOURS if (kind, colour) not in taken]
    colour = colours[int(rng.integers(len(colours)))]
    for _ in range(_NUM_TRIES):
        wall = -1 if spec.is_central else int(rng.integers(4))
        quarters = int(rng.integers(4)) if spec.is_central else wall
        extent_x, extent_z = (width, depth) if quarters % 2 == 0 else (depth, width)
        rect = _spot(room.rect, extent_x, extent_z, wall, rng)
        if rect is None or any(rect.overlaps(ground) for ground in clear):
            continue
        gaps = [
            _SAME_WALL_GAP_M if wall >= 0 and wall == other_wall else WAY_M for other_wall in walls
        ]
        if any(
            rect.overlaps(other.rect.grown(gap)) for other, gap in zip(others, gaps, strict=True)
        ):
            continue
        floor_y = room.floor * STOREY_M
        x, z = rect.centre
        front_x, front_z = _FRONTS[quarters]
        reach = depth / 2 + 0.45
        item = PlacedObject(
            name=f"{room.name}_{kind.replace(' ', '_')}{len(others)}",
            kind=kind,
            colour=colour,
            room=room.name,
            floor=room.floor,
            position=(x, floor_y, z),
            size=(width, height, depth),
            num_quarters=quarters,
            rect=rect,
            beside=(x + front_x * reach, floor_y, z + front_z * reach),
        )
        return item, wall
    return None


_FRONTS = ((0, 1), (1, 0), (0, -1), (-1, 0))  # (x, z) of the front after so many quarter turns


def _spot(
    room: Rect, extent_x: float, extent_z: float, wall: int, rng: np.random.Generator
) -> Rect | None:
    """A random place of that extent at a wall of the room, or in its middle."""
    free_x = room.x1 - room.x0 - extent_x
    free_z = room.z1 - room.z0 - extent_z
    if wall < 0:
        margin = WAY_M + 0.1
        if min(free_x, free_z) < 2 * margin:
            return None
        x0 = room.x0 + float(rng.uniform(margin, free_x - margin))
        z0 = room.z0 + float(rng.uniform(margin, free_z - margin))
        return Rect(x0, z0, x0 + extent_x, z0 + extent_z)
    if min(free_x, free_z) < 0.8:
        return None
    along = free_x if wall % 2 == 0 else free_z
    shift = float(rng.uniform(_WALL_GAP_M, along - _WALL_GAP_M))
    if wall % 2 == 0:
        z0 = room.z0 + _WALL_GAP_M if wall == 0 else room.z1 - _WALL_GAP_M - extent_z
        return Rect(room.x0 + shift, z0, room.x0 + shift + extent_x, z0 + extent_z)
    x0 = room.x0 + _WALL_GAP_M if wall == 1 else room.x1 - _WALL_GAP_M - extent_x
    return Rect(x0, room.z0 + shift, x0 + extent_x, room.z0 + shift + extent_z)


def distance_to(rect: Rect, x: float, z: float) -> float:
    """Metres from a point to a rectangle, 0 inside."""
    return math.hypot(max(rect.x0 - x, 0.0, x - rect.x1), max(rect.z0 - z, 0.0, z - rect.z1))
