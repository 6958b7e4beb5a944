"""Many episodes at once beside one policy: slots, simulator lanes and batched decisions.

    slot 0 (lane 0)  run ........ Decide | run ....        a slot plays one (row, episode) at a
    slot 1 (lane 1)  run .. Decide ------| run ......      time; its lane simulates it
    slot 2 (lane 0)  .. run .... Decide -| run ..
                                         `- policy.act({0, 1, 2}) once half of them wait

While the policy thinks for some slots, the lanes simulate the others. An episode's outcome depends
on its own key and the run's seed: not on slots, lanes, order or what else is being played.

A worker that dies takes its episodes with it. The one it died over is played once more and then
marked; the others are simply played again. One that has outgrown its memory limit gets no new
episodes; it is replaced once those it has are done.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from vla_nav.episodes.types import Episode
from vla_nav.evaluation.conditions import Actor, Instructions
from vla_nav.evaluation.deciding import Decider, Network, Slot, without_network
from vla_nav.evaluation.lane_queues import LaneQueues, Turn
from vla_nav.evaluation.play import Call, Notes, Played, PlaySettings, Unit, script
from vla_nav.evaluation.rollout import Decide
from vla_nav.evaluation.throughput import Timing
from vla_nav.seeding import generator
from vla_nav.simulators.client import WorkerDiedError
from vla_nav.simulators.pool import AgentLostError, Completed, SimulatorPool

MAX_ATTEMPTS = 2
_SWITCH_S = 0.001  # a thread waits no longer for the interpreter
_WAIT_S = 1.0  # how long to sleep at most before looking again


class Crashed(NamedTuple):
    """An episode whose simulator died over it twice."""

    unit: Unit
    reason: str


class Table:
    """Plays units over slots; one slot, many slots and any number of lanes agree."""

    def __init__(
        self,
        pool: SimulatorPool,
        settings: PlaySettings,
        instructions: Instructions,
        *,
        scene_path: Callable[[Episode], str],
        network: Network | None,
        num_slots: int,
        is_one_by_one: bool = False,
        is_filmed: Callable[[Unit], bool] = lambda unit: False,
    ) -> None:
        """scene_path: the scene file of an episode. is_one_by_one: one slot per forward."""
        self._pool = pool
        self._settings = settings
        self._scene_path = scene_path
        self._decider: Decider | None = None
        if network is not None:
            self._decider = Decider(network, settings, instructions, is_one_by_one=is_one_by_one)
        self._num_slots = max(num_slots, pool.num_lanes)
        self._is_filmed = is_filmed
        self._slots: dict[int, Slot] = {}
        self._waiting: dict[int, Decide] = {}
        self._num_outstanding = 0
        self._queues = LaneQueues((), num_lanes=pool.num_lanes, max_scenes=pool.max_scenes)
        self.timing = Timing()

    def play(self, units: Sequence[Unit]) -> Iterator[Played | Crashed]:
        """Play every unit, yielding each as it ends."""
        begun = time.perf_counter()
        self.timing.began_s = time.time()
        self._queues = LaneQueues(
            units, num_lanes=self._pool.num_lanes, max_scenes=self._pool.max_scenes
        )
        with _prompt_threads():
            for number in range(self._num_slots):
                self._begin(number)
            while self._slots:
                for answer in self._answers():
                    self._num_outstanding -= 1
                    ended = self._handle(answer)
                    if ended is not None:
                        self.timing.num_episodes += isinstance(ended, Played)
                        yield ended
                self._note_time(time.perf_counter() - begun)

    def _answers(self) -> list[Completed]:
        """Decide if it is time to, and take what has come back; else wait for something to."""
        if self._waiting and self._is_time_to_decide():
            self._decide()
            return self._pool.completed(0)
        idle = time.perf_counter()
        answers = self._pool.completed(_WAIT_S)
        self.timing.waiting_s += time.perf_counter() - idle
        return answers

    def _note_time(self, wall_s: float) -> None:
        pool, timing = self._pool, self.timing
        timing.wall_s, timing.lanes_s = wall_s, wall_s * pool.num_lanes
        timing.simulators_s, timing.peak_worker_mib = pool.busy_s, pool.peak_resident_mib
        timing.num_restarts, timing.num_recycles = pool.num_restarts, pool.num_recycles

    def _seat(self, number: int) -> None:
        """Give a free slot its next unit; those of an outgrown worker wait until all are free."""
        lane, num_lanes = number % self._pool.num_lanes, self._pool.num_lanes
        if self._pool.is_outgrown(lane):
            if any(slot.lane == lane for slot in self._slots.values()):
                return
            self._pool.recycle(lane)
        for free in range(lane, self._num_slots, num_lanes):
            if free not in self._slots:
                self._begin(free)

    def _begin(self, number: int) -> None:
        """Give a free slot the next unit of its lane, or of the longest queue."""
        lane = number % self._pool.num_lanes
        in_use = {slot.unit.episode.scene_id for slot in self._slots.values() if slot.lane == lane}
        turn = self._queues.take(lane, in_use)
        if turn is None:
            return
        unit = turn.unit
        notes = Notes(attempts=turn.attempt, is_filmed=self._is_filmed(unit))
        self._slots[number] = Slot(
            number,
            lane,
            unit,
            notes,
            generator(self._settings.seed, "chance", *unit.episode.key),
            script(
                unit,
                self._settings,
                scene=self._scene_path(unit.episode),
                agent=number,
                notes=notes,
            ),
        )
        self._advance(self._slots[number], None)

    def _advance(self, slot: Slot, answer: Any) -> Played | None:
        """Hand a slot its answer and pass on what it asks for next; the episode at its end."""
        try:
            request = slot.script.send(answer)
        except StopIteration as end:
            del self._slots[slot.number]
            self._seat(slot.number)
            return end.value
        if isinstance(request, Call):
            self._num_outstanding += 1
            self._pool.submit(slot.lane, slot.number, request.method, **request.arguments)
        elif slot.unit.condition.actor is Actor.NETWORK:
            self._look(slot, request)
            self._waiting[slot.number] = request
        else:
            self._look(slot, request)
            return self._advance(slot, without_network(slot, request, self._settings))
        return None

    def _is_time_to_decide(self) -> bool:
        num_network = sum(
            slot.unit.condition.actor is Actor.NETWORK for slot in self._slots.values()
        )
        return self._num_outstanding == 0 or 2 * len(self._waiting) >= num_network

    def _decide(self) -> None:
        """Ask the network for every slot that waits."""
        assert self._decider is not None, "a network row without a network"
        waiting, self._waiting = self._waiting, {}
        begun = time.perf_counter()
        decided = self._decider.decide(waiting, self._slots)
        self.timing.policy_s += time.perf_counter() - begun
        self.timing.num_calls += decided.num_calls
        self.timing.num_decisions += len(decided.chosen)
        for number, chosen in decided.chosen.items():
            self._advance(self._slots[number], chosen)
        for slot in decided.full:
            slot.notes.remark = "the policy's context is full: ended without STOP"
            self._advance(slot, ())

    def _look(self, slot: Slot, request: Decide) -> None:
        """Count and, where the episode is filmed, keep the images that come with a decision."""
        if request.outcome.observation is not None:
            self.timing.num_frames += len(request.outcome.observation.rgb)
        if slot.notes.is_filmed and request.outcome.observation is not None:
            slot.notes.frames.append(dict(request.outcome.observation.rgb))

    def _handle(self, answer: Completed) -> Played | Crashed | None:
        slot = self._slots[answer.ticket]
        if answer.error is None:
            return self._advance(slot, answer.value)
        if not isinstance(answer.error, WorkerDiedError | AgentLostError):
            raise answer.error
        del self._slots[slot.number]
        attempts = slot.notes.attempts + isinstance(answer.error, WorkerDiedError)
        crashed = Crashed(slot.unit, str(answer.error)) if attempts > MAX_ATTEMPTS else None
        if crashed is None:
            self._queues.put_back(slot.lane, Turn(slot.unit, attempts))
        self._seat(slot.number)
        return crashed


@contextmanager
def _prompt_threads() -> Iterator[None]:
    """Let the lanes' threads interrupt a policy that computes in Python (or launches kernels from
    it) sooner than after the usual 5 ms: an image of 224 x 224 pixels with depth came back in 11
    instead of 15 ms beside such a thread."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
