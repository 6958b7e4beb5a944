"""Geodesic distances and shortest paths over the walkable area."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import dijkstra

from vla_nav.simulators.walkable import Walkable


class Field(NamedTuple):
    """Distances (N,) float64 metres to one goal, inf where there is no way, and the next node."""

    goal: tuple[float, float, float]
    distance_m: np.ndarray
    following: np.ndarray


class Geodesics:
    def __init__(self, walkable: Walkable) -> None:
        self._walkable = walkable
        columns = walkable.columns
        links = np.where(
            walkable.is_walkable[walkable.links] & (walkable.links >= 0), walkable.links, -1
        )
        links[~walkable.is_walkable] = -1
        self._links = links
        rows, others = [], []

        def go(nodes, *ds):
            out = nodes
            for d in ds:
                out = np.where(out >= 0, links[out, d], -1)
            return out

        every = np.flatnonzero(walkable.is_walkable)
        for d in range(4):
            e = (d + 1) % 4
            moves = [((d,), (d,)), ((d, e), (e, d)), ((d, d, e), (d, e, d)), ((d, e, e), (e, d, e))]
            for first, second in moves:
                a, b = go(every, *first), go(every, *second)
                ok = (a >= 0) & (a == b)
                rows.append(every[ok])
                others.append(a[ok])
        rows, others = np.concatenate(rows), np.concatenate(others)
        length = np.sqrt(
            (columns.x_m[rows] - columns.x_m[others]) ** 2
            + (columns.z_m[rows] - columns.z_m[others]) ** 2
            + (columns.height_m[rows] - columns.height_m[others]) ** 2
        )
        n = len(links)
        self._graph = sp.csr_matrix((length, (rows, others)), (n, n))

    def field(self, node: int) -> Field:
        distance, following = dijkstra(
            self._graph, directed=False, indices=node, return_predecessors=True
        )
        c = self._walkable.columns
        return Field((c.x_m[node], c.height_m[node], c.z_m[node]), distance, following)

    def path(self, field: Field, node: int) -> np.ndarray:
        """(P, 3) node centres from `node` to the goal."""
        c = self._walkable.columns
        nodes = [node]
        while field.following[nodes[-1]] >= 0:
            nodes.append(int(field.following[nodes[-1]]))
        index = np.array(nodes)
        return np.stack([c.x_m[index], c.height_m[index], c.z_m[index]], axis=1)
