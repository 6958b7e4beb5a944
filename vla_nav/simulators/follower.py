"""The expert: a greedy geodesic follower over any `Simulator`, using its public methods only.

From a pose it asks for the shortest path, turns to the nearest multiple of `turn_deg` towards the
next bend, steps forward, and calls STOP within `stop_radius_m` of the goal by geodesic distance.
Bends are passed a little outside, since headings are coarse and corners hard:

        obstacle |                      p   pose
        ---------+  v                   v   bend of the shortest path (touches the obstacle)
                     t                  t   what the follower heads for
               p . '

A step that collides is compared with other headings by the distance it leaves; where none helps, a
best-first search over turns and steps looks for a way out, and only then is the follower stuck.
Without sliding it keeps away from traps: an agent of habitat-sim that stopped exactly on the edge
of the navigation mesh can be unable to leave it in any direction.
A plan depends on the pose and the goal alone.
"""

from __future__ import annotations

import heapq
import math
from typing import NamedTuple

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
from vla_nav.errors import UserError
from vla_nav.simulators.protocol import GeodesicPath, Simulator

_BEND_SHIFT_STEPS = 0.4  # how far outside a bend the follower aims, in steps
_GOOD_GAIN_STEPS = 0.6  # a colliding step that gains this much is taken without a search
_LEAST_GAIN_STEPS = 0.1  # a step that gains less does not count as progress
_TRAP_STEPS = 0.5  # a place is a trap if no step goes farther than this
_ESCAPE_EXPANSIONS = 60
_DEAD_BAND_TURNS = 2 / 3  # a heading this near is kept: rounding alone zigzags between two turns


class FollowerError(RuntimeError):
    """The expert cannot go on from a pose; the text says why. Record it and skip the episode."""


class _Route:
    """The shortest path from a pose, walked bend by bend."""

    def __init__(self, points: np.ndarray, step_m: float) -> None:
        self._points = [(x, z) for x, _, z in points.tolist()]
        legs = np.linalg.norm(np.diff(points, axis=0), axis=1)
        beyond_m = np.append(np.cumsum(legs[::-1])[::-1][1:], 0.0)
        self._beyond_m = [0.0, *beyond_m.tolist()]  # length from each point to the goal
        self._step_m = step_m
        self._next = 1

    def distance_m(self, x: float, z: float) -> float:
        """Length of the path that is left from (x, z)."""
        px, pz = self._points[self._next]
        return math.hypot(px - x, pz - z) + self._beyond_m[self._next]

    def heading(self, x: float, z: float) -> float:
        """The heading in radians to take at (x, z). Moves on to the next bend once one is passed:
        reached, or lying behind as seen along the leg before or after it."""
        points, step_m = self._points, self._step_m
        while True:
            bend_x, bend_z = points[self._next]
            to_x, to_z = bend_x - x, bend_z - z
            if self._next == len(points) - 1:
                return math.atan2(-to_x, -to_z)
            before_x, before_z = points[self._next - 1]
            after_x, after_z = points[self._next + 1]
            in_x, in_z = bend_x - before_x, bend_z - before_z
            out_x, out_z = after_x - bend_x, after_z - bend_z
            is_passed = to_x * in_x + to_z * in_z <= 0 or to_x * out_x + to_z * out_z <= 0
            near = math.hypot(to_x, to_z)
            if near < 0.02 or (near < step_m and is_passed):
                self._next += 1
                continue
            in_m, out_m = math.hypot(in_x, in_z) or 1.0, math.hypot(out_x, out_z) or 1.0
            away_x, away_z = in_x / in_m - out_x / out_m, in_z / in_m - out_z / out_m
            away = math.hypot(away_x, away_z)
            shift = _BEND_SHIFT_STEPS * step_m * min(1.0, 2 * away) / max(away, 1e-9)
            to_x, to_z = to_x + away_x * shift, to_z + away_z * shift
            near = math.hypot(to_x, to_z)
            if near < step_m:  # the step goes round the bend
                ahead = (step_m - near) / out_m
                to_x, to_z = to_x + out_x * ahead, to_z + out_z * ahead
            return math.atan2(-to_x, -to_z)


class _Try(NamedTuple):
    """A few primitives, the pose after each, and the geodesic distance left."""

    primitives: list[int]
    poses: list[Pose]
    distance_m: float


