"""The visibility graph of the walkable area: what shortest paths are made of.

A shortest path is straight except at convex corners of obstacles, so a graph over those corners
(and over portals between sheets) holds every bend that a path can have. On each sheet the border
of the walkable area is a contour of the clearance; lines of sight are Embree rays against these
contours, stood up as walls at a height of their own per sheet.

        . . . . . . . . g          corners o of the obstacle grown by the agent's radius;
      .  o------o . '              an edge is kept where its line touches the obstacle at both
    s'   |######| '                ends without cutting in (bitangent) and nothing is in between
     '.  o------o
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from skimage.measure import find_contours

from vla_nav.simulators.rays import RayScene
from vla_nav.simulators.sheets import Sheets, find_sheets
from vla_nav.simulators.walkable import Walkable

_WALL_INSIDE_M = 0.004  # walls stand this far inside the radius, so that touching is seeing
_CORNER_OUTSIDE_M = 0.003  # corners lie this far outside of it
_MIN_TURN_SIN = 1e-4  # flatter bends of a contour are straight
_ALONG_SIN = 2e-4  # a line this near to a contour's direction runs along it
_SHEET_SPACING = 2.0  # sheets are stacked at these heights for the rays only
_PAIRS_AT_ONCE = 4_000_000


@dataclass(frozen=True, slots=True)
class VisibilityGraph:
    """V vertices; `on_sheet[s]` are those that can be seen on sheet s."""

    sheets: Sheets
    points: np.ndarray  # (V, 3) float64 metres, world
    on_sheet: tuple[np.ndarray, ...]  # each (v,) int64
    graph: sp.csr_matrix  # (V, V) lengths in metres, both directions
    walls: RayScene

    def is_visible(self, sheet: int, start: np.ndarray, points: np.ndarray) -> np.ndarray:
        """(n,) bool: whether points (n, 3) are in straight walkable reach of start, (3,) or
        (n, 3), on a sheet."""
        origins = np.empty((len(points), 3), np.float32)
        origins[:] = start
        directions = (points - start).astype(np.float32)
        origins[:, 1] = sheet * _SHEET_SPACING
        directions[:, 1] = 0
        return ~self.walls.is_blocked(origins, directions, 1.0)


def find_visibility(walkable: Walkable) -> VisibilityGraph:
    """Build the graph of a walkable area."""
    sheets = find_sheets(walkable)
    columns = walkable.columns
    height = columns.height_m
    wall_vertices, corners, on_sheet = [], [], []
    num_vertices = len(sheets.portals)
    portal = sheets.portals[:, 0]
    portal_sheets = np.stack([sheets.label[portal], sheets.portals[:, 1]], 1)
    neighbours = [np.full((num_vertices, 4), np.nan)]
    for s, members in enumerate(sheets.members):
        image, node, x0, z0 = _sheet_image(walkable, members)
        walls = find_contours(image, walkable.radius_m - _WALL_INSIDE_M)
        wall_vertices += [_quads(_to_world(c, x0, z0, columns.cell_m), s) for c in walls]
        found = [_corners(c) for c in find_contours(image, walkable.radius_m + _CORNER_OUTSIDE_M)]
        found = np.concatenate(found) if found else np.zeros((0, 3, 2))  # (v, before|at|after, 2)
        cell = np.rint(found[:, 1]).astype(np.int64)
        nodes = node[cell[:, 0], cell[:, 1]]
        is_own = (nodes >= 0) & (sheets.label[nodes] == s)  # the apron's belong to its own sheet
        found, nodes = _to_world(found[is_own], x0, z0, columns.cell_m), nodes[is_own]
        corners.append(np.stack([found[:, 1, 0], height[nodes], found[:, 1, 1]], 1))
        neighbours.append(np.concatenate([found[:, 0], found[:, 2]], 1))
        here = np.arange(num_vertices, num_vertices + len(found))
        num_vertices += len(found)
        on_sheet.append(np.concatenate([np.flatnonzero((portal_sheets == s).any(1)), here]))

    portal_points = np.stack([columns.x_m[portal], height[portal], columns.z_m[portal]], 1)
    points = np.concatenate([portal_points, *corners])
    quads = np.concatenate(wall_vertices).reshape(-1, 3)
    first = np.arange(0, len(quads), 4)[:, None]
    faces = np.concatenate([first + np.array([0, 1, 2]), first + np.array([0, 2, 3])])
    graph = VisibilityGraph(
        sheets, points, tuple(on_sheet), sp.csr_matrix((0, 0)), RayScene(quads, faces)
    )
    edges = [
        _edges(graph, s, vertices, np.concatenate(neighbours))
        for s, vertices in enumerate(on_sheet)
    ]
    a, b = np.concatenate(edges, axis=1)
    length = np.linalg.norm(points[a] - points[b], axis=1)
    matrix = sp.csr_matrix(
        (np.tile(length, 2), (np.append(a, b), np.append(b, a))), (num_vertices, num_vertices)
    )
    return VisibilityGraph(sheets, points, tuple(on_sheet), matrix, graph.walls)


def _sheet_image(
    walkable: Walkable, members: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Clearance (rows z, columns x) of a sheet with a border inside obstacles, the node of each
    pixel (-1 for none), and the world x, z of pixel (0, 0)."""
    columns = walkable.columns
    ix, iz = columns.column[members] % columns.num_x, columns.column[members] // columns.num_x
    low_x, low_z = ix.min() - 2, iz.min() - 2
    ix, iz = ix - low_x, iz - low_z
    shape = (iz.max() + 3, ix.max() + 3)
    outside = np.full(shape, -np.inf, np.float32)
    for dz in (-1, 0, 1):
        for dx in (-1, 0, 1):
            value = walkable.stencil_m[members, 1 + dz, 1 + dx]
            there = iz + dz, ix + dx
            outside[there] = np.maximum(outside[there], np.minimum(value, 0))
    image = np.where(np.isfinite(outside), outside, -columns.cell_m)
    image[iz, ix] = walkable.clearance_m[members]
    node = np.full(shape, -1, np.int64)
    node[iz, ix] = members
    x0 = columns.x0_m + (low_x + 0.5) * columns.cell_m
    z0 = columns.z0_m + (low_z + 0.5) * columns.cell_m
    return image, node, x0, z0


