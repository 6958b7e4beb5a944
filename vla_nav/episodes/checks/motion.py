"""Actions against places: D106, D206 to D214, D222. What the data says it did, and where it went.

    expected   p1 = p0 + sum over MOVE_FORWARD of step * (-sin yaw, 0, -cos yaw), yaw by the turns
    shorter or aside     the agent slid or was blocked (D206, no fault)
    much farther         it cannot have been these actions (D207)

Turn angle and step length are also inferred, from movements that nothing bent: the yaw between two
known headings per net turn, or the angle between two full steps with one turn between them.

Axis legend: A actions, P known poses.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np

from vla_nav.episodes.checks.findings import Tally
from vla_nav.episodes.checks.tracks import Track, has_measured_poses
from vla_nav.episodes.source import SourceFacts
from vla_nav.episodes.types import MOVE_FORWARD, Episode

_PLACE_TOLERANCE_M, _FAR_TOLERANCE_M = 0.005, 0.02
_STRETCH = 1.2  # of a step: sliding along a navmesh edge lengthens it (R2R-CE: up to 1.15)
_YAW_TOLERANCE_RAD = math.radians(1.0)
_TURN_TOLERANCE_DEG, _STEP_TOLERANCE_M = 1.0, 0.02  # of inferred against stated
_MIN_SAMPLES = 5
_MIXED_SHARE = 0.1
_MAX_BINS = 10_000  # of the histograms: 0.1 degrees, 1 mm
_MAX_VALUE = 1e6  # of a histogram: 1 km a step
_WRONG_HEADING_SHARE = 0.3  # of episodes whose first movement contradicts the start heading


class MotionCheck:
    """Replays every walk, and measures turn angle and step length."""

    def __init__(self, tally: Tally, facts: SourceFacts) -> None:
        self._tally = tally
        self._turn_deg, self._step_m = facts.turn_deg, facts.step_m
        self._angles: Counter[int] = Counter()  # tenths of a degree per turn to the left
        self._lengths: Counter[int] = Counter()  # millimetres per MOVE_FORWARD
        self._num_forward = self._num_bent = self._num_replayed = self._num_slid = 0
        self._num_turns = 0
        self._num_starts = self._num_wrong_starts = 0
        self._wrong_start: tuple[Episode, float] | None = None

    def see(self, episode: Episode, track: Track) -> None:
        """Look at one walk."""
        self._num_turns += int(np.abs(np.diff(track.turns)).sum())
        positions, known = track.positions, track.known
        if positions is None or not has_measured_poses(episode) or len(known) < 2:
            return
        if not np.isfinite(positions).all():
            return  # D104 says so
        self._sample(track)
        turn, step = self._turn_deg, self._step_m
        if turn is None:
            turn = _middle(self._angles, 10)
        if step is None:
            step = _middle(self._lengths, 1000)
        if turn is not None and step is not None:
            self._replay(episode, track, math.radians(turn), step)

    def close(self) -> dict[str, Any]:
        """Findings over all episodes; facts for the report."""
        turn = self._compare_turn()
        step = self._compare_step()
        is_turn_right = self._turn_deg is None or (
            turn is not None and abs(turn - self._turn_deg) <= _TURN_TOLERANCE_DEG
        )  # a wrong one leads astray by itself
        is_many = self._num_wrong_starts > max(2, _WRONG_HEADING_SHARE * self._num_starts)
        if is_many and is_turn_right:
            assert self._wrong_start is not None
            episode, off = self._wrong_start
            text = (
                f"{self._num_wrong_starts} of {self._num_starts} episodes first move aside of "
                f"their heading; episode {episode.episode_id} by {math.degrees(off):.0f} degrees"
            )
            self._tally.add_whole("D106", "start_rotation", text, count=self._num_wrong_starts)
        facts: dict[str, Any] = {"inferred_turn_deg": turn, "inferred_step_m": step}
        if self._num_forward:
            facts["forward_steps_bent"] = round(self._num_bent / self._num_forward, 4)
            facts["episodes_bent"] = round(self._num_slid / self._num_replayed, 4)
        return facts

    def _replay(self, episode: Episode, track: Track, turn_rad: float, step_m: float) -> None:
        positions, yaws, known, turns = track.positions, track.yaws, track.known, track.turns
        assert positions is not None
        if yaws is None:
            yaw = episode.start_pose.yaw_rad + turn_rad * turns[:-1]  # (A,)
        else:
            last = np.searchsorted(known, np.arange(len(track.actions)), side="right") - 1
            yaw = yaws[last] + turn_rad * (turns[:-1] - turns[known[last]])
            self._headings(episode, track, turn_rad)
        is_forward = track.actions == MOVE_FORWARD
        moves = np.stack([-np.sin(yaw), -np.cos(yaw)], 1) * (step_m * is_forward)[:, None]
        reached = np.concatenate([np.zeros((1, 2)), np.cumsum(moves, 0)])[known]  # (P, 2)
        expected = np.diff(reached, axis=0)
        moved = np.diff(positions[:, [0, 2]], axis=0)
        count = np.diff(np.concatenate([[0], np.cumsum(is_forward)])[known])  # forwards between
        far = np.hypot(*moved.T) - _STRETCH * step_m * count
        if (worst := int(far.argmax())) >= 0 and far[worst] > _FAR_TOLERANCE_M:
            self._tally.add(
                "D207",
                episode,
                f"{track.key}: action {known[worst]}",
                f"moved {np.hypot(*moved[worst]):.3f} m with {count[worst]} MOVE_FORWARD of "
                f"{step_m:g} m",
            )
        bent = (np.hypot(*(moved - expected).T) > _PLACE_TOLERANCE_M) & (count > 0)
        self._num_replayed += 1
        self._num_forward += int(count.sum())
        if bent.any():
            self._num_slid += 1
            self._num_bent += int(bent.sum())
            first = int(bent.argmax())
            self._tally.add(
                "D206",
                episode,
                f"{track.key}: action {known[first]}",
                f"{int(bent.sum())} of {int((count > 0).sum())} movements bent; the first by "
                f"{np.hypot(*(moved - expected)[first]):.2f} m",
            )
        if yaws is None:
            self._start(episode, moved, expected, count, step_m)

    def _start(
        self,
        episode: Episode,
        moved: np.ndarray,
        expected: np.ndarray,
        count: np.ndarray,
        step_m: float,
    ) -> None:
        """Whether the first full step goes where the start heading and the turns lead."""
        full = (count == 1) & (np.abs(np.hypot(*moved.T) - step_m) < _PLACE_TOLERANCE_M)
        if not full.any():
            return
        first = int(full.argmax())
        angle = _between(expected[first], moved[first])
        self._num_starts += 1
        if abs(angle) > 5 * _YAW_TOLERANCE_RAD:
            self._num_wrong_starts += 1
            self._wrong_start = self._wrong_start or (episode, angle)

    def _headings(self, episode: Episode, track: Track, turn_rad: float) -> None:
        assert track.yaws is not None
        net = np.diff(track.turns[track.known])
        off = np.diff(track.yaws) - turn_rad * net
        off = np.abs((off + math.pi) % (2 * math.pi) - math.pi)
        worst = int(off.argmax())
        if off[worst] > _YAW_TOLERANCE_RAD:
            seen = math.degrees(math.remainder(np.diff(track.yaws)[worst], 2 * math.pi))
            self._tally.add(
                "D208",
                episode,
                f"steps[{worst}]",
                f"turned {seen:.1f} degrees by {net[worst]} turns of {math.degrees(turn_rad):g}",
            )

    def _sample(self, track: Track) -> None:
        """Add this walk's unbent movements to the histograms."""
        positions, known, turns = track.positions, track.known, track.turns
        assert positions is not None
        moved = np.diff(positions[:, [0, 2]], axis=0)
        length = np.hypot(*moved.T)
        forwards = np.concatenate([[0], np.cumsum(track.actions == MOVE_FORWARD)])
        count, net = np.diff(forwards[known]), np.diff(turns[known])
        size = np.diff(known)
        straight = (count == size) & (count > 0)  # nothing but forwards: one direction
        self._count(self._lengths, 1000 * length[straight] / count[straight])
        if track.yaws is not None:
            few = (np.abs(net) >= 1) & (np.abs(net) <= 3)
            yaw = np.diff(track.yaws)[few]
            yaw = (yaw + math.pi) % (2 * math.pi) - math.pi
            self._count(self._angles, 10 * np.degrees(yaw) / net[few])
            return
        step = self._step_m if self._step_m is not None else _middle(self._lengths, 1000)
        if step is None:
            return
        full = np.flatnonzero(straight & (np.abs(length / np.maximum(count, 1) - step) < 1e-3))
        if len(full) < 2:
            return
        heading = np.arctan2(-moved[full, 0], -moved[full, 1])
        between = np.diff(turns[known[full]])
        is_next = np.diff(forwards[known[full]]) == count[full[:-1]]  # no bent step in between
        one = (np.abs(between) == 1) & is_next
        angle = np.diff(heading)[one] * between[one]
        angle = (angle + math.pi) % (2 * math.pi) - math.pi
        self._count(self._angles, 10 * np.degrees(angle))

    def _count(self, histogram: Counter[int], values: np.ndarray) -> None:
        values = values[np.abs(values) < _MAX_VALUE]
        for value in np.rint(values).astype(np.int64).tolist():
            if value in histogram or len(histogram) < _MAX_BINS:
                histogram[value] += 1

    def _compare_turn(self) -> float | None:
        seen = _middle(self._angles, 10)
        if seen is None:
            if self._turn_deg is None and self._num_turns:
                self._tally.add_whole("D222", "turn_deg", f"{self._num_turns} turns, no heading")
            return None
        if seen < 0:
            text = f"a TURN_LEFT turns by {seen:g} degrees to the left"
            self._tally.add_whole("D214", "actions", text)
            return seen
        self._mixed(self._angles, seen * 10, _TURN_TOLERANCE_DEG * 10, "degrees a turn", 10)
        if self._turn_deg is None:
            self._tally.add_whole("D210", "turn_deg", f"{seen:g} degrees")
        elif abs(seen - self._turn_deg) > _TURN_TOLERANCE_DEG:
            text = f"stated {self._turn_deg:g} degrees, seen {seen:g}"
            self._tally.add_whole("D209", "turn_deg", text)
        return seen

    def _compare_step(self) -> float | None:
        seen = _middle(self._lengths, 1000)
        if seen is None:
            return None
        if self._step_m is None:
            self._tally.add_whole("D212", "step_m", f"{seen:g} m")
        elif abs(seen - self._step_m) > _STEP_TOLERANCE_M:
            self._tally.add_whole("D211", "step_m", f"stated {self._step_m:g} m, seen {seen:g}")
        # Blocked steps are shorter, so that only longer ones speak of a second step length.
        longer = {k: n for k, n in self._lengths.items() if k > (seen + _STEP_TOLERANCE_M) * 1000}
        if sum(longer.values()) > _MIXED_SHARE * self._lengths.total():
            common = max(longer, key=longer.__getitem__)
            text = f"{seen:g} m and {common / 1000:g} m a step"
            self._tally.add_whole("D213", "step_m", text)
        return seen

    def _mixed(
        self, histogram: Counter[int], seen: float, tolerance: float, unit: str, scale: int
    ) -> None:
        others = {k: n for k, n in histogram.items() if abs(k - seen) > tolerance}
        if sum(others.values()) > _MIXED_SHARE * histogram.total():
            common = max(others, key=others.__getitem__)
            text = f"{seen / scale:g} and {common / scale:g} {unit}"
            self._tally.add_whole("D213", "turn_deg", text)


def _middle(histogram: Counter[int], scale: int) -> float | None:
    """The median of a histogram of whole numbers, divided by `scale`; None of too few."""
    total = histogram.total()
    if total < _MIN_SAMPLES:
        return None
    seen = 0
    for value in sorted(histogram):
        seen += histogram[value]
        if 2 * seen >= total:
            return value / scale
    raise AssertionError("unreachable")


def _between(first: np.ndarray, second: np.ndarray) -> float:
    """Angle from one (x, z) movement to another, radians."""
    cross = first[0] * second[1] - first[1] * second[0]
    return math.atan2(float(cross), float(first @ second))
