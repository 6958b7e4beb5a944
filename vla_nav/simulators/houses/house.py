"""One procedural house: a plan, its furniture and the coloured solids of both.

options + seed -> plan -> furniture -> nodes (name, parts, semantic id) -> GLB, metadata
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vla_nav.errors import UserError
from vla_nav.seeding import generator
from vla_nav.simulators.houses.furniture import FURNITURE
from vla_nav.simulators.houses.palette import (
    CEILING,
    EXTERIOR,
    OBJECT_COLOURS,
    RoomScheme,
    scheme_of,
    shaded,
    varied,
)
from vla_nav.simulators.houses.placement import PlacedObject, place_furniture
from vla_nav.simulators.houses.plan import (
    CEILING_M,
    DOOR_HEIGHT_M,
    STOREY_M,
    WALL_M,
    Door,
    Plan,
    Room,
    Wall,
)
from vla_nav.simulators.houses.plan_drawing import draw_plan
from vla_nav.simulators.houses.shapes import Part, box, box_of_faces, moved, plate, quarter_turned

_FRAME_M = 0.1  # width of a door frame's boards
_FRAME_RELIEF_M = 0.05  # how far they stand out from the wall
_TILE_M = 0.6
_SLAB_M = 0.1


@dataclass(frozen=True, slots=True)
class HouseOptions:
    """What a house may look like.

    num_rooms, num_objects: least and most, rooms a floor and objects a room.
    side_door_share: share of neighbouring rooms with a door between them.
    colour_variation: largest shift of a room's colours, of 255.
    detail: every face is cut into detail x detail quads (the same surface, more triangles).
    """

    num_floors: int = 1
    num_rooms: tuple[int, int] = (5, 8)
    num_objects: tuple[int, int] = (4, 6)
    side_door_share: float = 0.15
    colour_variation: float = 16.0
    has_ceiling: bool = True
    detail: int = 1

    def __post_init__(self) -> None:
        if self.num_floors not in (1, 2):
            raise UserError(f"houses.num_floors={self.num_floors}: allowed are 1 and 2")
        low, high = self.num_rooms
        if not 5 <= low <= high <= 8:
            raise UserError(
                f"houses.num_rooms={list(self.num_rooms)}: allowed is 5 <= low <= high <= 8"
            )
        low, high = self.num_objects
        if not 2 <= low <= high:
            raise UserError(
                f"houses.num_objects={list(self.num_objects)}: allowed is 2 <= low <= high"
            )
        if not 1 <= self.detail <= 16:
            raise UserError(f"houses.detail={self.detail}: allowed are 1 to 16")


@dataclass(frozen=True, slots=True)
class Node:
    """One named element of the scene with its semantic id (0 is kept for "nothing")."""

    name: str
    semantic_id: int
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class House:
    """A generated house."""

    name: str
    seed: int
    options: HouseOptions
    plan: Plan
    objects: tuple[PlacedObject, ...]
    nodes: tuple[Node, ...]


def generate_house(seed: int, options: HouseOptions | None = None, *, name: str = "") -> House:
    """The house of a seed: the same on every machine and in every process."""
    options = options or HouseOptions()
    plan = draw_plan(
        generator(seed, "plan"),
        num_rooms=options.num_rooms,
        num_floors=options.num_floors,
        side_door_share=options.side_door_share,
    )
    objects = place_furniture(plan, generator(seed, "furniture"), num_objects=options.num_objects)
    rng = generator(seed, "colours")
    schemes = {
        room.name: scheme_of(room.kind, rng, variation=options.colour_variation)
        for room in plan.rooms
    }
    named_parts: list[tuple[str, list[Part]]] = []
    for room in plan.rooms:
        named_parts += _floor_and_ceiling(room, plan, schemes[room.name], options)
    posts: dict[int, list[Part]] = {floor: [] for floor in range(plan.num_floors)}
    for wall in plan.walls:
        if wall.rooms == (None, None) or wall.length_m < WALL_M + 1e-6:
            posts[wall.floor] += _wall_parts(wall, schemes, plan.num_floors)
        else:
            named_parts.append((wall.name, _wall_parts(wall, schemes, plan.num_floors)))
    named_parts += [(f"f{floor}_posts", parts) for floor, parts in posts.items()]
    for door in plan.doors:
        named_parts.append((door.name, _frame_parts(door, plan, schemes)))
    if plan.steps:
        named_parts.append(("stairs", _stairs_parts(plan, schemes)))
    for item in objects:
        named_parts.append((item.name, _object_parts(item, rng)))
    nodes = tuple(Node(node, i + 1, tuple(parts)) for i, (node, parts) in enumerate(named_parts))
    return House(name or f"house_{seed}", seed, options, plan, objects, nodes)


def _floor_and_ceiling(
    room: Room, plan: Plan, scheme: RoomScheme, options: HouseOptions
) -> list[tuple[str, list[Part]]]:
    """The floor of a room with its pattern, out to the middle of its walls, and its ceiling."""
    y = room.floor * STOREY_M
    rect = room.rect.grown(WALL_M / 2)
    named: list[tuple[str, list[Part]]] = []
    if room.kind != "stairs" or room.floor == 0:
        pieces = [(rect.x0, rect.z0, rect.x1, rect.z1, scheme.floor)]
        if scheme.pattern != "plain":
            pieces = _pattern(rect.x0, rect.z0, rect.x1, rect.z1, scheme)
        slab = box((rect.x0, y - _SLAB_M, rect.z0), (rect.x1, y - 0.005, rect.z1), CEILING)
        top = [plate(x0, z0, x1, z1, y, colour, "up") for x0, z0, x1, z1, colour in pieces]
        named.append((f"{room.name}_floor", [slab, *top]))
    is_open_above = room.kind == "stairs" and room.floor < plan.num_floors - 1
    if options.has_ceiling and not is_open_above:
        ceiling = plate(rect.x0, rect.z0, rect.x1, rect.z1, y + CEILING_M, CEILING, "down")
        named.append((f"{room.name}_ceiling", [ceiling]))
    return named


def _pattern(
    x0: float, z0: float, x1: float, z1: float, scheme: RoomScheme
) -> list[tuple[float, float, float, float, tuple[int, int, int]]]:
    """Tiles (a chequerboard) or planks (stripes) as rectangles with colours."""
    num_x = 1 if scheme.pattern == "planks" else max(1, round((x1 - x0) / _TILE_M))
    num_z = max(1, round((z1 - z0) / (_TILE_M if scheme.pattern == "tiles" else 0.3)))
    xs, zs = np.linspace(x0, x1, num_x + 1), np.linspace(z0, z1, num_z + 1)
    colours = (scheme.floor, scheme.floor_second)
    return [
        (float(xs[i]), float(zs[j]), float(xs[i + 1]), float(zs[j + 1]), colours[(i + j) % 2])
        for i in range(num_x)
        for j in range(num_z)
    ]


def _wall_parts(wall: Wall, schemes: dict[str, RoomScheme], num_floors: int) -> list[Part]:
    """The boards of a wall between and over its doors, each side in its room's colour."""
    y = wall.floor * STOREY_M
    is_top = wall.floor == num_floors - 1
    top = y + (CEILING_M if is_top else STOREY_M - 0.01)  # up to the walls of the floor above
    low, high = (schemes[side].wall if side else EXTERIOR for side in wall.rooms)
    if wall.is_along_x:
        faces = (EXTERIOR, EXTERIOR, EXTERIOR, EXTERIOR, low, high)
        begin, end = wall.rect.x0, wall.rect.x1
    else:
        faces = (low, high, EXTERIOR, EXTERIOR, EXTERIOR, EXTERIOR)
        begin, end = wall.rect.z0, wall.rect.z1

    def board(at: float, to: float, bottom: float) -> Part:
        r = wall.rect
        if wall.is_along_x:
            return box_of_faces((at, y + bottom, r.z0), (to, top, r.z1), faces)
        return box_of_faces((r.x0, y + bottom, at), (r.x1, top, to), faces)

    parts = []
    for door in wall.doors:
        middle = door.centre[0] if wall.is_along_x else door.centre[1]
        left, right = middle - door.width_m / 2, middle + door.width_m / 2
        parts.append(board(begin, left, 0.0))
        parts.append(board(left, right, DOOR_HEIGHT_M))
        begin = right
    parts.append(board(begin, end, 0.0))
    return parts


