"""The scenes and the body that the tests of the habitat backend walk in."""

from __future__ import annotations

import os
from pathlib import Path

from mesh_scenes import SceneBuilder, embodiment, two_floors_with_stairs

from vla_nav.episodes.types import Camera
from vla_nav.simulators.opening import SimulatorSetup

FRONT = Camera("front", 32, 24, 90.0, 1.25, has_depth=True)
DOWN = Camera("down", 16, 16, 60.0, 1.0, pitch_deg=-30.0)
BODY = embodiment(cameras=(FRONT, DOWN))
RED, BLUE = (200, 40, 30), (30, 60, 200)


def setup(**options) -> SimulatorSetup:
    return SimulatorSetup("habitat", options, os.environ["VLA_NAV_HABITAT_PYTHON"], 120.0)


def room() -> SceneBuilder:
    """6 x 4 m, a red wall at the end z = 0 and a blue pillar beside it."""
    builder = SceneBuilder().room(0, 0, 6, 4)
    builder.box((0, 0, -0.05), (6, 2.5, 0.001), rgb=RED, name="red")
    return builder.box((4.5, 0, 1), (5.0, 2.5, 1.5), rgb=BLUE, name="blue")


def written(folder: Path) -> dict[str, str]:
    """Name -> scene file."""
    return {
        "room": str(room().write(folder / "room.glb")),
        "stairs": str(two_floors_with_stairs().write(folder / "stairs.glb")),
    }
