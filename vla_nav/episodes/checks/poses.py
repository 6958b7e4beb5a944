"""Checks of rotations, numbers and start headings: D101 to D105.

    [x, y, z, w] = [0, sin a/2, 0, cos a/2]     an agent that stands, turned by a
    read from     [w, x, y, z] = [cos a/2, 0, sin a/2, 0]: x and z hold what y and w should

A start heading need not look along the path (R2R's are about uniform). But where most differ from
the first edge of their path by one same angle that is not 0, or agree with it once negated, an axis
or a sign is wrong.
"""

from __future__ import annotations

import cmath
import math
from typing import Any

import numpy as np

from vla_nav.episodes.checks.findings import Tally
from vla_nav.episodes.checks.tracks import has_measured_poses, heading_of
from vla_nav.episodes.types import Episode

UNIT_TOLERANCE = 1e-3
_LEVEL_TOLERANCE = 1e-3  # of x and z in a level rotation
_MIN_EDGE_M = 0.2  # shorter first edges have no direction
_MIN_EPISODES = 20
_MIN_CONCENTRATION = 0.5  # mean resultant length; 0 uniform, 1 all equal
_MAX_MEAN_OFF_DEG = 45.0  # wrong axes are off by 90 or 180; curved starts by less
_MAX_NUMBERS = 100_000  # of one metadata entry that are looked at
_DEPTH = 16


class PoseCheck:
    """Rotations, finiteness, and headings against paths."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._num_edges = 0
        self._sum = self._sum_negated = 0j

    def see(self, episode: Episode) -> None:
        """Look at one episode."""
        self._rotation(episode, episode.start_pose.rotation, "start_rotation")
        for number, step in enumerate(episode.steps):
            self._rotation(episode, step.pose.rotation, f"steps[{number}].pose.rotation")
        self._numbers(episode)
        self._first_edge(episode)

    def close(self) -> dict[str, Any]:
        """Findings over all episodes; facts for the report."""
        if self._num_edges < _MIN_EPISODES:
            return {}
        mean, negated = self._sum / self._num_edges, self._sum_negated / self._num_edges
        degrees = math.degrees(cmath.phase(mean))
        if abs(mean) >= _MIN_CONCENTRATION and abs(degrees) > _MAX_MEAN_OFF_DEG:
            text = f"{degrees:.0f} degrees to the left on average, concentration {abs(mean):.2f}"
            self._tally.add_whole("D105", "start_rotation", text, count=self._num_edges)
        elif abs(negated) >= 2 * max(abs(mean), _MIN_CONCENTRATION / 2):
            text = f"negated yaws agree with the paths (concentration {abs(negated):.2f})"
            self._tally.add_whole("D105", "start_rotation", text, count=self._num_edges)
        return {"heading_off_path_deg": round(degrees, 1), "concentration": round(abs(mean), 3)}

    def _rotation(self, episode: Episode, rotation: tuple[float, ...], key: str) -> None:
        x, y, z, w = rotation
        if abs(x) <= _LEVEL_TOLERANCE and abs(z) <= _LEVEL_TOLERANCE:
            norm = math.hypot(y, w)
        else:
            norm = math.hypot(x, y, z, w)
            is_upright_as_wxyz = abs(y) <= _LEVEL_TOLERANCE and abs(w) <= _LEVEL_TOLERANCE
            if math.isfinite(norm):
                self._tally.add("D102" if is_upright_as_wxyz else "D103", episode, key, rotation)
        if not abs(norm - 1) <= UNIT_TOLERANCE:
            self._tally.add("D101", episode, key, f"norm {norm:.4g} of {rotation}")

    def _numbers(self, episode: Episode) -> None:
        if not math.isfinite(sum(episode.start_pose.position)):
            self._tally.add("D104", episode, "start_position", episode.start_pose.position)
        for number, goal in enumerate(episode.goals):
            if not math.isfinite(sum(goal.position) + goal.radius_m):
                self._tally.add("D104", episode, f"goals[{number}]", goal)
        if not np.isfinite(episode.reference_path).all():
            self._tally.add("D104", episode, "reference_path", "has a non-finite number")
        for number, step in enumerate(episode.steps):
            if not math.isfinite(sum(step.pose.position)):
                self._tally.add("D104", episode, f"steps[{number}].pose", step.pose.position)
        for name, value in episode.metadata.items():
            key = non_finite(value, name)
            if key and not key.endswith("geodesic_distance"):  # D302 says what that means
                self._tally.add("D104", episode, key, "not finite")

    def _first_edge(self, episode: Episode) -> None:
        path = episode.reference_path
        if len(path) < 2 or not has_measured_poses(episode):
            return
        dx, _, dz = (path[1] - path[0]).tolist()
        if math.hypot(dx, dz) >= _MIN_EDGE_M:
            edge, yaw = heading_of(dx, dz), episode.start_pose.yaw_rad
            if math.isfinite(edge) and math.isfinite(yaw):
                self._num_edges += 1
                self._sum += cmath.exp(1j * (edge - yaw))
                self._sum_negated += cmath.exp(1j * (edge + yaw))


def non_finite(value: Any, key: str, depth: int = 0) -> str:
    """The key of the first NaN or infinity in plain JSON values, or ""."""
    if isinstance(value, float):
        return "" if math.isfinite(value) else key
    if depth >= _DEPTH:
        return ""
    if isinstance(value, dict):
        for name, item in value.items():
            if isinstance(item, float | dict | list) and (
                found := non_finite(item, f"{key}.{name}", depth + 1)
            ):
                return found
    elif isinstance(value, list) and value:
        return _non_finite_in(value, key, depth)
    return ""


def _non_finite_in(values: list[Any], key: str, depth: int) -> str:
    try:
        if math.isfinite(sum(values)):  # plain numbers, as most lists are
            return ""
    except (TypeError, OverflowError):
        pass
    for number, item in enumerate(values[:_MAX_NUMBERS]):
        if isinstance(item, float):
            if not math.isfinite(item):
                return f"{key}[{number}]"
        elif isinstance(item, dict | list) and (
            found := non_finite(item, f"{key}[{number}]", depth + 1)
        ):
            return found
    return ""
