"""Checks of distances, goals and paths: D301 to D307.

The geodesic distance is the length of a walk, so it is at least the straight line to the nearest
goal; R2R-CE stores it in single precision, which is off by a micrometre. In ObjectNav the walk ends
at a view point of the object, not at the object, so the success radius is allowed for there.
"""

from __future__ import annotations

import math
from typing import Any

from vla_nav.episodes.checks.findings import Tally
from vla_nav.episodes.types import Episode

_TOLERANCE_M = 0.01
_FLOOR_M = 1.5  # more height between start and goal than a step or a ramp within a floor
_START_TOLERANCE_M = 0.5


class GeometryCheck:
    """Geodesic against straight line, floors, ends of the path."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._num_episodes = self._num_without = 0

    def see(self, episode: Episode) -> None:
        """Look at one episode."""
        self._num_episodes += 1
        start = episode.start_pose.position
        if not episode.goals:
            self._num_without += 1
            return
        nearest = min(math.dist(start, goal.position) for goal in episode.goals)
        info = episode.metadata.get("info")
        stored = info.get("geodesic_distance") if isinstance(info, dict) else None
        if isinstance(stored, int | float) and not isinstance(stored, bool):
            self._geodesic(episode, _as_float(stored), nearest)
        heights = [abs(goal.position[1] - start[1]) for goal in episode.goals]
        if min(heights) > _FLOOR_M:
            self._tally.add("D303", episode, "goals", f"{min(heights):.1f} m above or below")
        self._path(episode)

    def close(self) -> dict[str, Any]:
        """Findings over all episodes; facts for the report."""
        if self._num_without:
            self._tally.add_whole("D307", "goals", "none", count=self._num_without)
        return {}

    def _geodesic(self, episode: Episode, stored: float, nearest: float) -> None:
        key = "info.geodesic_distance"
        if not math.isfinite(stored) or stored < 0:
            self._tally.add("D302", episode, key, f"{stored}")
            return
        slack = _TOLERANCE_M
        if "object_category" in episode.metadata:
            slack += max(goal.radius_m for goal in episode.goals)
        if stored < nearest - slack:
            text = f"{stored:.3f} m, the straight line has {nearest:.3f} m"
            self._tally.add("D301", episode, key, text)
        if any(stored < goal.radius_m for goal in episode.goals):
            self._tally.add("D306", episode, key, f"{stored:.2f} m from start to goal")

    def _path(self, episode: Episode) -> None:
        path = episode.reference_path
        if len(path) == 0:
            return
        off = math.dist(path[0], episode.start_pose.position)
        if off > _START_TOLERANCE_M:
            self._tally.add("D305", episode, "reference_path", f"begins {off:.2f} m away")
        far = min(math.dist(path[-1], goal.position) - goal.radius_m for goal in episode.goals)
        if far > 0:
            text = f"ends {far:.2f} m outside the nearest goal's radius"
            self._tally.add("D304", episode, "reference_path", text)


def _as_float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:  # an integer of hundreds of digits
        return math.inf
