"""Distance from every node to the nearest obstacle, over the links between nodes.

Obstacles are known by pieces: a missing link is a segment across its cell, `gap` metres away; two
missing links that meet round a diagonal are a corner, exact in both coordinates:

      a | obstacle        a cannot go right (gap: exact x of the face)
      |  `-----           b can go right to c, c cannot go back up (gap: exact z of the face)
      b --- c             corner piece at (x of a's face, z of c's face)

Each node keeps the nearest piece it has heard of and tells its neighbours, so distances respect
walls without thickness and never reach from one floor to another.
"""

from __future__ import annotations

import math

import numpy as np

from vla_nav.simulators.columns import Columns

# Directions 0..3 are +x, +z, -x, -z; direction d and (d + 2) % 4 are opposite.
STEP_X = (1, 0, -1, 0)
STEP_Z = (0, 1, 0, -1)


def find_clearance(
    columns: Columns, links: np.ndarray, gap: np.ndarray, limit_m: float
) -> np.ndarray:
    """(N,) float32 metres to the nearest obstacle piece, capped at `limit_m`.

    links (N, 4) int32 and gap (N, 4) float32 as in `walkable.py`. After k rounds of telling, news
    has travelled k cells, so rounds stop at the limit.
    """
    pieces, owner = _pieces(columns, links, gap)  # (E, 4): x, z, half extents; (E,) node beside it
    num_nodes = len(links)
    distance = np.full(num_nodes, np.inf)
    nearest = np.zeros(num_nodes, np.int64)
    own = _distance(columns, owner, pieces)
    order = np.argsort(-own, kind="stable")  # the nearest piece is written last and stays
    distance[owner[order]] = own[order]
    nearest[owner[order]] = order
    is_news = np.isfinite(distance)
    for _ in range(math.ceil(limit_m / columns.cell_m) + 1):
        was_news, is_news = is_news, np.zeros(num_nodes, bool)
        for d in range(4):
            nodes = np.flatnonzero((links[:, d] >= 0) & was_news[links[:, d]])
            piece = nearest[links[nodes, d]]
            heard = _distance(columns, nodes, pieces[piece])
            is_better = heard < distance[nodes]
            nodes = nodes[is_better]
            distance[nodes] = heard[is_better]
            nearest[nodes] = piece[is_better]
            is_news[nodes] = True
        if not is_news.any():
            break
    return np.minimum(distance, limit_m).astype(np.float32)


def clearance_stencil(
    links: np.ndarray, gap: np.ndarray, clearance: np.ndarray, cell_m: float
) -> np.ndarray:
    """(N, 3, 3) float32 clearance at rows dz, columns dx = -1..1 cells round a node, for bilinear
    interpolation; extrapolated to 0 and below where obstacles are."""
    stencil = np.empty((len(links), 3, 3), np.float32)
    stencil[:, 1, 1] = clearance
    side = np.where(links >= 0, clearance[links], gap - cell_m)  # (N, 4)
    for d in range(4):
        stencil[:, 1 + STEP_Z[d], 1 + STEP_X[d]] = side[:, d]
    for dx, dz in ((0, 1), (0, 3), (2, 1), (2, 3)):
        by_x, by_z = links[:, dx], links[:, dz]
        via_x = np.where(by_x >= 0, side[by_x, dz], np.inf)  # first along x, then along z
        via_z = np.where(by_z >= 0, side[by_z, dx], np.inf)
        corner = np.minimum(via_x, via_z)
        both_blocked = np.minimum(side[:, dx], side[:, dz])
        corner = np.where(np.isfinite(corner), corner, both_blocked)
        stencil[:, 1 + STEP_Z[dz], 1 + STEP_X[dx]] = corner
    return stencil


def _pieces(columns: Columns, links: np.ndarray, gap: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Obstacle pieces (E, 4) float64 (x, z, half extent in x, z) and the node (E,) beside each."""
    half = columns.cell_m / 2
    pieces, owners = [], []
    for d in range(4):
        nodes = np.flatnonzero(links[:, d] < 0)
        piece = np.empty((len(nodes), 4))
        piece[:, 0] = columns.x_m[nodes] + STEP_X[d] * gap[nodes, d]
        piece[:, 1] = columns.z_m[nodes] + STEP_Z[d] * gap[nodes, d]
        piece[:, 2:] = half * abs(STEP_Z[d]), half * abs(STEP_X[d])
        pieces.append(piece)
        owners.append(nodes)
        for e in ((d + 1) % 4, (d + 3) % 4):
            b = links[nodes, e]
            a = nodes[b >= 0]
            b = b[b >= 0]
            c = links[b, d]
            is_corner = (c >= 0) & (links[c, (e + 2) % 4] < 0)
            a, b, c = a[is_corner], b[is_corner], c[is_corner]
            corner = np.zeros((len(a), 4))
            across, along = gap[a, d], gap[c, (e + 2) % 4]
            corner[:, 0] = np.where(
                STEP_X[d] != 0,
                columns.x_m[a] + STEP_X[d] * across,
                columns.x_m[c] - STEP_X[e] * along,
            )
            corner[:, 1] = np.where(
                STEP_Z[d] != 0,
                columns.z_m[a] + STEP_Z[d] * across,
                columns.z_m[c] - STEP_Z[e] * along,
            )
            pieces.append(corner)
            owners.append(b)
    return np.concatenate(pieces), np.concatenate(owners)


def _distance(columns: Columns, nodes: np.ndarray, pieces: np.ndarray) -> np.ndarray:
    dx = np.maximum(np.abs(columns.x_m[nodes] - pieces[:, 0]) - pieces[:, 2], 0)
    dz = np.maximum(np.abs(columns.z_m[nodes] - pieces[:, 1]) - pieces[:, 3], 0)
    return np.sqrt(dx * dx + dz * dz)