def _frame_parts(door: Door, plan: Plan, schemes: dict[str, RoomScheme]) -> list[Part]:
    """Frame and mat on either side of a door, in the accent of the room behind it."""
    y = door.floor * STOREY_M
    along = door.centre[0] if door.is_along_x else door.centre[1]
    across = door.centre[1] if door.is_along_x else door.centre[0]
    half = door.width_m / 2
    outer = half + _FRAME_M
    first = plan.room(door.rooms[0]).rect.centre
    first_is_low = (first[1] if door.is_along_x else first[0]) < across
    parts = []
    for is_low in (True, False):
        behind = door.rooms[1] if is_low == first_is_low else door.rooms[0]
        colour = schemes[behind].accent
        face = across - WALL_M / 2 if is_low else across + WALL_M / 2
        out = face - _FRAME_RELIEF_M if is_low else face + _FRAME_RELIEF_M
        near, far = min(face, out), max(face, out)
        mat_far = face - 0.5 if is_low else face + 0.5
        pieces = [
            (along - outer, along - half, 0.0, DOOR_HEIGHT_M, near, far),
            (along + half, along + outer, 0.0, DOOR_HEIGHT_M, near, far),
            (along - outer, along + outer, DOOR_HEIGHT_M, DOOR_HEIGHT_M + 0.14, near, far),
            (
                along - half + 0.05,
                along + half - 0.05,
                0.0,
                0.01,
                min(face, mat_far),
                max(face, mat_far),
            ),
        ]
        for a0, a1, y0, y1, c0, c1 in pieces:
            if door.is_along_x:
                parts.append(box((a0, y + y0, c0), (a1, y + y1, c1), colour))
            else:
                parts.append(box((c0, y + y0, a0), (c1, y + y1, a1), colour))
    return parts


def _stairs_parts(plan: Plan, schemes: dict[str, RoomScheme]) -> list[Part]:
    """Treads (every other one darker) and the wall between the flights."""
    scheme = next(schemes[room.name] for room in plan.rooms if room.kind == "stairs")
    parts = []
    for i, step in enumerate(plan.steps):
        colour = scheme.wall if step.is_wall else shaded(scheme.floor, 1.0 if i % 4 < 2 else 0.85)
        r = step.rect
        parts.append(box((r.x0, step.low_m, r.z0), (r.x1, step.high_m, r.z1), colour))
    return parts


def _object_parts(item: PlacedObject, rng: np.random.Generator) -> list[Part]:
    """The parts of a piece of furniture where it stands."""
    width, height, depth = item.size
    colour = varied(OBJECT_COLOURS[item.colour], rng, variation=8.0)
    parts = FURNITURE[item.kind].build(width, height, depth, colour)
    return [moved(quarter_turned(part, item.num_quarters), item.position) for part in parts]
