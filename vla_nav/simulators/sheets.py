"""Sheets: pieces of the walkable area that a plan view shows without overlap and at one slope.

Straight lines are only shortest on a surface that is flat seen from the side, so floors and
stairs are sheets of their own, joined where they meet (portals):

    side view        __________ 2        plan view of sheet 1 with its apron (two cells of 0 and 2)
                    /                          . . 1 1 1 1 . .
                   /  1                        . . 1 1 1 1 . .
       0 _________/
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from vla_nav.simulators.walkable import Walkable

_LEVEL_STEP_M = 0.03  # neighbours that differ by more in height are stairs or a ramp
_MIN_FLAT_M2 = 0.5  # smaller level pieces (treads) belong to the stairs around them
_APRON_CELLS = 2


@dataclass(frozen=True, slots=True)
class Sheets:
    """label (N,) int32: sheet of each node, -1 for places that no kept area reaches; members[s]:
    the nodes of sheet s and its apron; portals (Q, 2) int32: (node, sheet across the seam)."""

    label: np.ndarray
    members: tuple[np.ndarray, ...]
    portals: np.ndarray


def find_sheets(walkable: Walkable) -> Sheets:
    """Split the nodes that are connected with the walkable area into sheets."""
    links, height = walkable.links, walkable.columns.height_m
    nodes, d = np.nonzero(links[:, :2] >= 0)
    pairs = np.stack([nodes, links[nodes, d]])  # (2, L) each link once
    reach = _components(len(links), pairs)
    is_reached = np.zeros(reach.max(initial=0) + 1, bool)
    is_reached[reach[walkable.is_walkable]] = True
    is_kept = is_reached[reach]
    pairs = pairs[:, is_kept[pairs[0]]]

    is_steep = np.zeros(len(links), bool)
    steps = pairs[:, np.abs(height[pairs[0]] - height[pairs[1]]) > _LEVEL_STEP_M]
    is_steep[steps] = True
    if is_steep.any():
        label = _components(len(links), pairs[:, is_steep[pairs[0]] == is_steep[pairs[1]]])
        is_small = np.bincount(label) * walkable.columns.cell_m**2 < _MIN_FLAT_M2
        is_steep |= is_small[label]
        label = _components(len(links), pairs[:, is_steep[pairs[0]] == is_steep[pairs[1]]])
    else:
        label = reach
    label = _without_overlap(walkable, label, pairs)
    kept_labels = np.unique(label[is_kept])
    label = np.where(is_kept, np.searchsorted(kept_labels, label), -1).astype(np.int32)
    return _with_aprons(walkable, label, len(kept_labels))


def _components(num_nodes: int, pairs: np.ndarray) -> np.ndarray:
    graph = sp.csr_matrix(
        (np.ones(pairs.shape[1], bool), (pairs[0], pairs[1])), (num_nodes, num_nodes)
    )
    return connected_components(graph, directed=False)[1]


def _without_overlap(walkable: Walkable, label: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """Split labels that hold two nodes of one column (a spiral stair) by their order in height."""
    columns = walkable.columns
    key = label.astype(np.int64) * len(columns.start) + columns.column
    order = np.argsort(key, kind="stable")  # nodes are sorted by height within a column
    is_first = np.append(True, key[order][1:] != key[order][:-1])
    if is_first.all():
        return label
    position = np.arange(len(order))
    rank = np.empty(len(order), np.int64)
    rank[order] = position - np.maximum.accumulate(np.where(is_first, position, 0))
    split = label.astype(np.int64) * (rank.max() + 1) + rank
    return _components(len(label), pairs[:, split[pairs[0]] == split[pairs[1]]])


def _with_aprons(walkable: Walkable, label: np.ndarray, count: int) -> Sheets:
    links, column, num_nodes = walkable.links, walkable.columns.column, len(label)
    own = np.flatnonzero(label >= 0)
    order = own[np.argsort(label[own], kind="stable")]
    bounds = np.searchsorted(label[order], np.arange(count + 1))
    members = [order[bounds[s] : bounds[s + 1]] for s in range(count)]

    nodes, d = np.nonzero((links >= 0) & (label[links] != label[:, None]) & (label >= 0)[:, None])
    if len(nodes) == 0:
        return Sheets(label, tuple(members), np.zeros((0, 2), np.int32))
    across = label[links[nodes, d]]
    is_portal = walkable.is_walkable[nodes] & walkable.is_walkable[links[nodes, d]]
    is_portal &= label[nodes] < across
    portals = np.unique(np.stack([nodes, across], 1)[is_portal], axis=0).astype(np.int32)

    for s in np.unique(label[nodes]):
        edge = np.unique(links[nodes[label[nodes] == s], d[label[nodes] == s]])
        taken = np.zeros(len(walkable.columns.start) - 1, bool)
        taken[column[members[s]]] = True
        apron = []
        for _ in range(_APRON_CELLS):
            edge = edge[~taken[column[edge]]]
            edge = edge[np.unique(column[edge], return_index=True)[1]]
            taken[column[edge]] = True
            apron.append(edge)
            edge = np.unique(links[edge])
            edge = edge[edge >= 0]
        members[s] = np.concatenate([members[s], *apron])
    assert all((m < num_nodes).all() for m in members)
    return Sheets(label, tuple(members), portals)
