"""habitat-sim's navigation mesh: loaded or computed for the body, sampled, and drawn as maps.

    found beside the scene --load--+
                                   +--> pathfinder    every query needs `is_loaded`: without a
    the scene's triangles --build--+                  mesh the library crashes the process

A computed mesh is eroded by the agent's radius, rounded up to cells; its heights are multiples of
`cell_height_m`, so agents stand up to one cell above the floor.
"""

from __future__ import annotations

import math
from typing import Any

import habitat_sim
import numpy as np

from vla_nav.episodes.types import Embodiment
from vla_nav.errors import UserError, unknown_name
from vla_nav.frozen import frozen
from vla_nav.simulators.habitat_scene import HabitatScene
from vla_nav.simulators.topdown import APART_M, FloorMap, floor_heights

CHOICES = ("auto", "file", "matching", "recompute")
_MAP_CELL_M = 0.1
_HEIGHT_SAMPLES = 4000
_MAX_DRAWS = 20


@frozen
class NavmeshSettings:
    """choice: "file" (must be there), "recompute" (for the body), "auto" (a file if there is one,
    as VLN-CE does) or "matching" (a file if it was computed for this body with these settings, as
    habitat-lab 0.2.5 and later does). The rest is how a mesh is computed, in metres and degrees;
    habitat-sim's defaults."""

    choice: str = "auto"
    cell_m: float = 0.05
    cell_height_m: float = 0.2
    max_climb_m: float = 0.2
    max_slope_deg: float = 45.0

    def check(self) -> None:
        """Raise `UserError` for a choice that is not one of `CHOICES`."""
        if self.choice not in CHOICES:
            raise unknown_name("simulators.options.navmesh", str(self.choice), CHOICES)


def ready_navmesh(
    simulator: Any, scene: HabitatScene, body: Embodiment, settings: NavmeshSettings
) -> None:
    """Give the simulator's pathfinder a navigation mesh, or raise `UserError`."""
    pathfinder = simulator.pathfinder
    if settings.choice != "recompute":
        if scene.navmesh is not None and not pathfinder.load_nav_mesh(scene.navmesh):
            raise UserError(
                f"{scene.navmesh}: not a navigation mesh that habitat-sim "
                f"{habitat_sim.__version__} reads; download it again, or set "
                "simulators.options.navmesh=recompute"
            )
        if pathfinder.is_loaded:  # by us, or by the data set's own config
            is_kept = settings.choice != "matching"
            if is_kept or pathfinder.nav_mesh_settings == _wanted(scene, body, settings):
                return
        if settings.choice == "file":
            raise UserError(
                f"{scene.path}: no navigation mesh beside it; download the scene with its "
                ".navmesh, or set simulators.options.navmesh=recompute"
            )
    is_built = simulator.recompute_navmesh(pathfinder, _wanted(scene, body, settings))
    if not is_built or not pathfinder.is_loaded or not pathfinder.navigable_area > 0:
        raise UserError(
            f"{scene.path}: no floor for an agent of radius {body.radius_m:g} m and height "
            f"{body.height_m:g} m; check the scene, its up axis (simulators.options.up_axis) and "
            "simulators.embodiment"
        )


def triangles(pathfinder: Any) -> np.ndarray:
    """(n, 3 corners, 3) float64 of the navigation mesh, metres, world."""
    vertices = np.array(
        [list(vertex) for vertex in pathfinder.build_navmesh_vertices()], np.float64
    )
    return vertices[np.array(pathfinder.build_navmesh_vertex_indices(), np.int64).reshape(-1, 3)]


def random_point(pathfinder: Any, rng: np.random.Generator) -> tuple[float, float, float]:
    """A walkable point, uniform by area. Drawn here and not by the library, whose generator is
    the C library's and shared by the process."""
    corners = triangles(pathfinder)
    shares = np.cumsum(_areas(corners))
    for _ in range(_MAX_DRAWS):
        which, u, v = rng.random(3)
        a, b, c = corners[np.searchsorted(shares, which * shares[-1], side="right")]
        if u + v > 1:
            u, v = 1 - u, 1 - v
        point = a + u * (b - a) + v * (c - a)
        snapped = np.array(list(pathfinder.snap_point(point.astype(np.float32))), np.float64)
        if np.isfinite(snapped).all() and math.dist(snapped, point) < 1.0:
            return tuple(snapped.tolist())
    raise UserError("the navigation mesh has no point to stand on; compute it again")


def floors(pathfinder: Any) -> list[FloorMap]:
    """Top-down maps, one per floor."""
    corners = triangles(pathfinder)
    areas = _areas(corners)
    counts = np.maximum(np.round(areas / areas.sum() * _HEIGHT_SAMPLES), 0).astype(int)
    heights = np.repeat(corners[:, :, 1].mean(axis=1), counts)
    low = np.array(list(pathfinder.get_bounds()[0]), np.float64)
    maps = []
    for height in floor_heights(heights):
        grid = np.array(pathfinder.get_topdown_view(_MAP_CELL_M, height, APART_M / 2), bool)
        x0, z0 = float(low[0]) - _MAP_CELL_M / 2, float(low[2]) - _MAP_CELL_M / 2
        maps.append(FloorMap(height, x0, z0, _MAP_CELL_M, grid))
    return maps


def _wanted(scene: HabitatScene, body: Embodiment, settings: NavmeshSettings) -> Any:
    wanted = habitat_sim.NavMeshSettings()
    wanted.set_defaults()
    wanted.agent_radius = body.radius_m
    wanted.agent_height = body.height_m
    wanted.agent_max_climb = settings.max_climb_m
    wanted.agent_max_slope = settings.max_slope_deg
    wanted.cell_size = settings.cell_m
    wanted.cell_height = settings.cell_height_m
    if scene.has_objects:  # versions before 0.3 have no such setting
        wanted.include_static_objects = True
    return wanted


def _areas(corners: np.ndarray) -> np.ndarray:
    edges = corners[:, 1:] - corners[:, :1]  # (n, 2, 3)
    return np.linalg.norm(np.cross(edges[:, 0], edges[:, 1]), axis=1) / 2
