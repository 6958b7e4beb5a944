"""The walkable area of a mesh for an agent of given radius and height, over any number of floors.

Nodes (`columns.py`) of neighbouring columns are linked where the height difference can be climbed
and no geometry stands between (horizontal probes at several heights, so walls without thickness
count). Every missing link is a piece of obstacle; the clearance of a node (`clearance.py`) is its
distance to the nearest one:

      o---o---o | o        |  wall found by a probe: the gap to it is exact
      |   |   | |
      o---o---o            no node there (table, ledge): the obstacle is taken half a cell away

A point is walkable where the clearance, interpolated bilinearly between nodes, is at least the
agent's radius. Areas under open sky are dropped where others are covered (roofs), and so are areas
too small to live in (table tops).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from vla_nav.errors import UserError
from vla_nav.simulators.clearance import STEP_X, STEP_Z, clearance_stencil, find_clearance
from vla_nav.simulators.columns import Columns, find_columns
from vla_nav.simulators.rays import RayScene
from vla_nav.simulators.stage import Stage

_CLEARANCE_BEYOND_RADIUS_M = 0.35  # clearance is exact up to the radius plus this
_MIN_ISLAND_M2 = 4.0
_PROBE_SPACING_M = 0.45
_TOLERANCE_M = 1e-4


@dataclass(frozen=True, slots=True)
class Walkable:
    """Where an agent may stand. N nodes; a node's cell is `cell_m` square (see `Columns`)."""

    columns: Columns
    radius_m: float
    max_climb_m: float
    links: np.ndarray  # (N, 4) int32 node in direction d, -1 where the way is blocked
    clearance_m: np.ndarray  # (N,) float32
    stencil_m: (
        np.ndarray
    )  # (N, 3, 3) float32 clearance at (dz, dx) = -1..1 cells; <= 0 in obstacles
    is_walkable: np.ndarray  # (N,) bool
    island: np.ndarray  # (N,) int32 connected area, -1 where not walkable


def find_walkable(
    stage: Stage,
    rays: RayScene,
    *,
    radius_m: float,
    height_m: float,
    cell_m: float = 0.1,
    max_climb_m: float = 0.25,
    max_slope_deg: float = 45.0,
) -> Walkable:
    """The walkable area of `stage`.

    Raises `UserError` where there is none and for a grid too coarse for the agent."""
    if not cell_m > 0 or radius_m < 0.75 * cell_m:
        raise UserError(
            f"cell_m {cell_m:g} is too coarse for an agent of radius {radius_m:g} m; "
            f"use a cell_m in (0, {radius_m / 0.75:g}]"
        )
    if height_m <= max_climb_m:
        raise UserError(f"agent height_m {height_m:g} must exceed max_climb_m {max_climb_m:g}")
    bounds = np.stack([stage.vertices.min(0), stage.vertices.max(0)]).astype(np.float64)
    columns = find_columns(
        rays, bounds, cell_m=cell_m, agent_height_m=height_m, max_slope_deg=max_slope_deg
    )
    if len(columns.column) == 0:
        raise UserError(
            f"{stage.path}: no floor with {height_m:g} m of headroom; "
            "check the scene's up axis and unit (metres)"
        )
    columns = _drop_roofs(columns, max_climb_m)
    links, gap = _link(columns, rays, max_climb_m, height_m)
    clearance = find_clearance(columns, links, gap, radius_m + _CLEARANCE_BEYOND_RADIUS_M)
    is_walkable = clearance >= radius_m - _TOLERANCE_M
    island = _islands(columns, links, is_walkable)
    is_walkable = island >= 0
    if not is_walkable.any():
        raise UserError(
            f"{stage.path}: no walkable area for an agent of radius {radius_m:g} m and height "
            f"{height_m:g} m; check the scene's unit (metres) and the agent's size"
        )
    return Walkable(
        columns=columns,
        radius_m=radius_m,
        max_climb_m=max_climb_m,
        links=links,
        clearance_m=clearance,
        stencil_m=clearance_stencil(links, gap, clearance, cell_m),
        is_walkable=is_walkable,
        island=island,
    )


def _link(
    columns: Columns, rays: RayScene, max_climb_m: float, height_m: float
) -> tuple[np.ndarray, np.ndarray]:
    """links (N, 4) int32 and, where one is missing, gap (N, 4) float32 metres to the obstacle."""
    num_nodes = len(columns.column)
    links = np.full((num_nodes, 4), -1, np.int32)
    for d in (0, 1):
        other = _neighbour(columns, d, max_climb_m)
        nodes = np.flatnonzero(other >= 0)
        partner = other[nodes]
        base = np.maximum(columns.height_m[nodes], columns.height_m[partner])
        blocked = np.zeros(len(nodes), bool)
        for level in _probe_levels(max_climb_m, height_m):
            origins = _origins(columns, nodes, base + level)
            blocked |= rays.is_blocked(origins, _direction(d), columns.cell_m)
        nodes, partner = nodes[~blocked], partner[~blocked]
        links[nodes, d] = partner
        links[partner, d + 2] = nodes

    gap = np.full((num_nodes, 4), columns.cell_m / 2, np.float32)
    for d in range(4):
        nodes = np.flatnonzero(links[:, d] < 0)
        nearest = np.full(len(nodes), columns.cell_m, np.float32)
        for level in _probe_levels(max_climb_m, height_m):
            origins = _origins(columns, nodes, columns.height_m[nodes] + level)
            nearest = np.minimum(nearest, rays.distances(origins, _direction(d), columns.cell_m))
        gap[nodes, d] = np.where(nearest < columns.cell_m, nearest, columns.cell_m / 2)
    return links, gap


