"""Scenes whose every coordinate is known, for the suite that all backends must pass.

Plan views in metres, +x right, +z down; all open from above, floors at y = 0.
"""

from __future__ import annotations

from mesh_scenes import SceneBuilder

HALL = (0.0, 0.0, 10.0, 8.0)  # low x, low z, high x, high z


def hall() -> SceneBuilder:
    """An empty hall: walls and a floor."""
    return SceneBuilder().room(*HALL)


def divided() -> SceneBuilder:
    """Two rooms of 4 x 6 m; a wall between them, open at its lower end (z > 4).

    +-----+-----+
    |     #     |    the wall x 3.95 .. 4.05, z 0 .. 4
    |     #     |
    |           |
    +-----------+
    """
    return SceneBuilder().room(0, 0, 8, 6).box((3.95, 0, 0), (4.05, 2, 4))


def apart() -> SceneBuilder:
    """Two rooms of 4 x 4 m (left) and 2 x 4 m that no door joins."""
    return SceneBuilder().room(0, 0, 6.2, 4).box((4, 0, 0), (4.2, 2.4, 4))


def door(gap_m: float) -> SceneBuilder:
    """Two rooms of 3 x 4 m with a door of `gap_m` in the middle of the wall between."""
    scene = SceneBuilder().room(0, 0, 6.1, 4)
    scene.box((3, 0, 0), (3.1, 2, 2 - gap_m / 2))
    return scene.box((3, 0, 2 + gap_m / 2), (3.1, 2, 4))


def wide_door() -> SceneBuilder:
    """A door of 0.9 m."""
    return door(0.9)


def narrow_door() -> SceneBuilder:
    """A door of 0.26 m: no agent of radius 0.18 fits."""
    return door(0.26)


def slanted() -> SceneBuilder:
    """A hall with a thick wall at 45 degrees: occupied where x + z > 8."""
    scene = SceneBuilder().room(0, 0, 8, 8)
    return scene.quad([[0, 0, 8], [8, 0, 0], [8, 2.5, 0], [0, 2.5, 8]])


def ledges() -> SceneBuilder:
    """A hall with a sill of 0.1 m at x 3 .. 3.6 and a block of 0.6 m at x 6 .. 7."""
    scene = SceneBuilder().room(0, 0, 9, 4).box((3, 0, 0), (3.6, 0.1, 4))
    return scene.box((6, 0, 0), (7, 0.6, 4))


def storeys() -> SceneBuilder:
    """Two floors 2.8 m apart, joined by 16 stairs of 0.175 m rise and 0.3 m tread along +x.

    side view                    ________ y = 2.8, x from 7.8
                             _.-'
        y = 0  ___________.-'             stairs x 3.0 .. 7.8, z 0 .. 1.2
    """
    scene = SceneBuilder().box((0, -0.1, 0), (12, 0, 4))
    for step in range(16):
        low = 3.0 + 0.3 * step
        scene.box((low, 0, 0), (low + 0.3, 0.175 * (step + 1), 1.2))
    scene.box((7.8, 2.7, 0), (12, 2.8, 4)).box((3.0, 2.7, 1.3), (7.8, 2.8, 4))
    scene.box((0, 5.6, 0), (12, 5.7, 4))
    for low, high in (
        ((-0.1, 0, -0.1), (0, 5.6, 4.1)),
        ((12, 0, -0.1), (12.1, 5.6, 4.1)),
        ((0, 0, -0.1), (12, 5.6, 0)),
        ((0, 0, 4), (12, 5.6, 4.1)),
        ((3.0, 0, 1.2), (7.8, 5.6, 1.3)),
    ):
        scene.box(low, high)
    return scene


FURNISHED_BOXES = (
    ((-0.1, -0.1, -0.1), (6.1, 0.0, 4.1)),
    ((-0.1, 0.0, -0.1), (0.0, 2.5, 4.1)),
    ((6.0, 0.0, -0.1), (6.1, 2.5, 4.1)),
    ((-0.1, 0.0, -0.1), (6.0, 2.5, 0.0)),
    ((-0.1, 0.0, 4.0), (6.0, 2.5, 4.1)),
    ((1.0, 0.0, 0.4), (1.8, 0.9, 1.2)),  # a chest
    ((4.2, 0.0, 2.6), (5.2, 1.7, 3.4)),  # a cupboard
    ((2.6, 1.1, 0.3), (3.4, 1.5, 0.5)),  # a shelf in the air
)


def furnished() -> SceneBuilder:
    """A room of 6 x 4 m with three boxes in it: `FURNISHED_BOXES`."""
    scene = SceneBuilder()
    for index, (low, high) in enumerate(FURNISHED_BOXES):
        shade = 60 + 23 * index
        scene.box(low, high, rgb=(shade, 255 - shade, 120))
    return scene


MARKS = (  # name, centre of a cube of 0.16 m, colour
    ("red", (2.2, 1.7, 1.2), (255, 0, 0)),
    ("green", (3.6, 1.1, 0.9), (0, 255, 0)),
    ("blue", (2.9, 0.5, 1.6), (0, 0, 255)),
)
MARK_M = 0.16


def marked() -> SceneBuilder:
    """A grey hall with three coloured cubes in the air, north (-z) of (3, 0, 4)."""
    scene = SceneBuilder().box((0, -0.1, 0), (6, 0, 6), rgb=(90, 90, 90))
    for _, centre, rgb in MARKS:
        low = [value - MARK_M / 2 for value in centre]
        high = [value + MARK_M / 2 for value in centre]
        scene.box(low, high, rgb=rgb)
    return scene
