"""Recorded actions as steps, for data that has frames and actions but no poses.

    decisions   [L L]   [F F F]   [F]   [STOP]
    poses       p0      p1        p2    p3            dead-reckoned from the start
    label of 0: L L F F F F STOP (up to the horizon)  what was executed from here on is taught

Dead reckoning knows no walls: an agent that slid or was stopped is elsewhere. Such episodes have
metadata["poses"] = "dead_reckoned".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from vla_nav.episodes.types import (
    MOVE_FORWARD,
    STOP,
    TURN_LEFT,
    TURN_RIGHT,
    ExpertLabel,
    Pose,
    Step,
    wrap_angle,
)

HORIZON = 16  # primitives that a label looks ahead: half a turn of 15 degrees, and four steps
ORIGIN = Pose.from_yaw((0.0, 0.0, 0.0), 0.0)


class Walked(NamedTuple):
    """One decision: camera -> frame key, the primitives executed, and those taught.

    taught is None where the decision teaches nothing (its text is outside the grammar).
    """

    frames: Mapping[str, str]
    executed: tuple[int, ...]
    taught: tuple[int, ...] | None


def dead_reckon(
    start: Pose, primitives: Iterable[int], *, turn_deg: float, step_m: float
) -> list[Pose]:
    """The poses before the first primitive and after each; STOP and looks keep the pose."""
    x, y, z = start.position
    yaw = start.yaw_rad
    poses = [start]
    for primitive in primitives:
        if primitive == MOVE_FORWARD:
            x, z = x - step_m * math.sin(yaw), z - step_m * math.cos(yaw)
        elif primitive in (TURN_LEFT, TURN_RIGHT):
            sign = 1 if primitive == TURN_LEFT else -1
            yaw = wrap_angle(yaw + sign * math.radians(turn_deg))
        else:
            poses.append(poses[-1])
            continue
        poses.append(Pose.from_yaw((x, y, z), yaw))
    return poses


def walked_steps(
    start: Pose,
    decisions: Sequence[Walked],
    *,
    turn_deg: float,
    step_m: float,
    horizon: int = HORIZON,
) -> tuple[Step, ...]:
    """One step per decision, poses by dead reckoning.

    A decision whose taught primitives were executed teaches what was executed from there on, up
    to `horizon` primitives and not beyond a decision that differs or teaches nothing; any other
    one teaches its own primitives.
    """
    flat = [primitive for decision in decisions for primitive in decision.executed]
    poses = dead_reckon(start, flat, turn_deg=turn_deg, step_m=step_m)
    begins, ends = [], []  # of each decision, in `flat`; the end of the unbroken run it is in
    position = 0
    for decision in decisions:
        begins.append(position)
        position += len(decision.executed)
    end = position
    for decision, begin in zip(reversed(decisions), reversed(begins), strict=True):
        ends.append(end)
        if decision.taught != decision.executed:
            end = begin
    ends.reverse()
    steps = []
    for decision, begin, end in zip(decisions, begins, ends, strict=True):
        labels: tuple[ExpertLabel, ...] = ()
        if decision.taught == decision.executed and decision.taught:
            ahead = flat[begin : min(end, begin + horizon)]
            if STOP in ahead:
                ahead = ahead[: ahead.index(STOP) + 1]
            after = poses[begin + 1 : begin + 1 + len(ahead)]
            labels = (ExpertLabel(tuple(ahead), tuple(after)),)
        elif decision.taught:
            after = dead_reckon(poses[begin], decision.taught, turn_deg=turn_deg, step_m=step_m)[1:]
            labels = (ExpertLabel(decision.taught, tuple(after)),)
        steps.append(Step(poses[begin], decision.frames, decision.executed, labels))
    return tuple(steps)
