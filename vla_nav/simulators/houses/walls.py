"""Walls around the rooms of a floor: every side of a room, cut where its neighbour changes.

+-----+--------+            the corridor's upper side becomes three walls:
|  a  |   b    |            corridor|a, corridor|(nothing between a and b), corridor|b
+-----+--------+            each once, not once for either room
|   corridor   |
+--------------+
"""

from __future__ import annotations

from dataclasses import replace

from vla_nav.simulators.houses.plan import WALL_M, Door, Rect, Room, Wall


def walls_around(rooms: list[Room], doors: list[Door], floor: int) -> list[Wall]:
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
