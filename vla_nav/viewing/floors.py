"""The floors of an episode's map: from the scene where there is one, else from heights alone.

scene      floor maps of `simulators/topdown.py`, and a bare floor wherever a goal or the start
           stands 1.5 m or more from all of them (a goal on an island is never off the map)
no scene   one bare floor per group of heights of start, goals and the ends of paths

page       every floor is drawn; a point belongs to the floor nearest in height
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from PIL import Image

from vla_nav.episodes.types import Embodiment, Episode
from vla_nav.files import atomic_path
from vla_nav.simulators.topdown import FloorMap
from vla_nav.viewing.content import Track, number

APART_M = 1.5
_WALKABLE, _WALL = (236, 238, 240, 255), (70, 74, 84, 255)
_MARGIN_CELLS = 3


@dataclass(frozen=True, slots=True)
class Floor:
    """A height, and the picture of the walkable area there: file, x0, z0, width, height (m)."""

    height_m: float
    image: str | None = None
    box: tuple[float, float, float, float] | None = None

    def as_json(self) -> dict[str, Any]:
        """Plain values for the page."""
        return {"height": number(self.height_m), "image": self.image, "box": self.box}


def episode_floors(
    episode: Episode, tracks: Sequence[Track], scene: Sequence[Floor]
) -> list[Floor]:
    """The floors on which something of the episode can stand, from below upward."""
    heights = [episode.start_pose.position[1], *(goal.position[1] for goal in episode.goals)]
    heights += (
        [float(point[1]) for point in episode.reference_path[[0, -1]]]
        if len(episode.reference_path)
        else []
    )
    heights += [spot[1] for track in tracks for spot in (*track.spots[:1], *track.spots[-1:])]
    floors = list(scene)
    for height in _finite(heights):
        if all(abs(height - floor.height_m) >= APART_M for floor in floors):
            floors.append(Floor(height))
    return sorted(floors, key=lambda floor: floor.height_m)


class SceneFloors:
    """The maps of scenes as image files, made once per scene and body."""

    def __init__(self, root: Path, folder: str) -> None:
        """root: of the page; folder: below it, for the images."""
        self._root, self._folder = root, folder

    def write(self, scene_id: str, body: Embodiment, maps: Iterable[FloorMap]) -> list[Floor]:
        """Write one PNG per floor: a pixel is a cell, the border is cut off."""
        name = xxhash.xxh3_64_hexdigest(f"{scene_id}|{body.radius_m}|{body.height_m}".encode())
        floors = []
        for index, floor in enumerate(maps):
            cells, row, column = _cropped(floor.is_walkable)
            file = f"{self._folder}/{name}-{index}.png"
            pixels = np.where(cells[..., None], np.uint8(_WALKABLE), np.uint8(_WALL))
            with atomic_path(self._root / file) as temporary:
                Image.fromarray(pixels.astype(np.uint8)).save(temporary, format="PNG")
            cell = floor.cell_m
            box = (
                number(floor.x0_m + column * cell),
                number(floor.z0_m + row * cell),
                number(cells.shape[1] * cell),
                number(cells.shape[0] * cell),
            )
            floors.append(Floor(floor.height_m, file, box))
        return floors


def _cropped(is_walkable: np.ndarray) -> tuple[np.ndarray, int, int]:
    """The cells around the walkable area with a margin, and the row and column they begin at."""
    padded = np.pad(is_walkable, _MARGIN_CELLS)
    rows, columns = (np.flatnonzero(padded.any(axis=axis)) for axis in (1, 0))
    top, left = rows[0] - _MARGIN_CELLS, columns[0] - _MARGIN_CELLS
    part = padded[top : rows[-1] + _MARGIN_CELLS + 1, left : columns[-1] + _MARGIN_CELLS + 1]
    return part, int(top) - _MARGIN_CELLS, int(left) - _MARGIN_CELLS


def _finite(values: Iterable[float]) -> list[float]:
    return [float(value) for value in values if math.isfinite(value)]
