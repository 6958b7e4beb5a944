"""Standing places: where an agent's feet may be, found by vertical rays over a grid of columns.

Every column of the grid is pierced from above; each surface that faces up enough and leaves the
agent's height free above it is a node (so one column may hold several: floors above floors).

      ray                     node: a surface with headroom above
       |
    ---+---- roof      o      (open sky above: see `walkable.py`)
    ---+---- ceiling
       |
    ---+---- floor 1   o
    ---+---- ceiling
       |  == table     x      headroom above is fine, but the floor below it has none
    ---+---- floor 0   x

The inside of a closed solid (a cabinet) is told by its back faces: nothing stands in there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from vla_nav.simulators.rays import DOWN, UP, RayScene

GRID_SHIFT_M = 0.0137  # keeps cell centres off the round coordinates that walls like to have
_SKIN_M = 1e-3  # surfaces nearer than this to each other count as one
_MAX_LAYERS = 256


@dataclass(frozen=True, slots=True)
class Columns:
    """N nodes over a grid of num_x x num_z columns, sorted by column, then height.

    A cell (ix, iz) covers [x0 + ix * cell, x0 + (ix + 1) * cell) and likewise in z; its rays and
    nodes are at the centre. `start[column] .. start[column + 1]` are a column's nodes, where
    column = iz * num_x + ix.
    """

    cell_m: float
    x0_m: float
    z0_m: float
    num_x: int
    num_z: int
    start: np.ndarray  # (num_x * num_z + 1,) int32
    column: np.ndarray  # (N,) int32
    x_m: np.ndarray  # (N,) float64
    z_m: np.ndarray  # (N,) float64
    height_m: np.ndarray  # (N,) float64
    slope: np.ndarray  # (N, 2) float64: d height / dx, d height / dz of the surface
    has_open_sky: np.ndarray  # (N,) bool: nothing above

    def only(self, is_kept: np.ndarray) -> Columns:
        """The same grid with some of the nodes, is_kept (N,) bool."""
        column = self.column[is_kept]
        return replace(
            self,
            start=np.searchsorted(column, np.arange(len(self.start))).astype(np.int32),
            column=column,
            x_m=self.x_m[is_kept],
            z_m=self.z_m[is_kept],
            height_m=self.height_m[is_kept],
            slope=self.slope[is_kept],
            has_open_sky=self.has_open_sky[is_kept],
        )


def find_columns(
    rays: RayScene,
    bounds: np.ndarray,
    *,
    cell_m: float,
    agent_height_m: float,
    max_slope_deg: float,
) -> Columns:
    """Pierce a mesh with bounds (2, 3) metres and keep the places with floor and headroom."""
    low = np.floor((bounds[0] - GRID_SHIFT_M) / cell_m) * cell_m + GRID_SHIFT_M
    num_x, _, num_z = (int(n) for n in np.floor((bounds[1] - low) / cell_m) + 1)
    centre_x = low[0] + (np.arange(num_x) + 0.5) * cell_m
    centre_z = low[2] + (np.arange(num_z) + 0.5) * cell_m

    column, height, normal = _pierce(rays, centre_x, centre_z, bounds[1][1] + 1.0)
    is_top = np.ones(len(column), bool)  # the column's highest surface
    is_top[:-1] = column[1:] != column[:-1]
    headroom = np.full(len(column), np.inf)
    headroom[:-1] = np.where(is_top[:-1], np.inf, height[1:] - height[:-1])
    above_is_back = np.zeros(len(column), bool)
    above_is_back[:-1] = (normal[1:, 1] > 0) & ~is_top[:-1]
    roomy = np.flatnonzero(headroom >= agent_height_m)
    column, height, normal = column[roomy], height[roomy], normal[roomy].astype(np.float64)
    is_top, above_is_back = is_top[roomy], above_is_back[roomy]

    up = np.abs(normal[:, 1]) / np.maximum(np.sqrt((normal**2).sum(1)), 1e-20)
    fits = up >= np.cos(np.radians(max_slope_deg))
    suspects = np.flatnonzero(fits & above_is_back)
    x, z = centre_x[column % num_x], centre_z[column // num_x]
    if len(suspects):
        middle = np.stack([x[suspects], height[suspects] + agent_height_m / 2, z[suspects]], axis=1)
        fits[suspects[_is_inside_solid(rays, middle)]] = False
    slope = -normal[:, [0, 2]] / np.where(up > 0, normal[:, 1], 1)[:, None]
    kept = np.flatnonzero(fits)
    start = np.searchsorted(column[kept], np.arange(num_x * num_z + 1)).astype(np.int32)
    return Columns(
        cell_m=cell_m,
        x0_m=float(low[0]),
        z0_m=float(low[2]),
        num_x=num_x,
        num_z=num_z,
        start=start,
        column=column[kept].astype(np.int32),
        x_m=x[kept],
        z_m=z[kept],
        height_m=height[kept],
        slope=slope[kept],
        has_open_sky=is_top[kept],
    )


def _pierce(
    rays: RayScene, centre_x: np.ndarray, centre_z: np.ndarray, top_m: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every surface below `top_m`, sorted by column, then height: column (n,) int32, height (n,)
    float64 and normal (n, 3) float32, not normalised."""
    origins = np.empty((len(centre_z), len(centre_x), 3), np.float32)
    origins[..., 0] = centre_x
    origins[..., 1] = top_m
    origins[..., 2] = centre_z[:, None]
    origins = origins.reshape(-1, 3)
    live = np.arange(len(origins), dtype=np.int32)
    columns, heights, normals = [], [], []
    for _ in range(_MAX_LAYERS):
        hits = rays.first_hits(origins, DOWN)
        found = hits.face >= 0
        if not found.any():
            break
        live, origins = live[found], origins[found]
        height = origins[:, 1] - hits.distance[found]
        columns.append(live)
        heights.append(height)
        normals.append(hits.normal[found])
        origins[:, 1] = height - _SKIN_M
    if not columns:
        return np.zeros(0, np.int32), np.zeros(0), np.zeros((0, 3), np.float32)
    column = np.concatenate(columns[::-1])  # from below upward: a stable sort keeps that order
    order = np.argsort(column, kind="stable")
    height = np.concatenate(heights[::-1]).astype(np.float64)
    return column[order], height[order], np.concatenate(normals[::-1])[order]


def _is_inside_solid(rays: RayScene, points: np.ndarray) -> np.ndarray:
    """(n,) bool: at least 3 of 4 horizontal views, and the one upward, meet back faces."""
    origins = np.ascontiguousarray(points, np.float32)
    num_back = np.zeros(len(points), np.int32)
    for direction in ((1, 0, 0), (-1, 0, 0), (0, 0, 1), (0, 0, -1)):
        row = np.array([direction], np.float32)
        hits = rays.first_hits(origins, row)
        num_back += (hits.face >= 0) & (hits.normal @ row[0] > 0)
    above = rays.first_hits(origins, UP)
    return (num_back >= 3) & (above.face >= 0) & (above.normal[:, 1] > 0)
