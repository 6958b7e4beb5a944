"""Made faults of a data set: a clean set of 24 episodes in which one thing is wrong, by code.

@fault("D205")                    the code it is found as, on one episode
def stop_that_is_missing(): ...   -> the set with the fault
"""

from __future__ import annotations

from collections.abc import Callable

from tests.episodes.checked_sets import (
    ListSource,
    PaintedFrames,
    episode,
    recorded,
)
from vla_nav.episodes.types import Episode

NUM = 24
PLAIN = [episode(number) for number in range(NUM)]
RECORDED = [recorded(number) for number in range(NUM)]
Fault = Callable[[], ListSource]
FAULTS: dict[str, tuple[Fault, int, set[str]]] = {}  # the set, episodes with it, other codes


def fault(code: str, count: int = 1, *, also: str = "") -> Callable[[Fault], Fault]:
    def keep(make: Fault) -> Fault:
        FAULTS[code] = make, count, set(also.split())
        return make

    return keep


def one_of(changed: Episode, at: int = 7, base: list[Episode] = PLAIN) -> ListSource:
    """The clean set with one episode exchanged."""
    frames = PaintedFrames() if base[0].steps else None
    return ListSource([*base[:at], changed, *base[at + 1 :]], frames=frames)
