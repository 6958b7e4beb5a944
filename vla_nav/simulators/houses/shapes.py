"""Solid shapes as coloured quadrilaterals: boxes, cylinders, cones and spheres, all at once.

Every shape is a template of quads inside the unit cube centred at the origin; a part is a template
scaled, moved and coloured. A house holds a thousand parts, so they are built together with numpy:

    corners (Q, 4, 3) float64, counter-clockwise seen from outside     colours (Q, 3) uint8

A quad is two triangles, (0, 1, 2) and (0, 2, 3). `refine` cuts it into `detail` x `detail` pieces.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

Vector = tuple[float, float, float]
Colour = tuple[int, int, int]

_NUM_SIDES = 8  # of cylinders, cones and spheres; even


class Part(NamedTuple):
    """One shape: a template's name, its box (centre and size, metres) and its colour.

    `face_colours` (boxes only) gives the colours of the sides -x, +x, -y, +y, -z, +z instead.
    """

    shape: str
    centre: Vector
    size: Vector
    colour: Colour
    face_colours: tuple[Colour, ...] | None = None


def box(low: Vector, high: Vector, colour: Colour) -> Part:
    """The box between two corners."""
    return Part("box", _middle(low, high), _extent(low, high), colour)


def box_of_faces(low: Vector, high: Vector, face_colours: tuple[Colour, ...]) -> Part:
    """The box between two corners with one colour a side: -x, +x, -y, +y, -z, +z."""
    return Part("box", _middle(low, high), _extent(low, high), face_colours[3], face_colours)


def plate(x0: float, z0: float, x1: float, z1: float, y: float, colour: Colour, side: str) -> Part:
    """A horizontal rectangle that looks `up` or `down`."""
    return Part(f"plate_{side}", ((x0 + x1) / 2, y, (z0 + z1) / 2), (x1 - x0, 0, z1 - z0), colour)


def quads_of_parts(parts: Sequence[Part]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Corners (Q, 4, 3) float64, colours (Q, 3) uint8 and the number of quads of each part (N,).

    Quads come in the order of the parts.
    """
    counts = np.array([len(_TEMPLATES[part.shape]) for part in parts], dtype=np.int64)
    first = np.concatenate([[0], np.cumsum(counts)])
    corners = np.empty((int(first[-1]), 4, 3))
    colours = np.empty((int(first[-1]), 3), dtype=np.uint8)
    for shape, template in _TEMPLATES.items():
        chosen = [i for i, part in enumerate(parts) if part.shape == shape]
        if not chosen:
            continue
        sizes = np.array([parts[i].size for i in chosen])  # (n, 3)
        centres = np.array([parts[i].centre for i in chosen])
        rows = first[chosen][:, None] + np.arange(len(template))  # (n, quads)
        corners[rows] = template * sizes[:, None, None] + centres[:, None, None]
        colours[rows] = np.array([parts[i].colour for i in chosen], dtype=np.uint8)[:, None]
    for i, part in enumerate(parts):
        if part.face_colours is not None:
            colours[first[i] : first[i + 1]] = part.face_colours
    return corners, colours, counts


def refine(corners: np.ndarray, colours: np.ndarray, detail: int) -> tuple[np.ndarray, np.ndarray]:
    """Cut each quad (Q, 4, 3) into detail x detail pieces; the surface stays the same."""
    if detail == 1:
        return corners, colours
    steps = np.arange(detail + 1) / detail
    s, t = steps[:, None, None], steps[None, :, None]
    a, b, c, d = (corners[:, i, None, None] for i in range(4))
    grid = (1 - s) * (1 - t) * a + s * (1 - t) * b + s * t * c + (1 - s) * t * d  # (Q, n+1, n+1, 3)
    pieces = np.stack(
        [grid[:, :-1, :-1], grid[:, 1:, :-1], grid[:, 1:, 1:], grid[:, :-1, 1:]], axis=3
    )
    return pieces.reshape(-1, 4, 3), np.repeat(colours, detail * detail, axis=0)


def quarter_turned(part: Part, num_quarters: int) -> Part:
    """The part turned about +Y through the origin by quarter turns, counter-clockwise from above.

    One quarter takes +Z (front) to +X:  (x, z) -> (z, -x).
    """
    x, y, z = part.centre
    width, height, depth = part.size
    colours = part.face_colours
    for _ in range(num_quarters % 4):
        x, z, width, depth = z, -x, depth, width
        if colours is not None:
            west, east, down, up, north, south = colours  # -x, +x, -y, +y, -z, +z
            colours = (north, south, down, up, east, west)
    return Part(part.shape, (x, y, z), (width, height, depth), part.colour, colours)


def moved(part: Part, offset: Vector) -> Part:
    """The part shifted by `offset`."""
    x, y, z = part.centre
    return part._replace(centre=(x + offset[0], y + offset[1], z + offset[2]))


def _middle(low: Vector, high: Vector) -> Vector:
    return ((low[0] + high[0]) / 2, (low[1] + high[1]) / 2, (low[2] + high[2]) / 2)


def _extent(low: Vector, high: Vector) -> Vector:
    return (high[0] - low[0], high[1] - low[1], high[2] - low[2])


def _box_template() -> np.ndarray:
    """Quads of -x, +x, -y, +y, -z, +z."""
    a, b = -0.5, 0.5
    return np.array(
        [
            [(a, a, a), (a, a, b), (a, b, b), (a, b, a)],
            [(b, a, b), (b, a, a), (b, b, a), (b, b, b)],
            [(a, a, a), (b, a, a), (b, a, b), (a, a, b)],
            [(a, b, b), (b, b, b), (b, b, a), (a, b, a)],
            [(b, a, a), (a, a, a), (a, b, a), (b, b, a)],
            [(a, a, b), (b, a, b), (b, b, b), (a, b, b)],
        ]
    )


def _rotational_template(profile: Sequence[tuple[float, float]]) -> np.ndarray:
    """A surface of rotation about y: `profile` lists (radius, y) from the bottom to the top."""
    angles = 2 * math.pi * (np.arange(_NUM_SIDES + 1) + 0.5) / _NUM_SIDES
    ring = np.stack([np.cos(angles), np.sin(angles)], axis=1)  # (sides + 1, 2)
    quads = []
    for (radius0, y0), (radius1, y1) in pairwise(profile):
        for side in range(_NUM_SIDES):
            (x0, z0), (x1, z1) = ring[side], ring[side + 1]
            quads.append(
                [
                    (radius0 * x1, y0, radius0 * z1),
                    (radius0 * x0, y0, radius0 * z0),
                    (radius1 * x0, y1, radius1 * z0),
                    (radius1 * x1, y1, radius1 * z1),
                ]
            )
    return np.array(quads)


def _sphere_profile(num_rings: int) -> list[tuple[float, float]]:
    angles = [math.pi * i / num_rings for i in range(num_rings + 1)]
    return [(0.5 * math.sin(a), -0.5 * math.cos(a)) for a in angles]


# The end quads of a rotation surface have two equal corners: one of their two triangles is empty.
_TEMPLATES = {
    "box": _box_template(),
    "plate_up": _box_template()[3:4] * (1, 0, 1),  # one quad seen from above
    "plate_down": _box_template()[2:3] * (1, 0, 1),  # one quad seen from below
    "cylinder": _rotational_template([(0.0, -0.5), (0.5, -0.5), (0.5, 0.5), (0.0, 0.5)]),
    "cone": _rotational_template([(0.0, -0.5), (0.5, -0.5), (0.0, 0.5)]),
    "sphere": _rotational_template(_sphere_profile(4)),
}
