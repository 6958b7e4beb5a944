"""What each kind of furniture looks like, as boxes, cylinders, cones and spheres.

Each builder takes width, height and depth (metres) and the main colour, and makes parts in the
object's own frame: width along x, depth along z with the front at +z, standing on y = 0, the back
against z = -depth / 2. The main colour covers most of the surface, wood, metal and white the rest.
"""

from __future__ import annotations

from vla_nav.simulators.houses.palette import LEAF, METAL, WOOD, shaded
from vla_nav.simulators.houses.shapes import Colour, Part

_WHITE: Colour = (245, 245, 245)
_DARK: Colour = (35, 35, 38)


def _block(cx: float, cy: float, cz: float, w: float, h: float, d: float, colour: Colour) -> Part:
    return Part("box", (cx, cy, cz), (w, h, d), colour)


def sofa(w: float, h: float, d: float, colour: Colour) -> list[Part]:
    dark = shaded(colour, 0.8)
    return [
        _block(0, 0.22, 0, w, 0.44, d, colour),
        _block(0, h / 2 + 0.1, -d / 2 + 0.11, w, h - 0.2, 0.22, dark),
        _block(-w / 2 + 0.1, 0.32, 0, 0.2, 0.64, d, dark),
        _block(w / 2 - 0.1, 0.32, 0, 0.2, 0.64, d, dark),
    ]


def bed(w: float, h: float, d: float, colour: Colour) -> list[Part]:
    return [
        _block(0, 0.14, 0, w, 0.28, d, WOOD),
        _block(0, 0.4, 0.15, w - 0.04, 0.24, d - 0.3, colour),
        _block(0, 0.38, -d / 2 + 0.25, w - 0.04, 0.2, 0.4, _WHITE),
        _block(-w / 4, 0.53, -d / 2 + 0.28, w * 0.38, 0.12, 0.32, _WHITE),
        _block(w / 4, 0.53, -d / 2 + 0.28, w * 0.38, 0.12, 0.32, _WHITE),
        _block(0, h / 2, -d / 2 + 0.03, w, h, 0.06, shaded(colour, 0.75)),
    ]


def table(w: float, h: float, d: float, colour: Colour) -> list[Part]:
    legs = [
        _block(sx * (w / 2 - 0.06), h / 2 - 0.03, sz * (d / 2 - 0.06), 0.08, h - 0.06, 0.08, colour)
        for sx in (-1, 1)
        for sz in (-1, 1)
    ]
    return [_block(0, h - 0.04, 0, w, 0.08, d, colour), *legs]


def round_table(w: float, h: float, d: float, colour: Colour) -> list[Part]:
    return [
        Part("cylinder", (0, h - 0.04, 0), (w, 0.08, d), colour),
        Part("cylinder", (0, h / 2, 0), (0.14, h, 0.14), WOOD),
        Part("cylinder", (0, 0.03, 0), (w * 0.5, 0.06, d * 0.5), WOOD),
    ]


def chair(w: float, h: float, d: float, colour: Colour) -> list[Part]:
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


def desk(w: float, h: float, d: float, colour: Colour) -> list[Part]:
    return [
        _block(0, h - 0.03, 0, w, 0.06, d, colour),
        _block(-w / 2 + 0.2, h / 2 - 0.03, 0, 0.4, h - 0.06, d - 0.04, shaded(colour, 0.85)),
        _block(w / 2 - 0.03, h / 2 - 0.03, 0, 0.06, h - 0.06, d - 0.04, colour),
        _block(0.1, h + 0.25, -d / 4, 0.55, 0.36, 0.04, _DARK),
        _block(0.1, h + 0.04, -d / 4, 0.2, 0.08, 0.14, METAL),
    ]


def lamp(w: float, h: float, d: float, colour: Colour) -> list[Part]:
    return [
        Part("cylinder", (0, 0.02, 0), (w * 0.8, 0.04, d * 0.8), METAL),
        Part("cylinder", (0, h / 2, 0), (0.05, h - 0.2, 0.05), METAL),
        Part("cone", (0, h - 0.2, 0), (w, 0.55, d), colour),
    ]


