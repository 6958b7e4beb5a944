"""Routes through a house: from a place in one room to a place beside an object in another.

For each goal several starts are drawn, so one geodesic field serves them all. Lengths, paths and
walkability are the simulator's; the routes of a seed are the same on every machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from vla_nav.errors import UserError
from vla_nav.simulators.houses.description import RouteDescription, describe_route
from vla_nav.simulators.houses.house import House
from vla_nav.simulators.houses.placement import PlacedObject, distance_to
from vla_nav.simulators.houses.plan import STOREY_M, Room
from vla_nav.simulators.protocol import Simulator

_MIN_RIVALS = 2  # other objects of the goal's kind or colour, so that the words are needed
_MIN_GOAL_TO_DOOR_M = 2.1  # a goal lies inside its room, not at its door
_START_TO_WALL_M = 0.5
_MAX_ROOMS = 3  # start, goal and one between; longer chains take too many words
_TRIES_PER_ROUTE = 12
_HEADING_STEP_DEG = 30  # start headings are multiples, as in R2R-CE v1-3

Point = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class RouteOptions:
    """Which routes are drawn: geodesic length (least, most) in metres, starts for each goal."""

    min_geodesic_m: float = 6.0
    max_geodesic_m: float = 15.0
    starts_per_goal: int = 2

    def __post_init__(self) -> None:
        if not 5.0 <= self.min_geodesic_m < self.max_geodesic_m:
            raise UserError(
                f"houses.min_geodesic_m={self.min_geodesic_m}, "
                f"max_geodesic_m={self.max_geodesic_m}: allowed is 5 <= min < max"
            )
        if self.starts_per_goal < 1:
            raise UserError(f"houses.starts_per_goal={self.starts_per_goal}: must be at least 1")


@dataclass(frozen=True, slots=True)
class Route:
    """A start, a goal and the shortest path (P, 3) between them, metres, world."""

    start: Point
    start_yaw_rad: float
    goal: Point
    goal_object: PlacedObject
    geodesic_m: float
    path: np.ndarray
    description: RouteDescription


def sample_routes(
    house: House,
    simulator: Simulator,
    rng: np.random.Generator,
    *,
    num_routes: int,
    options: RouteOptions,
) -> list[Route]:
    """Up to `num_routes` routes; `simulator` has the house's scene loaded.

    Goals are spread over the rooms before a room is used twice. Fewer routes come back where a
    house has too few places.
    """
    routes: list[Route] = []
    for item in _goal_objects(house, rng):
        if len(routes) >= num_routes:
            break
        goal = simulator.snap(item.beside)
        if goal is None or math.dist(goal, item.beside) > 0.35:
            continue
        wanted = min(options.starts_per_goal, num_routes - len(routes))
        found = 0
        rooms = _start_rooms(house, item, rng)
        for attempt in range(_TRIES_PER_ROUTE * wanted):
            if found == wanted:
                break
            start = _start_in(rooms[attempt % len(rooms)], house, simulator, rng)
            if start is None:
                continue
            route = _route(house, simulator, rng, start, goal, item, options)
            if route is not None:
                routes.append(route)
                found += 1
    return routes


def _goal_objects(house: House, rng: np.random.Generator) -> list[PlacedObject]:
    """Objects that can be goals: round after round one of each room, rooms in random order."""
    by_room: dict[str, list[PlacedObject]] = {}
    for index in rng.permutation(len(house.objects)):
        item = house.objects[index]
        room = house.plan.room(item.room)
        rivals = sum(
            other is not item and (other.kind == item.kind or other.colour == item.colour)
            for other in house.objects
        )
        is_deep = all(
            math.hypot(door.centre[0] - item.beside[0], door.centre[1] - item.beside[2])
            >= _MIN_GOAL_TO_DOOR_M
            for door in house.plan.doors_of(room.name)
        )
        is_inside = room.rect.grown(-0.2).contains(item.beside[0], item.beside[2])
        if room.kind != "corridor" and rivals >= _MIN_RIVALS and is_deep and is_inside:
            by_room.setdefault(room.name, []).append(item)
    rounds = max((len(items) for items in by_room.values()), default=0)
    ordered = []
    for turn in range(rounds):
        names = sorted(by_room)
        for index in rng.permutation(len(names)):
            items = by_room[names[index]]
            if turn < len(items):
                ordered.append(items[turn])
    return ordered


def _start_rooms(house: House, goal: PlacedObject, rng: np.random.Generator) -> list[Room]:
    rooms = [
        room
        for room in house.plan.rooms
        if room.kind not in ("corridor", "stairs") and room.name != goal.room
    ]
    return [rooms[index] for index in rng.permutation(len(rooms))]


def _start_in(
    room: Room, house: House, simulator: Simulator, rng: np.random.Generator
) -> Point | None:
    """A random walkable place in a room, off walls and furniture."""
    area = room.rect.grown(-_START_TO_WALL_M)
    x, z = float(rng.uniform(area.x0, area.x1)), float(rng.uniform(area.z0, area.z1))
    for item in house.objects:
        if item.room == room.name and distance_to(item.rect, x, z) < 0.3:
            return None
    start = simulator.snap((x, room.floor * STOREY_M, z))
    if start is None or math.hypot(start[0] - x, start[2] - z) > 0.1:
        return None
    return start


def _route(
    house: House,
    simulator: Simulator,
    rng: np.random.Generator,
    start: Point,
    goal: Point,
    item: PlacedObject,
    options: RouteOptions,
) -> Route | None:
    yaw = math.radians(_HEADING_STEP_DEG * int(rng.integers(360 // _HEADING_STEP_DEG)))
    if math.dist(start, goal) > options.max_geodesic_m:
        return None
    distance = simulator.geodesic_distance(start, [goal])
    if not options.min_geodesic_m <= distance <= options.max_geodesic_m:
        return None
    path = simulator.shortest_path(start, goal).points
    description = describe_route(house.plan, house.objects, path, start_yaw_rad=yaw, goal=item)
    if description is None or len(description.living_rooms) > _MAX_ROOMS:
        return None
    return Route(start, yaw, goal, item, distance, path, description)
