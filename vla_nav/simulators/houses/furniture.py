"""Furniture of recognisable kinds: how large each is, where it stands, and what it looks like.

Each builder makes parts in the object's own frame: width along x, depth along z with the front at
+z, standing on y = 0, the back against z = -depth / 2. One main colour shows on most of the
surface, wood, metal and white on the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vla_nav.simulators.houses.palette import LEAF, METAL, WOOD, shaded
from vla_nav.simulators.houses.shapes import Colour, Part

Builder = Callable[[float, float, float, Colour], list[Part]]
_WHITE: Colour = (245, 245, 245)
_DARK: Colour = (35, 35, 38)


@dataclass(frozen=True, slots=True)
class FurnitureKind:
    """Size ranges (least, most) in metres; `is_central` stands free in the room, else at a wall."""

    width_m: tuple[float, float]
    depth_m: tuple[float, float]
    height_m: tuple[float, float]
    is_central: bool
    build: Builder


def _block(cx: float, cy: float, cz: float, w: float, h: float, d: float, colour: Colour) -> Part:
    return Part("box", (cx, cy, cz), (w, h, d), colour)


def _sofa(w: float, h: float, d: float, colour: Colour) -> list[Part]:
    dark = shaded(colour, 0.8)
    return [
        _block(0, 0.22, 0, w, 0.44, d, colour),
        _block(0, h / 2 + 0.1, -d / 2 + 0.11, w, h - 0.2, 0.22, dark),
        _block(-w / 2 + 0.1, 0.32, 0, 0.2, 0.64, d, dark),
        _block(w / 2 - 0.1, 0.32, 0, 0.2, 0.64, d, dark),
    ]


def _bed(w: float, h: float, d: float, colour: Colour) -> list[Part]:
    return [
        _block(0, 0.14, 0, w, 0.28, d, WOOD),
        _block(0, 0.4, 0.15, w - 0.04, 0.24, d - 0.3, colour),
        _block(0, 0.38, -d / 2 + 0.25, w - 0.04, 0.2, 0.4, _WHITE),
        _block(-w / 4, 0.53, -d / 2 + 0.28, w * 0.38, 0.12, 0.32, _WHITE),
        _block(w / 4, 0.53, -d / 2 + 0.28, w * 0.38, 0.12, 0.32, _WHITE),
        _block(0, h / 2, -d / 2 + 0.03, w, h, 0.06, shaded(colour, 0.75)),
    ]


def _table(w: float, h: float, d: float, colour: Colour) -> list[Part]:
    legs = [
        _block(sx * (w / 2 - 0.06), h / 2 - 0.03, sz * (d / 2 - 0.06), 0.08, h - 0.06, 0.08, colour)
        for sx in (-1, 1)
        for sz in (-1, 1)
    ]
    return [_block(0, h - 0.04, 0, w, 0.08, d, colour), *legs]


def _round_table(w: float, h: float, d: float, colour: Colour) -> list[Part]:
    return [
        Part("cylinder", (0, h - 0.04, 0), (w, 0.08, d), colour),
        Part("cylinder", (0, h / 2, 0), (0.14, h, 0.14), WOOD),
        Part("cylinder", (0, 0.03, 0), (w * 0.5, 0.06, d * 0.5), WOOD),
    ]


def _chair(w: float, h: float, d: float, colour: Colour) -> list[Part]:
    legs = [
        _block(sx * (w / 2 - 0.03), 0.22, sz * (d / 2 - 0.03), 0.05, 0.44, 0.05, WOOD)
        for sx in (-1, 1)
        for sz in (-1, 1)
    ]
    return [
        _block(0, 0.46, 0, w, 0.06, d, colour),
        _block(0, (h + 0.46) / 2, -d / 2 + 0.03, w, h - 0.46, 0.05, colour),
        *legs,
    ]


def _desk(w: float, h: float, d: float, colour: Colour) -> list[Part]:
    return [
        _block(0, h - 0.03, 0, w, 0.06, d, colour),
        _block(-w / 2 + 0.2, h / 2 - 0.03, 0, 0.4, h - 0.06, d - 0.04, shaded(colour, 0.85)),
        _block(w / 2 - 0.03, h / 2 - 0.03, 0, 0.06, h - 0.06, d - 0.04, colour),
        _block(0.1, h + 0.25, -d / 4, 0.55, 0.36, 0.04, _DARK),
        _block(0.1, h + 0.04, -d / 4, 0.2, 0.08, 0.14, METAL),
    ]


def _lamp(w: float, h: float, d: float, colour: Colour) -> list[Part]:
    return [
        Part("cylinder", (0, 0.02, 0), (w * 0.8, 0.04, d * 0.8), METAL),
        Part("cylinder", (0, h / 2, 0), (0.05, h - 0.2, 0.05), METAL),
        Part("cone", (0, h - 0.2, 0), (w, 0.55, d), colour),
    ]


def _plant(w: float, h: float, d: float, colour: Colour) -> list[Part]:
    pot = min(0.5, h * 0.45)
    return [
        Part("cylinder", (0, pot / 2, 0), (w * 0.75, pot, d * 0.75), colour),
        Part("sphere", (0, pot + (h - pot) * 0.4, 0), (w, (h - pot) * 0.8, d), LEAF),
        Part("cone", (0, pot + (h - pot) * 0.7, 0), (w * 0.8, (h - pot) * 0.6, d * 0.8), LEAF),
    ]


def _bookshelf(w: float, h: float, d: float, colour: Colour) -> list[Part]:
    books = [(190, 60, 50), (60, 90, 170), (220, 190, 80), (70, 140, 80)]
    parts = [
        _block(0, h / 2, -d / 2 + 0.02, w, h, 0.04, shaded(colour, 0.6)),
        _block(-w / 2 + 0.03, h / 2, 0, 0.06, h, d, colour),
        _block(w / 2 - 0.03, h / 2, 0, 0.06, h, d, colour),
    ]
    num_boards = 5
    for i in range(num_boards):
        y = 0.03 + i * (h - 0.06) / (num_boards - 1)
        parts.append(_block(0, y, 0, w, 0.06, d, colour))
        if i < num_boards - 1:
            book = books[i % len(books)]
            parts.append(_block(-w * 0.08, y + 0.17, -0.03, w * 0.7, 0.26, d * 0.6, book))
    return parts


def _cabinet(w: float, h: float, d: float, colour: Colour) -> list[Part]:
    return [
        _block(0, h / 2, 0, w, h, d, colour),
        _block(0, h + 0.02, 0, w, 0.04, d, WOOD),
        _block(0, h / 2, d / 2 + 0.005, 0.03, h * 0.9, 0.01, shaded(colour, 0.5)),
        _block(-0.08, h * 0.6, d / 2 + 0.02, 0.04, 0.12, 0.03, METAL),
        _block(0.08, h * 0.6, d / 2 + 0.02, 0.04, 0.12, 0.03, METAL),
    ]


def _fridge(w: float, h: float, d: float, colour: Colour) -> list[Part]:
    return [
        _block(0, h / 2, 0, w, h, d, colour),
        _block(0, h * 0.62, d / 2 + 0.005, w, 0.03, 0.01, _DARK),
        _block(-w / 2 + 0.08, h * 0.78, d / 2 + 0.03, 0.04, 0.3, 0.05, METAL),
        _block(-w / 2 + 0.08, h * 0.4, d / 2 + 0.03, 0.04, 0.4, 0.05, METAL),
    ]


def _stove(w: float, h: float, d: float, colour: Colour) -> list[Part]:
    rings = [
        Part("cylinder", (sx * w / 4, h + 0.01, sz * d / 4), (0.2, 0.02, 0.2), _DARK)
        for sx in (-1, 1)
        for sz in (-1, 1)
    ]
    return [
        _block(0, h / 2, 0, w, h, d, colour),
        _block(0, h * 0.45, d / 2 + 0.005, w * 0.8, h * 0.5, 0.01, _DARK),
        _block(0, h + 0.1, -d / 2 + 0.03, w, 0.2, 0.06, colour),
        *rings,
    ]


def _counter(w: float, h: float, d: float, colour: Colour) -> list[Part]:
    return [
        _block(0, h / 2 - 0.03, -0.02, w, h - 0.06, d - 0.04, colour),
        _block(0, h - 0.03, 0, w, 0.06, d, _WHITE),
        _block(w * 0.2, h + 0.005, 0.02, 0.45, 0.01, d * 0.6, METAL),
        _block(w * 0.2, h + 0.14, -d / 2 + 0.1, 0.05, 0.28, 0.05, METAL),
        _block(0, h + 0.85, -d / 2 + 0.17, w, 0.5, 0.34, colour),
    ]


def _sink(w: float, h: float, d: float, colour: Colour) -> list[Part]:
    return [
        _block(0, h * 0.4, -0.04, w * 0.9, h * 0.8, d - 0.08, colour),
        _block(0, h * 0.9, 0, w, h * 0.2, d, _WHITE),
        _block(0, h + 0.1, -d / 2 + 0.06, 0.06, 0.2, 0.06, METAL),
        _block(0, h + 0.6, -d / 2 + 0.02, w * 0.8, 0.7, 0.03, (190, 215, 230)),
    ]


def _toilet(w: float, h: float, d: float, colour: Colour) -> list[Part]:
    return [
        Part("cylinder", (0, 0.2, 0.1), (w * 0.8, 0.4, d * 0.6), colour),
        Part("cylinder", (0, 0.43, 0.08), (w, 0.06, d * 0.75), _WHITE),
        _block(0, h / 2 + 0.1, -d / 2 + 0.1, w, h - 0.2, 0.2, colour),
    ]


def _bathtub(w: float, h: float, d: float, colour: Colour) -> list[Part]:
    wall = 0.08
    return [
        _block(0, h / 2, d / 2 - wall / 2, w, h, wall, colour),
        _block(0, h / 2, -d / 2 + wall / 2, w, h, wall, colour),
        _block(-w / 2 + wall / 2, h / 2, 0, wall, h, d - 2 * wall, colour),
        _block(w / 2 - wall / 2, h / 2, 0, wall, h, d - 2 * wall, colour),
        _block(0, h * 0.35, 0, w - 2 * wall, h * 0.7, d - 2 * wall, (225, 240, 248)),
        _block(-w / 2 + 0.15, h + 0.15, 0, 0.06, 0.3, 0.06, METAL),
    ]


def _washing_machine(w: float, h: float, d: float, colour: Colour) -> list[Part]:
    return [
        _block(0, h / 2, 0, w, h, d, colour),
        _block(0, h * 0.45, d / 2 + 0.01, w * 0.6, h * 0.45, 0.02, _DARK),
        _block(0, h * 0.45, d / 2 + 0.025, w * 0.4, h * 0.3, 0.02, (150, 190, 220)),
        _block(0, h - 0.08, d / 2 + 0.01, w, 0.1, 0.02, METAL),
    ]


def _television(w: float, h: float, d: float, colour: Colour) -> list[Part]:
    return [
        _block(0, 0.25, 0, w, 0.5, d, colour),
        _block(0, 0.55, -0.05, 0.3, 0.1, 0.2, _DARK),
        _block(0, (h + 0.6) / 2, -0.05, w * 0.9, h - 0.6, 0.07, _DARK),
        _block(0, (h + 0.6) / 2, -0.01, w * 0.84, h - 0.7, 0.02, (70, 110, 150)),
    ]


def _piano(w: float, h: float, d: float, colour: Colour) -> list[Part]:
    return [
        _block(0, h / 2, -d / 2 + 0.18, w, h, 0.36, colour),
        _block(0, 0.66, 0.1, w, 0.14, d - 0.2, colour),
        _block(0, 0.745, 0.16, w * 0.92, 0.03, d - 0.36, _WHITE),
        _block(-w / 2 + 0.05, 0.3, d / 2 - 0.1, 0.1, 0.6, 0.1, colour),
        _block(w / 2 - 0.05, 0.3, d / 2 - 0.1, 0.1, 0.6, 0.1, colour),
    ]


def _tent(w: float, h: float, d: float, colour: Colour) -> list[Part]:
    return [
        Part("cone", (0, h / 2, 0), (w * 1.08, h, d * 1.08), colour),
        _block(0, h * 0.25, d * 0.42, w * 0.3, h * 0.5, 0.1, _WHITE),
    ]


def _ball(w: float, h: float, d: float, colour: Colour) -> list[Part]:
    return [Part("sphere", (0, h / 2, 0), (w, h, d), colour)]


def _toy_box(w: float, h: float, d: float, colour: Colour) -> list[Part]:
    return [
        _block(0, h / 2, 0, w, h, d, colour),
        _block(-w / 4, h + 0.1, 0, 0.2, 0.2, 0.2, (250, 210, 60)),
        Part("sphere", (w / 5, h + 0.12, 0.02), (0.26, 0.26, 0.26), (220, 60, 60)),
        _block(0.02, h + 0.06, -0.1, 0.14, 0.12, 0.14, (60, 120, 220)),
    ]


def _treadmill(w: float, h: float, d: float, colour: Colour) -> list[Part]:
    return [
        _block(0, 0.1, 0, w, 0.2, d, colour),
        _block(0, 0.205, 0.05, w * 0.7, 0.02, d * 0.85, _DARK),
        _block(-w / 2 + 0.04, h / 2, -d / 2 + 0.1, 0.07, h, 0.07, METAL),
        _block(w / 2 - 0.04, h / 2, -d / 2 + 0.1, 0.07, h, 0.07, METAL),
        _block(0, h - 0.1, -d / 2 + 0.12, w, 0.3, 0.1, colour),
    ]


def _bench(w: float, h: float, d: float, colour: Colour) -> list[Part]:
    return [
        _block(0, h - 0.06, 0, w, 0.12, d, colour),
        _block(-w / 2 + 0.15, h / 2 - 0.06, 0, 0.08, h - 0.12, d * 0.8, METAL),
        _block(w / 2 - 0.15, h / 2 - 0.06, 0, 0.08, h - 0.12, d * 0.8, METAL),
    ]


FURNITURE: dict[str, FurnitureKind] = {
    "sofa": FurnitureKind((1.7, 2.2), (0.85, 0.95), (0.8, 0.9), False, _sofa),
    "armchair": FurnitureKind((0.85, 0.95), (0.85, 0.9), (0.85, 0.95), False, _sofa),
    "bed": FurnitureKind((1.4, 1.8), (2.0, 2.1), (0.9, 1.1), False, _bed),
    "table": FurnitureKind((1.2, 1.6), (0.8, 0.95), (0.72, 0.76), True, _table),
    "round table": FurnitureKind((1.0, 1.3), (1.0, 1.3), (0.72, 0.76), True, _round_table),
    "chair": FurnitureKind((0.45, 0.5), (0.45, 0.5), (0.9, 1.0), False, _chair),
    "desk": FurnitureKind((1.2, 1.5), (0.65, 0.75), (0.72, 0.76), False, _desk),
    "lamp": FurnitureKind((0.5, 0.6), (0.5, 0.6), (1.6, 1.8), False, _lamp),
    "plant": FurnitureKind((0.5, 0.65), (0.5, 0.65), (1.2, 1.6), False, _plant),
    "bookshelf": FurnitureKind((1.0, 1.5), (0.35, 0.4), (1.9, 2.1), False, _bookshelf),
    "cabinet": FurnitureKind((0.9, 1.3), (0.45, 0.5), (0.9, 1.1), False, _cabinet),
    "wardrobe": FurnitureKind((1.2, 1.6), (0.55, 0.6), (1.95, 2.1), False, _cabinet),
    "fridge": FurnitureKind((0.7, 0.8), (0.65, 0.7), (1.8, 2.0), False, _fridge),
    "stove": FurnitureKind((0.65, 0.75), (0.6, 0.65), (0.88, 0.92), False, _stove),
    "counter": FurnitureKind((1.6, 2.2), (0.6, 0.65), (0.88, 0.92), False, _counter),
    "sink": FurnitureKind((0.7, 0.9), (0.45, 0.5), (0.82, 0.88), False, _sink),
    "toilet": FurnitureKind((0.42, 0.46), (0.68, 0.72), (0.85, 0.9), False, _toilet),
    "bathtub": FurnitureKind((1.6, 1.8), (0.75, 0.8), (0.55, 0.6), False, _bathtub),
    "washing machine": FurnitureKind(
        (0.62, 0.7), (0.6, 0.65), (0.86, 0.9), False, _washing_machine
    ),
    "television": FurnitureKind((1.3, 1.6), (0.42, 0.48), (1.3, 1.45), False, _television),
    "piano": FurnitureKind((1.4, 1.5), (0.65, 0.75), (1.15, 1.25), False, _piano),
    "tent": FurnitureKind((1.2, 1.4), (1.2, 1.4), (1.5, 1.7), True, _tent),
    "ball": FurnitureKind((0.65, 0.8), (0.65, 0.8), (0.65, 0.8), False, _ball),
    "toy box": FurnitureKind((0.9, 1.1), (0.5, 0.6), (0.45, 0.55), False, _toy_box),
    "treadmill": FurnitureKind((0.75, 0.85), (1.6, 1.8), (1.3, 1.4), False, _treadmill),
    "bench": FurnitureKind((1.2, 1.5), (0.4, 0.5), (0.45, 0.5), False, _bench),
}

# What belongs into a room of a kind: the first are always tried, the rest drawn at random.
ROOM_FURNITURE: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "kitchen": (("fridge", "counter", "stove"), ("table", "chair", "plant", "cabinet")),
    "living room": (("sofa", "television"), ("armchair", "lamp", "plant", "piano", "bookshelf")),
    "bedroom": (("bed", "wardrobe"), ("lamp", "armchair", "cabinet", "chair", "plant")),
    "bathroom": (("bathtub", "sink", "toilet"), ("washing machine", "cabinet", "plant")),
    "dining room": (("table", "cabinet"), ("chair", "chair", "lamp", "plant", "piano")),
    "office": (("desk", "bookshelf"), ("chair", "lamp", "cabinet", "plant", "sofa")),
    "library": (("bookshelf", "bookshelf"), ("armchair", "round table", "lamp", "desk", "sofa")),
    "playroom": (("tent", "toy box"), ("ball", "chair", "bookshelf", "bench", "armchair")),
    "gym": (("treadmill", "bench"), ("ball", "cabinet", "plant", "lamp", "washing machine")),
    "corridor": ((), ("plant", "lamp")),
}
