"""One closed-loop episode as a generator that asks for what it needs and never waits.

    rollout()  --Simulate((), ...)-->  driver  --Outcome-->          the first look
               --Decide(outcome)-->    driver  --(2, 1, 1)-->        somebody's decision
               --Simulate((2, 1, 1))-> driver  --Outcome-->          executed one by one, one look
               ...                                                    until STOP or the cap
               --Carry(poses)-->       driver  --Outcome-->          where a decision is a `Walk`
               returns Trajectory

The driver may serve one episode directly (recording) or many slots over simulator workers with
batched inference (evaluation): the episode is the same, because nothing here knows about slots.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from vla_nav.episodes.types import STOP, Pose
from vla_nav.evaluation.approach import Walk
from vla_nav.simulators.agent import Outcome

MAX_PRIMITIVES = 500


class Simulate(NamedTuple):
    """Execute these primitives (no STOP among them); after the last one nobody looks any more."""

    primitives: tuple[int, ...]
    is_last: bool


class Carry(NamedTuple):
    """Put the agent at these poses, one after the other, and look at the last."""

    poses: tuple[Pose, ...]
    has_collided: bool
    is_last: bool


class Decide(NamedTuple):
    """Choose the next primitives: the pose, and what the last outcome showed there."""

    pose: Pose
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Trajectory:
    """What was done: poses (the start and after each motion), primitives (STOP included)."""

    poses: tuple[Pose, ...]
    primitives: tuple[int, ...]
    decisions: tuple[tuple[int, ...], ...]
    num_collisions: int

    @property
    def has_stopped(self) -> bool:
        """Whether STOP was called within the cap."""
        return self.primitives[-1:] == (STOP,)

    @property
    def positions(self) -> np.ndarray:
        """(N, 3) float64: the start and the place after every primitive except STOP."""
        return np.array([pose.position for pose in self.poses], dtype=np.float64)


Request = Simulate | Carry | Decide


def rollout(
    start: Pose, *, max_primitives: int = MAX_PRIMITIVES
) -> Generator[Request, Outcome | Walk | tuple[int, ...], Trajectory]:
    """Play one episode from the pose an agent has taken: see the drawing above.

    Send an `Outcome` in answer to `Simulate` and `Carry`, and a tuple of primitives or a `Walk` to
    `Decide`; primitives behind a STOP or beyond the cap are dropped, and no primitives end the
    episode without STOP.
    """
    poses, taken, decisions = [start], [], []
    num_collisions = 0
    outcome = yield Simulate((), False)
    while len(taken) < max_primitives:
        chosen = yield Decide(poses[-1], outcome)
        walk = chosen if isinstance(chosen, Walk) else None
        wanted = chosen if walk is None else walk.primitives
        executed = until_stop(wanted)[: max_primitives - len(taken)]
        if not executed:
            break
        taken.extend(executed)
        decisions.append(executed)
        is_stopped = executed[-1] == STOP
        motions = executed[:-1] if is_stopped else executed
        is_last = is_stopped or len(taken) == max_primitives
        if motions:
            if walk is None:
                outcome = yield Simulate(motions, is_last)
            else:
                outcome = yield Carry(walk.poses[: len(motions)], walk.has_collided, is_last)
            poses.extend(outcome.poses)
            num_collisions += sum(outcome.collided)
        if is_last:
            break
    return Trajectory(tuple(poses), tuple(taken), tuple(decisions), num_collisions)


def until_stop(primitives: tuple[int, ...]) -> tuple[int, ...]:
    """The primitives up to and including the first STOP.

    >>> until_stop((1, 0, 1))
    (1, 0)
    """
    if STOP in primitives:
        return primitives[: primitives.index(STOP) + 1]
    return primitives
