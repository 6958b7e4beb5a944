"""Colours: nine named ones for furniture, and one scheme of floor, wall and accent per room kind.

A room's kind shows at a glance (a bedroom is purple, a bathroom turquoise with tiles), each house
varies it a little. The accent is worn by the frames and mats of the doors that lead into the room.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vla_nav.simulators.houses.shapes import Colour

OBJECT_COLOURS: dict[str, Colour] = {
    "red": (205, 35, 35),
    "orange": (240, 130, 25),
    "yellow": (245, 220, 40),
    "green": (40, 150, 55),
    "blue": (35, 75, 205),
    "purple": (130, 50, 170),
    "pink": (245, 130, 185),
    "white": (242, 242, 242),
    "black": (28, 28, 30),
}


@dataclass(frozen=True, slots=True)
class RoomScheme:
    """Colours of one room: the floor is a pattern (`tiles`, `planks`, `plain`) of two colours."""

    floor: Colour
    floor_second: Colour
    wall: Colour
    accent: Colour
    pattern: str


ROOM_SCHEMES: dict[str, RoomScheme] = {
    "kitchen": RoomScheme(
        (235, 205, 90), (250, 240, 205), (250, 236, 165), (250, 205, 20), "tiles"
    ),
    "living room": RoomScheme(
        (165, 95, 45), (145, 80, 35), (240, 200, 155), (235, 115, 25), "planks"
    ),
    "bedroom": RoomScheme((120, 80, 165), (120, 80, 165), (212, 190, 240), (125, 45, 190), "plain"),
    "bathroom": RoomScheme(
        (60, 185, 195), (225, 245, 245), (180, 235, 238), (10, 175, 195), "tiles"
    ),
    "dining room": RoomScheme(
        (140, 35, 40), (120, 28, 34), (238, 178, 170), (195, 25, 35), "planks"
    ),
    "office": RoomScheme((45, 70, 140), (45, 70, 140), (175, 190, 228), (30, 70, 210), "plain"),
    "library": RoomScheme((40, 95, 50), (32, 82, 42), (180, 212, 165), (25, 135, 45), "planks"),
    "playroom": RoomScheme(
        (240, 130, 180), (250, 190, 215), (252, 210, 228), (245, 75, 155), "tiles"
    ),
    "gym": RoomScheme((52, 52, 56), (70, 70, 74), (190, 190, 192), (35, 35, 38), "tiles"),
}
CORRIDOR_SCHEME = RoomScheme(
    (172, 160, 142), (172, 160, 142), (228, 224, 214), (250, 250, 248), "plain"
)
STAIRS_SCHEME = RoomScheme((150, 125, 95), (150, 125, 95), (222, 214, 200), (150, 125, 95), "plain")

CEILING: Colour = (246, 246, 244)
EXTERIOR: Colour = (205, 195, 180)
WOOD: Colour = (140, 95, 55)
METAL: Colour = (150, 152, 156)
LEAF: Colour = (45, 130, 50)


def scheme_of(kind: str, rng: np.random.Generator, *, variation: float) -> RoomScheme:
    """The scheme of a room kind, colours varied by up to `variation` (0 to 255, per channel)."""
    base = {"corridor": CORRIDOR_SCHEME, "stairs": STAIRS_SCHEME, **ROOM_SCHEMES}[kind]
    floor_shift = rng.uniform(-variation, variation, 3)
    return RoomScheme(
        _shifted(base.floor, floor_shift),
        _shifted(base.floor_second, floor_shift),
        _shifted(base.wall, rng.uniform(-variation, variation, 3)),
        _shifted(base.accent, rng.uniform(-variation, variation, 3)),
        base.pattern,
    )


def varied(colour: Colour, rng: np.random.Generator, *, variation: float) -> Colour:
    """A colour near `colour`."""
    return _shifted(colour, rng.uniform(-variation, variation, 3))


def shaded(colour: Colour, factor: float) -> Colour:
    """The colour made darker (factor < 1) or lighter (> 1)."""
    red, green, blue = (min(255, max(0, round(channel * factor))) for channel in colour)
    return red, green, blue


def _shifted(colour: Colour, shift: np.ndarray) -> Colour:
    red, green, blue = (
        min(255, max(0, round(channel + float(delta))))
        for channel, delta in zip(colour, shift, strict=True)
    )
    return red, green, blue
