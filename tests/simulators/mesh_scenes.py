"""Small scenes with known geometry, written to real GLB, PLY and OBJ files for the simulator tests.

Plan views are in metres; +x right, +z down (so yaw 0 looks up the page).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import trimesh

from vla_nav.episodes.types import Camera, Embodiment
from vla_nav.simulators.mesh import MeshSimulator

WHITE = (255, 255, 255)


def embodiment(
    *,
    radius_m: float = 0.18,
    turn_deg: float = 30.0,
    step_m: float = 0.25,
    is_sliding: bool = True,
    cameras: tuple[Camera, ...] = (Camera("front", 16, 16, 90.0, 1.25),),
) -> Embodiment:
    return Embodiment(cameras, radius_m, 1.5, turn_deg, step_m, is_sliding)


class SceneBuilder:
    """Collects boxes and sheets and writes them to a file."""

    def __init__(self) -> None:
        self.scene = trimesh.Scene()

    def add(self, mesh: trimesh.Trimesh, name: str | None = None) -> SceneBuilder:
        name = name or f"part_{len(self.scene.geometry)}"
        self.scene.add_geometry(mesh, node_name=name, geom_name=name)
        return self

    def box(self, low, high, *, rgb=WHITE, name=None) -> SceneBuilder:
        low, high = np.array(low, float), np.array(high, float)
        mesh = trimesh.creation.box(high - low)
        mesh.apply_translation((low + high) / 2)
        material = trimesh.visual.material.PBRMaterial(baseColorFactor=[*rgb, 255])
        mesh.visual = trimesh.visual.TextureVisuals(material=material)
        return self.add(mesh, name)

    def quad(self, corners, *, name=None) -> SceneBuilder:
        """A single-sided rectangle without thickness, four corners counter-clockwise."""
        mesh = trimesh.Trimesh(corners, [[0, 1, 2], [0, 2, 3]], process=False)
        return self.add(mesh, name)

    def room(self, low_x, low_z, high_x, high_z, *, y=0.0, height=2.5) -> SceneBuilder:
        """A floor and four walls of 0.1 m outside of it, no ceiling."""
        self.box((low_x - 0.1, y - 0.1, low_z - 0.1), (high_x + 0.1, y, high_z + 0.1))
        self.box((low_x - 0.1, y, low_z - 0.1), (low_x, y + height, high_z + 0.1))
        self.box((high_x, y, low_z - 0.1), (high_x + 0.1, y + height, high_z + 0.1))
        self.box((low_x, y, low_z - 0.1), (high_x, y + height, low_z))
        self.box((low_x, y, high_z), (high_x, y + height, high_z + 0.1))
        return self

    def write(self, path: Path) -> Path:
        path.write_bytes(self.scene.export(file_type=path.suffix[1:]))
        return path


def load(builder: SceneBuilder, folder: Path, **options) -> MeshSimulator:
    """A simulator with the scene loaded; `options` go to `embodiment`, `cell_m` to the grid."""
    grid = {key: options.pop(key) for key in ("cell_m", "max_climb_m") if key in options}
    simulator = MeshSimulator(embodiment(**options), **grid)
    simulator.load_scene(str(builder.write(folder / "scene.glb")))
    return simulator


def two_floors_with_stairs() -> SceneBuilder:
    """Two floors 2.8 m apart, 14 steps of 0.2 m rise and 0.3 m tread along +x, and a ceiling.

    side view                    ________ y = 2.8, x from 7.2
                             _.-'
        y = 0  ___________.-'             stairs x 3.0 .. 7.2, z 0 .. 1.2
    """
    builder = SceneBuilder().box((0, -0.1, 0), (12, 0, 4))
    for step in range(14):
        low = 3.0 + 0.3 * step
        builder.box((low, 0, 0), (low + 0.3, 0.2 * (step + 1), 1.2))
    builder.box((7.2, 2.7, 0), (12, 2.8, 4))
    builder.box((3.0, 2.7, 1.3), (7.2, 2.8, 4))
    builder.box((0, 5.6, 0), (12, 5.7, 4))
    for low, high in (
        ((-0.1, 0, -0.1), (0, 5.6, 4.1)),
        ((12, 0, -0.1), (12.1, 5.6, 4.1)),
        ((0, 0, -0.1), (12, 5.6, 0)),
        ((0, 0, 4), (12, 5.6, 4.1)),
        ((3.0, 0, 1.2), (7.2, 5.6, 1.3)),
    ):
        builder.box(low, high)
    return builder


def crowded_hall(seed: int) -> SceneBuilder:
    """A 9 x 7 m hall full of turned boxes, columns and thin walls, all at random places."""
    rng = np.random.default_rng(seed)
    builder = SceneBuilder().room(0, 0, 9, 7)
    for k in range(24):
        if k % 3 == 0:
            mesh = trimesh.creation.box((rng.uniform(0.3, 1.0), 1.6, rng.uniform(0.3, 1.0)))
        elif k % 3 == 1:
            mesh = trimesh.creation.cylinder(rng.uniform(0.15, 0.5), 1.6)
            mesh.apply_transform(trimesh.transformations.rotation_matrix(np.pi / 2, (1, 0, 0)))
        else:
            mesh = trimesh.creation.box((rng.uniform(1.0, 2.5), 1.6, 0.06))
        turn = trimesh.transformations.rotation_matrix(rng.uniform(0, 2 * np.pi), (0, 1, 0))
        turn[:3, 3] = rng.uniform(0.5, 8.5), 0.79, rng.uniform(0.5, 6.5)
        builder.add(mesh.apply_transform(turn))
    return builder