def _neighbour(columns: Columns, d: int, max_climb_m: float) -> np.ndarray:
    """(N,) int32 node of the next column in direction `d` nearest in height; -1 beyond reach."""
    ix, iz = columns.column % columns.num_x, columns.column // columns.num_x
    jx, jz = ix + STEP_X[d], iz + STEP_Z[d]
    is_inside = (jx < columns.num_x) & (jz < columns.num_z)
    column = np.where(is_inside, jz * columns.num_x + jx, 0)
    first, count = columns.start[column], columns.start[column + 1] - columns.start[column]
    count = np.where(is_inside, count, 0)
    best = np.full(len(ix), -1, np.int32)
    best_climb = np.full(len(ix), max_climb_m)
    for slot in range(int(count.max(initial=0))):
        node = np.where(slot < count, first + slot, 0)
        climb = np.abs(columns.height_m[node] - columns.height_m)
        is_better = (slot < count) & (climb <= best_climb)
        best[is_better] = node[is_better]
        best_climb[is_better] = climb[is_better]
    return best


def _probe_levels(max_climb_m: float, height_m: float) -> np.ndarray:
    """Heights above the floor at which obstacles are probed: just over the climb up to the head."""
    low, high = max_climb_m + 0.02, max(height_m - 0.02, max_climb_m + 0.02)
    return np.linspace(low, high, max(2, math.ceil((high - low) / _PROBE_SPACING_M) + 1))


def _origins(columns: Columns, nodes: np.ndarray, height_m: np.ndarray) -> np.ndarray:
    origins = np.empty((len(nodes), 3), np.float32)
    origins[:, 0] = columns.x_m[nodes]
    origins[:, 1] = height_m
    origins[:, 2] = columns.z_m[nodes]
    return origins


def _direction(d: int) -> np.ndarray:
    return np.array([[STEP_X[d], 0, STEP_Z[d]]], np.float32)


def _drop_roofs(columns: Columns, max_climb_m: float) -> Columns:
    """Without the places that cannot be climbed to from a covered floor, before they cost rays."""
    if not columns.has_open_sky.any() or columns.has_open_sky.all():
        return columns
    ways = [_neighbour(columns, d, max_climb_m) for d in (0, 1)]
    everywhere = np.ones(len(columns.column), bool)
    return columns.only(_areas(columns, ways, everywhere) >= 0)


def _islands(columns: Columns, links: np.ndarray, is_walkable: np.ndarray) -> np.ndarray:
    """(N,) int32 label of each walkable node's connected area, -1 elsewhere and where dropped."""
    return _areas(columns, [links[:, 0], links[:, 1]], is_walkable)


def _areas(columns: Columns, ways: list[np.ndarray], is_member: np.ndarray) -> np.ndarray:
    """(N,) int32 label of each member's connected area, -1 for other nodes and dropped areas.

    ways: per direction the linked node of each node (N,), -1 for none. Open-sky areas are dropped
    where covered ones exist, and so are areas much smaller than the largest.
    """
    num_nodes = len(is_member)
    rows, others = [], []
    for way in ways:
        nodes = np.flatnonzero(is_member & (way >= 0) & is_member[way])
        rows.append(nodes)
        others.append(way[nodes])
    rows, others = np.concatenate(rows), np.concatenate(others)
    graph = sp.csr_matrix((np.ones(len(rows), bool), (rows, others)), (num_nodes, num_nodes))
    count, label = connected_components(graph, directed=False)

    area_m2 = np.bincount(label[is_member], minlength=count) * columns.cell_m**2
    open_m2 = columns.cell_m**2 * np.bincount(
        label[is_member], weights=columns.has_open_sky[is_member], minlength=count
    )
    kept = area_m2 > 0
    is_covered = kept & (open_m2 < 0.5 * area_m2)
    least_m2 = min(_MIN_ISLAND_M2, 0.25 * area_m2.max(initial=0))
    if area_m2[is_covered].max(initial=0) >= least_m2:
        kept &= is_covered
    kept &= area_m2 >= min(_MIN_ISLAND_M2, 0.25 * area_m2[kept].max(initial=0))

    numbered = np.where(kept, np.cumsum(kept) - 1, -1)
    return np.where(is_member, numbered[label], -1).astype(np.int32)
