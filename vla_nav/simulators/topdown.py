"""Top-down maps of the walkable area, one per floor.

    heights of all standing places         the flat parts stand out; stairs spread thinly between
      2.9 m  ##################            floor 1
      2.0 m  #
      1.0 m  #
      0.0 m  ######################        floor 0

A place belongs to the floor nearest in height. Row r, column c of a map is the cell whose centre
is (x0 + (c + 1/2) cell, z0 + (r + 1/2) cell): +X to the right, -Z (yaw 0) upward.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from vla_nav.frozen import frozen

if TYPE_CHECKING:  # at run time a worker without trimesh reads this file, too
    from vla_nav.simulators.walkable import Walkable

_BIN_M = 0.1
_SHARE = 0.1  # of the largest floor's cells that make a height a floor
APART_M = 1.5  # floors are at least this far apart


@frozen
class FloorMap:
    """One floor: `is_walkable` (rows along +z, columns along +x) bool; metres."""

    height_m: float
    x0_m: float
    z0_m: float
    cell_m: float
    is_walkable: np.ndarray

    def to_plain(self) -> dict[str, Any]:
        """Plain values, for a worker's pipe."""
        return asdict(self)

    @staticmethod
    def from_plain(values: dict[str, Any]) -> FloorMap:
        """The map of `to_plain`'s values."""
        return FloorMap(**values)

    def pixel(self, x_m: np.ndarray, z_m: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Column and row (fractions) of points."""
        return (x_m - self.x0_m) / self.cell_m, (z_m - self.z0_m) / self.cell_m


def floor_maps(walkable: Walkable) -> list[FloorMap]:
    """The floors from below upward."""
    columns = walkable.columns
    nodes = np.flatnonzero(walkable.is_walkable)
    height = columns.height_m[nodes]
    floors = np.array(floor_heights(height))
    nearest = np.abs(height[:, None] - floors[None]).argmin(axis=1)
    maps = []
    for index, floor in enumerate(floors):
        grid = np.zeros(columns.num_z * columns.num_x, dtype=bool)
        grid[columns.column[nodes[nearest == index]]] = True
        maps.append(
            FloorMap(
                float(floor),
                float(columns.x0_m),
                float(columns.z0_m),
                float(columns.cell_m),
                grid.reshape(columns.num_z, columns.num_x),
            )
        )
    return maps


def floor_heights(height: np.ndarray) -> list[float]:
    """Heights in metres of the floors, from those of (n,) places spread evenly over the area."""
    bins = np.round(height / _BIN_M).astype(int)
    values, counts = np.unique(bins, return_counts=True)
    heights: list[float] = []
    for at in np.argsort(-counts, kind="stable"):
        value = values[at] * _BIN_M
        is_large = counts[at] >= _SHARE * counts.max()
        if is_large and all(abs(value - other) >= APART_M for other in heights):
            heights.append(float(np.median(height[bins == values[at]])))
    return sorted(heights)
