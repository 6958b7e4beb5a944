"""How far a run is, and the learning rate there.

A run is bounded by optimiser steps, by epochs (turned into steps) or by wall-clock minutes;
whichever is declared also drives the schedule. Progress is in [0, 1]:

    steps:    step / max_steps          exact: a continued run repeats the uninterrupted one
    minutes:  elapsed / max_minutes     fits a time budget on any machine; elapsed time is stored
                                        in the checkpoint and counts after a restart

    factor  1 |   /--__
              |  /     --__             linear warm-up, then half a cosine down to `final_share`
            0 | /          --__
              +--+------------+--> progress
              0  warmup_share  1
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from vla_nav.errors import UserError


@dataclass(frozen=True, slots=True)
class Budget:
    """Exactly one of the bounds of a run is given."""

    max_steps: int | None = None
    max_minutes: float | None = None
    max_epochs: int | None = None

    def __post_init__(self) -> None:
        given = {
            name: value
            for name in ("max_steps", "max_minutes", "max_epochs")
            if (value := getattr(self, name)) is not None
        }
        if len(given) != 1:
            got = ", ".join(f"{name}={value}" for name, value in given.items()) or "none"
            raise UserError(
                f"training: {got} given; give exactly one of max_steps, max_minutes, max_epochs "
                "and set the others to null"
            )
        (name, value), *_ = given.items()
        if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
            raise UserError(f"training.{name}={value!r}; a number above 0 is needed")


def learning_rate_factor(progress: float, *, warmup_share: float, final_share: float) -> float:
    """The factor on every learning rate at `progress` in [0, 1]."""
    progress = min(max(progress, 0.0), 1.0)
    if progress < warmup_share:
        return progress / warmup_share
    through = (progress - warmup_share) / max(1.0 - warmup_share, 1e-9)
    return final_share + (1.0 - final_share) * 0.5 * (1.0 + math.cos(math.pi * through))


class Stopwatch:
    """Seconds of training, over restarts: what earlier starts took plus this one."""

    def __init__(self) -> None:
        self.earlier_s = 0.0
        self._start_s = time.monotonic()

    def restart(self, earlier_s: float = 0.0) -> None:
        """Begin now, on top of `earlier_s` seconds."""
        self.earlier_s = earlier_s
        self._start_s = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds so far."""
        return self.earlier_s + time.monotonic() - self._start_s


class Progress:
    """Progress of a run under a budget. `total_steps` is None under a wall-clock budget."""

    def __init__(self, budget: Budget, *, total_steps: int | None) -> None:
        assert (total_steps is None) == (budget.max_minutes is not None)
        self.total_steps = total_steps
        self._limit_s = None if budget.max_minutes is None else 60.0 * budget.max_minutes
        self.stopwatch = Stopwatch()

    def at(self, step: int) -> float:
        """Progress at the end of optimiser step `step` (counted from 0), in [0, 1]."""
        if self._limit_s is not None:
            return min(self.stopwatch.elapsed_s / self._limit_s, 1.0)
        assert self.total_steps is not None
        return min((step + 1) / self.total_steps, 1.0)

    def remaining_s(self, step: int) -> float:
        """Estimated seconds to go after `step` steps; inf before the first one is done."""
        elapsed = self.stopwatch.elapsed_s
        if self._limit_s is not None:
            return max(self._limit_s - elapsed, 0.0)
        assert self.total_steps is not None
        return elapsed / step * (self.total_steps - step) if step else math.inf
