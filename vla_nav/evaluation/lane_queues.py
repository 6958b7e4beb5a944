"""Which episode a lane plays next: whole scenes stay together, and none pushes another out.

    lane 0   A A A A  D D D        scenes dealt to the shortest queue, the largest scene first
    lane 1   B B B  C C C C        a lane whose own queue is empty takes from the longest one

A worker keeps `max_scenes` loaded. An agent in yet another scene would have the scenes reloaded by
turns at every step, so it waits until the episodes of one of them are done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence, Set
from typing import NamedTuple

from vla_nav.evaluation.play import Unit


class Turn(NamedTuple):
    """A unit to be played for the n-th time."""

    unit: Unit
    attempt: int


class LaneQueues:
    """The units that nobody plays yet, a queue per lane."""

    def __init__(self, units: Sequence[Unit], *, num_lanes: int, max_scenes: int) -> None:
        self._max_scenes = max_scenes
        self._queues: list[deque[Turn]] = [deque() for _ in range(num_lanes)]
        by_scene: dict[str, list[Unit]] = {}
        for unit in units:
            by_scene.setdefault(unit.episode.scene_id, []).append(unit)
        for group in sorted(by_scene.values(), key=len, reverse=True):
            min(self._queues, key=len).extend(Turn(unit, 1) for unit in group)

    def take(self, lane: int, scenes_in_use: Set[str]) -> Turn | None:
        """The next turn of a lane in whose worker those scenes are being played; None to wait."""
        queue = self._queues[lane] or max(self._queues, key=len)
        if not queue:
            return None
        scene_id = queue[0].unit.episode.scene_id
        if scene_id not in scenes_in_use and len(scenes_in_use) >= self._max_scenes:
            return None
        return queue.popleft()

    def put_back(self, lane: int, turn: Turn) -> None:
        """Have a turn played next in its lane."""
        self._queues[lane].appendleft(turn)