def plant(w: float, h: float, d: float, colour: Colour) -> list[Part]:
    pot = min(0.5, h * 0.45)
    return [
        Part("cylinder", (0, pot / 2, 0), (w * 0.75, pot, d * 0.75), colour),
        Part("sphere", (0, pot + (h - pot) * 0.4, 0), (w, (h - pot) * 0.8, d), LEAF),
        Part("cone", (0, pot + (h - pot) * 0.7, 0), (w * 0.8, (h - pot) * 0.6, d * 0.8), LEAF),
    ]


def bookshelf(w: float, h: float, d: float, colour: Colour) -> list[Part]:
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


def cabinet(w: float, h: float, d: float, colour: Colour) -> list[Part]:
    return [
        _block(0, h / 2, 0, w, h, d, colour),
        _block(0, h + 0.02, 0, w, 0.04, d, WOOD),
        _block(0, h / 2, d / 2 + 0.005, 0.03, h * 0.9, 0.01, shaded(colour, 0.5)),
        _block(-0.08, h * 0.6, d / 2 + 0.02, 0.04, 0.12, 0.03, METAL),
        _block(0.08, h * 0.6, d / 2 + 0.02, 0.04, 0.12, 0.03, METAL),
    ]


def fridge(w: float, h: float, d: float, colour: Colour) -> list[Part]:
    return [
        _block(0, h / 2, 0, w, h, d, colour),
        _block(0, h * 0.62, d / 2 + 0.005, w, 0.03, 0.01, _DARK),
        _block(-w / 2 + 0.08, h * 0.78, d / 2 + 0.03, 0.04, 0.3, 0.05, METAL),
        _block(-w / 2 + 0.08, h * 0.4, d / 2 + 0.03, 0.04, 0.4, 0.05, METAL),
    ]


def stove(w: float, h: float, d: float, colour: Colour) -> list[Part]:
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


def counter(w: float, h: float, d: float, colour: Colour) -> list[Part]:
    return [
        _block(0, h / 2 - 0.03, -0.02, w, h - 0.06, d - 0.04, colour),
        _block(0, h - 0.03, 0, w, 0.06, d, _WHITE),
        _block(w * 0.2, h + 0.005, 0.02, 0.45, 0.01, d * 0.6, METAL),
        _block(w * 0.2, h + 0.14, -d / 2 + 0.1, 0.05, 0.28, 0.05, METAL),
        _block(0, h + 0.85, -d / 2 + 0.17, w, 0.5, 0.34, colour),
    ]


def sink(w: float, h: float, d: float, colour: Colour) -> list[Part]:
    return [
        _block(0, h * 0.4, -0.04, w * 0.9, h * 0.8, d - 0.08, colour),
        _block(0, h * 0.9, 0, w, h * 0.2, d, _WHITE),
        _block(0, h + 0.1, -d / 2 + 0.06, 0.06, 0.2, 0.06, METAL),
        _block(0, h + 0.6, -d / 2 + 0.02, w * 0.8, 0.7, 0.03, (190, 215, 230)),
    ]


def toilet(w: float, h: float, d: float, colour: Colour) -> list[Part]:
    return [
        Part("cylinder", (0, 0.2, 0.1), (w * 0.8, 0.4, d * 0.6), colour),
        Part("cylinder", (0, 0.43, 0.08), (w, 0.06, d * 0.75), _WHITE),
        _block(0, h / 2 + 0.1, -d / 2 + 0.1, w, h - 0.2, 0.2, colour),
    ]


def bathtub(w: float, h: float, d: float, colour: Colour) -> list[Part]:
    wall = 0.08
    return [
        _block(0, h / 2, d / 2 - wall / 2, w, h, wall, colour),
        _block(0, h / 2, -d / 2 + wall / 2, w, h, wall, colour),
        _block(-w / 2 + wall / 2, h / 2, 0, wall, h, d - 2 * wall, colour),
        _block(w / 2 - wall / 2, h / 2, 0, wall, h, d - 2 * wall, colour),
        _block(0, h * 0.35, 0, w - 2 * wall, h * 0.7, d - 2 * wall, (225, 240, 248)),
        _block(-w / 2 + 0.15, h + 0.15, 0, 0.06, 0.3, 0.06, METAL),
    ]


