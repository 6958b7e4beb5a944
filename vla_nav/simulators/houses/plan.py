"""The parts of a floor plan: rooms, doors, walls and stairs as rectangles in the world's (x, z).

Rectangles of rooms are their insides; walls fill the gaps of `WALL_M` between them. A floor stands
`STOREY_M` above the one below.
"""

from __future__ import annotations

from dataclasses import dataclass

WALL_M = 0.15
CEILING_M = 2.6
STOREY_M = 2.8
DOOR_HEIGHT_M = 2.1


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

    @property
    def length_m(self) -> float:
        """Its length."""
        r = self.rect
        return r.x1 - r.x0 if self.is_along_x else r.z1 - r.z0


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
