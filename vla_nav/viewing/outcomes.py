"""Why an episode went as it did, in the words of the page's filters.

failed      no success: no STOP, or too far from every goal at the end
early stop  STOP, never near a goal, and a path shorter than the shortest one by the threshold
overshoot   failed although the walk had been within the threshold of a goal
stuck       no STOP until the end; or turned full circle without a step; or 8 blocked forwards
unparsed    some action text or token sequence was outside the grammar
flagged     without a finite geodesic distance: no scores

Of an evaluation the distances are geodesic, its own scores. Of a data set they are straight lines,
which are never longer: what is far by them is far.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from vla_nav.episodes.types import MOVE_FORWARD, STOP, TURN_LEFT, TURN_RIGHT, Goal

FAILED, EARLY_STOP, OVERSHOOT, STUCK = "failed", "early stop", "overshoot", "stuck"
UNPARSED, FLAGGED = "unparsed", "flagged"
FLAGS = {
    FAILED: "no STOP, or too far from every goal at the end",
    STUCK: "no STOP at all, a full circle without a step, or 8 blocked forward steps",
    EARLY_STOP: "STOP before ever being near a goal, after a walk shorter than the shortest path",
    OVERSHOOT: "failed although the walk had been near a goal",
    UNPARSED: "some actions were outside the grammar",
    FLAGGED: "no finite geodesic distance to a goal",
}
BLOCKED = 8
_MOVED_M = 0.01


class Outcome(NamedTuple):
    """flags: of `FLAGS`; words: one reason each, for people."""

    flags: tuple[str, ...] = ()
    words: tuple[str, ...] = ()


def outcome_of_record(
    record: Mapping[str, Any], *, success_m: float, turn_deg: float, num_unparsed: int = 0
) -> Outcome:
    """The outcome of a result line of an evaluation."""
    primitives = [int(name) for name in record.get("primitives", "")]
    num_moves = max(0, len(record.get("path", ())) - 1)
    reasons: dict[str, str] = {}
    if record.get("flag"):
        reasons[FLAGGED] = str(record["flag"])
    elif record["sr"] == 0:
        reasons[FAILED] = f"ended {record['ne_m']:.2f} m from the goal"
        if not record["has_stopped"]:
            reasons[FAILED] += ", without STOP"
        _mistakes(
            reasons,
            has_stopped=record["has_stopped"],
            was_near=record["osr"] == 1,
            is_far=record["ne_m"] >= success_m,
            path_m=record["path_m"],
            shortest_m=record["geodesic_m"] - success_m,
        )
    _stuck(reasons, primitives, primitives.count(MOVE_FORWARD) - num_moves, turn_deg)
    return _outcome(reasons, num_unparsed)


def outcome_of_walk(
    positions: Sequence[Sequence[float]],
    primitives: Sequence[int],
    goals: Sequence[Goal],
    *,
    turn_deg: float | None,
    num_unparsed: int = 0,
) -> Outcome:
    """The outcome of a walk of a data set; without goals or actions there is little to say."""
    reasons: dict[str, str] = {}
    has_stopped = STOP in primitives[-1:]
    if goals and primitives:
        distances = [
            min(math.dist(place, goal.position) - goal.radius_m for goal in goals)
            for place in positions
        ]
        is_near = distances[-1] <= 0
        if not (has_stopped and is_near):
            reasons[FAILED] = "ended without STOP" if is_near else "ended outside the goal's radius"
            lengths = [math.dist(a, b) for a, b in pairwise(positions)]
            _mistakes(
                reasons,
                has_stopped=has_stopped,
                was_near=min(distances) <= 0,
                is_far=not is_near,
                path_m=sum(lengths),
                shortest_m=distances[0],
            )
    num_blocked = 0
    if len(positions) == len(primitives) + 1:  # one place per primitive
        num_blocked = sum(
            primitive == MOVE_FORWARD and math.dist(before, after) < _MOVED_M
            for primitive, before, after in zip(primitives, positions, positions[1:], strict=False)
        )
    _stuck(reasons, primitives, num_blocked, turn_deg)
    return _outcome(reasons, num_unparsed)


def longest_turning(primitives: Sequence[int]) -> int:
    """The longest run of turns to one side."""
    longest = run = previous = 0
    for primitive in primitives:
        is_turn = primitive in (TURN_LEFT, TURN_RIGHT)
        run = run + 1 if is_turn and primitive == previous else int(is_turn)
        longest, previous = max(longest, run), primitive
    return longest


def _mistakes(
    reasons: dict[str, str],
    *,
    has_stopped: bool,
    was_near: bool,
    is_far: bool,
    path_m: float,
    shortest_m: float,
) -> None:
    if was_near and is_far:
        reasons[OVERSHOOT] = "had been near the goal and left it"
    elif has_stopped and not was_near and path_m < shortest_m:
        reasons[EARLY_STOP] = (
            f"STOP after {path_m:.1f} m, where the goal begins {shortest_m:.1f} m away"
        )


def _stuck(
    reasons: dict[str, str], primitives: Sequence[int], num_blocked: int, turn_deg: float | None
) -> None:
    circle = longest_turning(primitives) * (turn_deg or 0)
    if primitives and primitives[-1] != STOP:
        reasons[STUCK] = f"no STOP within {len(primitives)} actions"
    elif num_blocked >= BLOCKED:
        reasons[STUCK] = f"{num_blocked} forward steps did not move the agent"
    elif circle >= 360:
        reasons[STUCK] = f"turned {circle:g} degrees to one side without a step"


def _outcome(reasons: dict[str, str], num_unparsed: int) -> Outcome:
    if num_unparsed:
        reasons[UNPARSED] = f"{num_unparsed} actions outside the grammar"
    return Outcome(tuple(reasons), tuple(f"{flag}: {why}" for flag, why in reasons.items()))