def washing_machine(w: float, h: float, d: float, colour: Colour) -> list[Part]:
    return [
        _block(0, h / 2, 0, w, h, d, colour),
        _block(0, h * 0.45, d / 2 + 0.01, w * 0.6, h * 0.45, 0.02, _DARK),
        _block(0, h * 0.45, d / 2 + 0.025, w * 0.4, h * 0.3, 0.02, (150, 190, 220)),
        _block(0, h - 0.08, d / 2 + 0.01, w, 0.1, 0.02, METAL),
    ]


def television(w: float, h: float, d: float, colour: Colour) -> list[Part]:
    return [
        _block(0, 0.25, 0, w, 0.5, d, colour),
        _block(0, 0.55, -0.05, 0.3, 0.1, 0.2, _DARK),
        _block(0, (h + 0.6) / 2, -0.05, w * 0.9, h - 0.6, 0.07, _DARK),
        _block(0, (h + 0.6) / 2, -0.01, w * 0.84, h - 0.7, 0.02, (70, 110, 150)),
    ]


def piano(w: float, h: float, d: float, colour: Colour) -> list[Part]:
    return [
        _block(0, h / 2, -d / 2 + 0.18, w, h, 0.36, colour),
        _block(0, 0.66, 0.1, w, 0.14, d - 0.2, colour),
        _block(0, 0.745, 0.16, w * 0.92, 0.03, d - 0.36, _WHITE),
        _block(-w / 2 + 0.05, 0.3, d / 2 - 0.1, 0.1, 0.6, 0.1, colour),
        _block(w / 2 - 0.05, 0.3, d / 2 - 0.1, 0.1, 0.6, 0.1, colour),
    ]


def tent(w: float, h: float, d: float, colour: Colour) -> list[Part]:
    return [
        Part("cone", (0, h / 2, 0), (w * 1.08, h, d * 1.08), colour),
        _block(0, h * 0.25, d * 0.42, w * 0.3, h * 0.5, 0.1, _WHITE),
    ]


def ball(w: float, h: float, d: float, colour: Colour) -> list[Part]:
    return [Part("sphere", (0, h / 2, 0), (w, h, d), colour)]


def toy_box(w: float, h: float, d: float, colour: Colour) -> list[Part]:
    return [
        _block(0, h / 2, 0, w, h, d, colour),
        _block(-w / 4, h + 0.1, 0, 0.2, 0.2, 0.2, (250, 210, 60)),
        Part("sphere", (w / 5, h + 0.12, 0.02), (0.26, 0.26, 0.26), (220, 60, 60)),
        _block(0.02, h + 0.06, -0.1, 0.14, 0.12, 0.14, (60, 120, 220)),
    ]


def treadmill(w: float, h: float, d: float, colour: Colour) -> list[Part]:
    return [
        _block(0, 0.15, 0, w, 0.3, d, colour),
        _block(0, 0.305, 0.05, w * 0.7, 0.02, d * 0.85, _DARK),
        _block(-w / 2 + 0.04, h / 2, -d / 2 + 0.1, 0.07, h, 0.07, METAL),
        _block(w / 2 - 0.04, h / 2, -d / 2 + 0.1, 0.07, h, 0.07, METAL),
        _block(0, h - 0.1, -d / 2 + 0.12, w, 0.3, 0.1, colour),
    ]


def bench(w: float, h: float, d: float, colour: Colour) -> list[Part]:
    return [
        _block(0, h - 0.06, 0, w, 0.12, d, colour),
        _block(-w / 2 + 0.15, h / 2 - 0.06, 0, 0.08, h - 0.12, d * 0.8, METAL),
        _block(w / 2 - 0.15, h / 2 - 0.06, 0, 0.08, h - 0.12, d * 0.8, METAL),
    ]
