"""Ray queries on a triangle mesh through Embree: the one place that talks to `embreex`.

Rays are (n, 3) float32 origins and directions; one direction row serves every origin. Distances
are in units of the direction's length, so a direction with planar z of 1 yields planar depth.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from embreex import rtcore_scene
from embreex.mesh_construction import TriangleMesh

DOWN = np.array([[0.0, -1.0, 0.0]], np.float32)
UP = np.array([[0.0, 1.0, 0.0]], np.float32)


class Hits(NamedTuple):
    """First hits of n rays: triangle (n,) int32, -1 for none; distance (n,) float32, huge for none;
    barycentric u, v (n,) float32 (weights of the triangle's second and third corner); unnormalised
    triangle normals (n, 3) float32, on the side given by the winding."""

    face: np.ndarray
    distance: np.ndarray
    u: np.ndarray
    v: np.ndarray
    normal: np.ndarray


class RayScene:
    """An Embree scene over vertices (V, 3) float32 and faces (F, 3) int32."""

    def __init__(self, vertices: np.ndarray, faces: np.ndarray) -> None:
        self._scene = rtcore_scene.EmbreeScene()
        TriangleMesh(
            self._scene,
            np.ascontiguousarray(vertices, np.float32),
            np.ascontiguousarray(faces, np.int32),
        )
        self._scene.run(np.zeros((1, 3), np.float32), DOWN)  # the first query builds the tree

    def first_hits(self, origins: np.ndarray, directions: np.ndarray) -> Hits:
        """The first triangle that each ray meets."""
        out = self._scene.run(origins, directions, output=True)
        return Hits(out["primID"], out["tfar"], out["u"], out["v"], out["Ng"])

    def distances(
        self, origins: np.ndarray, directions: np.ndarray, limit: float | np.ndarray
    ) -> np.ndarray:
        """(n,) float32 distance to the first hit, `limit` where nothing is nearer."""
        limits = np.full(len(origins), limit, np.float32)
        return self._scene.run(origins, directions, dists=limits, query="DISTANCE")

    def is_blocked(
        self, origins: np.ndarray, directions: np.ndarray, limit: float | np.ndarray
    ) -> np.ndarray:
        """(n,) bool: whether anything lies on the ray before `limit`."""
        limits = np.full(len(origins), limit, np.float32)
        return self._scene.run(origins, directions, dists=limits, query="OCCLUDED") == 0
