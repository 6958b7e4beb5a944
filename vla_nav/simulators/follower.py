"""The expert: a greedy geodesic follower over any `Simulator`.

It turns towards the next bend of the shortest path and steps forward, looking ahead with
`Simulator.move`, and calls STOP within `stop_radius_m` of the goal by geodesic distance.
"""

from __future__ import annotations

import math

import numpy as np

from vla_nav.episodes.types import (
    MOVE_FORWARD,
    STOP,
    TURN_LEFT,
    TURN_RIGHT,
    ExpertLabel,
    Pose,
    wrap_angle,
)
from vla_nav.simulators.protocol import Simulator


class FollowerError(RuntimeError):
    """The expert cannot go on from here; the text says why."""


class GreedyFollower:
    def __init__(
        self, simulator: Simulator, goal: tuple[float, float, float], *, stop_radius_m: float
    ) -> None:
        self._simulator = simulator
        self._goal = goal
        self._stop_radius_m = stop_radius_m
        self._turn_rad = math.radians(simulator.embodiment.turn_deg)
        self._step_m = simulator.embodiment.step_m

    def remaining_path(self, pose: Pose) -> np.ndarray:
        """(P, 3) float64 corner points of the shortest path from the pose to the goal."""
        return self._simulator.shortest_path(pose.position, self._goal).points

    def plan(self, pose: Pose, horizon: int) -> ExpertLabel:
        """The next primitives, at most `horizon`, and the pose after each."""
        primitives: list[int] = []
        poses: list[Pose] = []
        while len(primitives) < horizon:
            distance = self._simulator.geodesic_distance(pose.position, [self._goal])
            if not math.isfinite(distance):
                raise FollowerError(f"no path from {pose.position} to {self._goal}")
            if distance <= self._stop_radius_m:
                primitives.append(STOP)
                poses.append(pose)
                break
            for primitive in self._next(pose, distance):
                pose = self._simulator.move(pose, primitive).pose
                primitives.append(primitive)
                poses.append(pose)
                if len(primitives) == horizon:
                    break
        return ExpertLabel(tuple(primitives), tuple(poses))

    def _next(self, pose: Pose, distance: float) -> list[int]:
        points = self.remaining_path(pose)
        target = points[min(4, len(points) - 1)]
        dx, dz = target[0] - pose.position[0], target[2] - pose.position[2]
        bearing = math.atan2(-dx, -dz)
        turns = round(wrap_angle(bearing - pose.yaw_rad) / self._turn_rad)
        best: tuple[float, list[int]] | None = None
        full = round(2 * math.pi / self._turn_rad)
        for k in range(full):
            offset = (k + 1) // 2 * (1 if k % 2 else -1)
            count = turns + offset
            count = (count + full // 2) % full - full // 2
            actions = [TURN_LEFT if count > 0 else TURN_RIGHT] * abs(count)
            turned = pose
            for action in actions:
                turned = self._simulator.move(turned, action).pose
            moved = self._simulator.move(turned, MOVE_FORWARD).pose
            gain = distance - self._simulator.geodesic_distance(moved.position, [self._goal])
            if gain > 0.5 * self._step_m:
                return [*actions, MOVE_FORWARD]
            if best is None or gain > best[0]:
                best = gain, [*actions, MOVE_FORWARD]
        if best is None or best[0] < 1e-3:
            raise FollowerError(f"stuck at {pose.position}, {distance:.2f} m from the goal")
        return best[1]
