"""Geodesic distances and shortest paths: one field per goal, then every query is a few rays.

A field holds the distance D from every vertex of the visibility graph to the goal. The distance
from a point p is then the best first leg:   d(p) = min over v seen from p of |p - v| + D(v)
with the goal itself as one of the v. Candidates are tried from the best bound upwards, so the first
one in sight is the answer.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import dijkstra

from vla_nav.simulators.visibility import VisibilityGraph

_BATCH = 48  # candidates tried at once; grows fourfold


class Place(NamedTuple):
    """A walkable point (3,) float64 and the sheet that it is on."""

    point: np.ndarray
    sheet: int


class FirstLeg(NamedTuple):
    """Distance to the goal in metres and the vertex to head for: -1 the goal, -2 no way."""

    distance_m: float
    vertex: int


NO_WAY = FirstLeg(math.inf, -2)


class GoalField:
    """Distances to one goal."""

    def __init__(self, graph: VisibilityGraph, goal: Place) -> None:
        self._graph = graph
        self._goal = goal
        vertices = graph.on_sheet[goal.sheet]
        points = graph.points[vertices]
        seen = graph.is_visible(goal.sheet, goal.point, points)
        self.is_hidden = len(seen) > 0 and not seen.any()  # sees no vertex of its sheet
        legs = np.linalg.norm(points[seen] - goal.point, axis=1)
        # The goal joins the graph as one more vertex with edges outward.
        lengths = graph.graph
        num_vertices = lengths.shape[0]
        joined = sp.csr_matrix(
            (
                np.append(lengths.data, legs),
                np.append(lengths.indices, vertices[seen]),
                np.append(lengths.indptr, len(lengths.data) + len(legs)),
            ),
            (num_vertices + 1, num_vertices + 1),
        )
        distance, before = dijkstra(joined, indices=num_vertices, return_predecessors=True)
        self._distance_m = distance[:-1]
        self._next = np.where(before[:-1] == num_vertices, -1, before[:-1]).tolist()
        self._candidates: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}

    def first_leg(self, place: Place) -> FirstLeg:
        """The shortest way from a place to the goal."""
        vertices, points, distance_m = self._sheet_candidates(place.sheet)
        offset = points - place.point
        bound = np.sqrt(np.einsum("ij,ij->i", offset, offset)) + distance_m
        tried, batch = 0, _BATCH
        order = None
        while tried < len(bound):
            if order is None and batch < len(bound):
                some = np.argpartition(bound, batch)[:batch]
                some = some[bound[some].argsort()]
            else:
                order = bound.argsort() if order is None else order
                some = order[tried : tried + batch]
            seen = self._graph.is_visible(place.sheet, place.point, points[some])
            first = int(seen.argmax())
            if seen[first]:
                best = some[first]
                if not math.isfinite(bound[best]):
                    return NO_WAY
                return FirstLeg(float(bound[best]), int(vertices[best]))
            if order is None:
                order = bound.argsort()
            tried += len(some)
            batch *= 4
        return NO_WAY

    def path(self, place: Place, leg: FirstLeg) -> np.ndarray:
        """(P, 3) float64 points from the place to the goal, both included."""
        chain = []
        vertex = leg.vertex
        while vertex >= 0:
            chain.append(vertex)
            vertex = self._next[vertex]
        return np.concatenate(
            [place.point[None], self._graph.points[chain], self._goal.point[None]]
        )

    def _sheet_candidates(self, sheet: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Vertices (v,), their points (v, 3) and distances (v,) on a sheet, the goal as -1."""
        found = self._candidates.get(sheet)
        if found is None:
            vertices = self._graph.on_sheet[sheet]
            vertices = vertices[np.isfinite(self._distance_m[vertices])]
            points, distance_m = self._graph.points[vertices], self._distance_m[vertices]
            if sheet == self._goal.sheet:
                vertices = np.append(vertices, -1)
                points = np.concatenate([points, self._goal.point[None]])
                distance_m = np.append(distance_m, 0.0)
            found = self._candidates[sheet] = vertices, points, distance_m
        return found