def _to_world(row_column: np.ndarray, x0: float, z0: float, cell_m: float) -> np.ndarray:
    """(..., 2) pixel (row, column) to (x, z) metres."""
    return row_column[..., ::-1] * cell_m + (x0, z0)


def _corners(contour: np.ndarray) -> np.ndarray:
    """(v, 3, 2): the points of a closed contour where the obstacle is convex, each between the
    points before and after. Contours run with the low (obstacle) side on their left."""
    at = contour[:-1]
    before, after = np.roll(at, 1, axis=0), np.roll(at, -1, axis=0)
    come, go = at - before, after - at
    cross = come[:, 0] * go[:, 1] - come[:, 1] * go[:, 0]
    length = np.linalg.norm(come, axis=1) * np.linalg.norm(go, axis=1)
    is_corner = cross > _MIN_TURN_SIN * np.maximum(length, 1e-12)
    return np.stack([before, at, after], 1)[is_corner]


def _quads(contour: np.ndarray, sheet: int) -> np.ndarray:
    """(n, 4, 3) upright rectangles along a contour (m, 2) of x, z; straight runs are one."""
    come, go = contour[1:-1] - contour[:-2], contour[2:] - contour[1:-1]
    is_bend = np.abs(come[:, 0] * go[:, 1] - come[:, 1] * go[:, 0]) > 1e-9
    line = contour[np.concatenate([[True], is_bend, [True]])]
    quads = np.empty((len(line) - 1, 4, 3), np.float32)
    quads[:, :2, 0], quads[:, :2, 2] = line[:-1, None, 0], line[:-1, None, 1]
    quads[:, 2:, 0], quads[:, 2:, 2] = line[1:, None, 0], line[1:, None, 1]
    quads[:, [0, 3], 1] = sheet * _SHEET_SPACING - 0.5
    quads[:, [1, 2], 1] = sheet * _SHEET_SPACING + 0.5
    return quads


def _edges(
    graph: VisibilityGraph, sheet: int, vertices: np.ndarray, neighbours: np.ndarray
) -> np.ndarray:
    """(2, E) pairs of vertices of a sheet that see each other along a bitangent."""
    points = graph.points[vertices]
    x, z = points[:, 0], points[:, 2]
    beside = neighbours[vertices]  # (v, 4): x, z of the contour point before and after; NaN: portal
    rows_at_once = max(1, _PAIRS_AT_ONCE // max(len(vertices), 1))
    touches = np.concatenate(
        [
            _touches(x, z, beside, slice(first, first + rows_at_once))
            for first in range(0, max(len(vertices), 1), rows_at_once)
        ]
    )
    a, b = np.nonzero(np.triu(touches & touches.T, 1))
    is_seen = graph.is_visible(sheet, points[a], points[b])
    return np.stack([vertices[a[is_seen]], vertices[b[is_seen]]])


def _touches(x: np.ndarray, z: np.ndarray, beside: np.ndarray, rows: slice) -> np.ndarray:
    """(rows, v) bool: the line from a vertex of `rows` to each vertex leaves the row vertex's
    contour on one side, or runs along it.

    With u the direction to the contour point before or after, side = distance * sin of the angle
    between the line and u; the contour is cut where the two sides have opposite signs."""
    row_x, row_z = x[rows], z[rows]
    others = np.stack([x, z, np.ones_like(x), x * x + z * z])  # (4, v)
    sides = []
    for k in (0, 2):
        u_x, u_z = beside[rows, k] - row_x, beside[rows, k + 1] - row_z
        length = np.maximum(np.hypot(u_x, u_z), 1e-12)
        u_x, u_z = u_x / length, u_z / length
        sides.append(np.stack([u_z, -u_x, u_x * row_z - u_z * row_x], 1) @ others[:3])
    ones = np.ones_like(row_x)
    squared_m2 = np.stack([-2 * row_x, -2 * row_z, row_x**2 + row_z**2, ones], 1) @ others
    product = sides[0] * sides[1]
    squared_m2 *= -_ALONG_SIN
    return ~(product < squared_m2)  # NaN compares false: there is nothing to cut at a portal