class GreedyFollower:
    """Plans towards one goal. Raises `UserError` for a stop radius that steps would jump over."""

    def __init__(
        self, simulator: Simulator, goal: tuple[float, float, float], *, stop_radius_m: float
    ) -> None:
        embodiment = simulator.embodiment
        if stop_radius_m < 0.5 * embodiment.step_m:
            raise UserError(
                f"stop_radius_m {stop_radius_m:g} is less than half a step of "
                f"{embodiment.step_m:g} m: the expert would step over the goal; "
                f"use at least {0.5 * embodiment.step_m:g}"
            )
        self._simulator = simulator
        self._goal = goal
        self._stop_radius_m = stop_radius_m
        self._step_m = embodiment.step_m
        self._turn_rad = math.radians(embodiment.turn_deg)
        half_circle = math.ceil(180 / embodiment.turn_deg)
        self._offsets = sorted(range(-half_circle + 1, half_circle + 1), key=abs)

    def remaining_path(self, pose: Pose) -> np.ndarray:
        """(P, 3) float64 points of the shortest path from the pose to the goal, metres, world.

        Raises `FollowerError` where there is none."""
        return self._path(pose).points

    def plan(self, pose: Pose, horizon: int) -> ExpertLabel:
        """The next primitives, at most `horizon`, and the pose after each; ends with STOP where
        the goal is reached. Raises `FollowerError` where there is no way on."""
        primitives: list[int] = []
        poses: list[Pose] = []
        route: _Route | None = None
        while len(primitives) < horizon:
            x, _, z = pose.position
            if route is not None and route.distance_m(x, z) <= self._stop_radius_m:
                route = None  # ask again before stopping
            if route is None:
                path = self._path(pose)
                if path.distance_m <= self._stop_radius_m:
                    primitives.append(STOP)
                    poses.append(pose)
                    break
                route = _Route(path.points, self._step_m)
            turns = self._turns_to(pose, route.heading(x, z))
            tried, after, has_collided = self._turn_and_step(pose, turns)
            if has_collided or self._is_trap(after[-1]):
                route = None
                distance = self._distance(pose)
                if distance <= self._stop_radius_m:
                    continue
                tried, after, _ = self._best_step(pose, turns, distance)
            primitives += tried
            poses += after
            pose = poses[-1]
        return ExpertLabel(tuple(primitives[:horizon]), tuple(poses[:horizon]))

    def _path(self, pose: Pose) -> GeodesicPath:
        path = self._simulator.shortest_path(pose.position, self._goal)
        if not math.isfinite(path.distance_m):
            raise FollowerError(f"no path from {_at(pose)} to the goal {_text(self._goal)}")
        return path

    def _turns_to(self, pose: Pose, heading_rad: float) -> int:
        """Signed number of turns, left positive, towards a heading; 0 within the dead band."""
        turns = wrap_angle(heading_rad - pose.yaw_rad) / self._turn_rad
        return 0 if abs(turns) < _DEAD_BAND_TURNS else round(turns)

    def _turn_and_step(self, pose: Pose, turns: int) -> tuple[list[int], list[Pose], bool]:
        move = self._simulator.move
        primitives = [TURN_LEFT if turns > 0 else TURN_RIGHT] * abs(turns)
        poses = []
        for primitive in primitives:
            pose = move(pose, primitive).pose
            poses.append(pose)
        stepped, has_collided = move(pose, MOVE_FORWARD)
        primitives.append(MOVE_FORWARD)
        poses.append(stepped)
        return primitives, poses, has_collided

    def _best_step(self, pose: Pose, turns: int, distance: float) -> _Try:
        """The step near a heading that leaves the least of `distance` to the goal."""
        best: _Try | None = None
        for offset in self._offsets:
            primitives, poses, _ = self._turn_and_step(pose, self._shortest_turn(turns + offset))
            if self._is_trap(poses[-1]):
                continue
            tried = _Try(primitives, poses, self._distance(poses[-1]))
            if tried.distance_m <= distance - _GOOD_GAIN_STEPS * self._step_m:
                return tried
            if best is None or tried.distance_m < best.distance_m:
                best = tried
        if best is not None and best.distance_m <= distance - _LEAST_GAIN_STEPS * self._step_m:
            return best
        return self._escape(pose, distance)

    def _escape(self, pose: Pose, distance: float) -> _Try:
        """Best-first search for any sequence that gains half a step."""
        waiting: list[tuple[float, int, _Try]] = [(distance, 0, _Try([], [], distance))]
        seen = {self._cell(pose)}
        count = 0
        for _ in range(_ESCAPE_EXPANSIONS):
            if not waiting:
                break
            _, _, state = heapq.heappop(waiting)
            here = state.poses[-1] if state.poses else pose
            for turns in self._offsets:
                primitives, poses, _ = self._turn_and_step(here, turns)
                cell = self._cell(poses[-1])
                if cell in seen:
                    continue
                seen.add(cell)
                if self._is_trap(poses[-1]):
                    continue
                left = self._distance(poses[-1])
                tried = _Try(state.primitives + primitives, state.poses + poses, left)
                if left <= distance - 0.5 * self._step_m:
                    return tried
                count += 1
                heapq.heappush(waiting, (left, count, tried))
        raise FollowerError(
            f"stuck at {_at(pose)}, {distance:.2f} m from the goal {_text(self._goal)}: "
            "no step or short detour leads nearer"
        )

    def _is_trap(self, pose: Pose) -> bool:
        """Whether no step leads on from a place short of the goal; who slides always gets on."""
        if self._simulator.embodiment.is_sliding:
            return False
        for turns in self._offsets:
            turned = Pose.from_yaw(pose.position, pose.yaw_rad + turns * self._turn_rad)
            stepped = self._simulator.move(turned, MOVE_FORWARD).pose
            if math.dist(stepped.position, pose.position) > _TRAP_STEPS * self._step_m:
                return False
        return self._distance(pose) > self._stop_radius_m  # nobody has to leave the goal

    def _distance(self, pose: Pose) -> float:
        return self._simulator.geodesic_distance(pose.position, [self._goal])

    def _shortest_turn(self, turns: int) -> int:
        full = round(2 * math.pi / self._turn_rad)
        return (turns + (full - 1) // 2) % full - (full - 1) // 2

    def _cell(self, pose: Pose) -> tuple[int, int, int, int]:
        """Positions within 5 cm and headings within half a turn count as one in a search."""
        x, y, z = pose.position
        yaw = round(pose.yaw_rad / self._turn_rad * 2)
        return round(x * 20), round(y * 4), round(z * 20), yaw


def _text(point: tuple[float, float, float]) -> str:
    return "({:.2f}, {:.2f}, {:.2f})".format(*point)


def _at(pose: Pose) -> str:
    return f"{_text(pose.position)} heading {math.degrees(pose.yaw_rad):.0f} deg"
