"""Several simulator workers beside one policy: requests go out, answers come back as they finish.

    submit(worker, ticket, method, ...)  ---> queue ---> thread ---> worker process
    completed(timeout_s)                 <--- Completed(ticket, value or error) <---'

Each worker answers its requests in order. When one dies (crash, hang beyond the timeout) it is
started again; the request it died over comes back with `WorkerDiedError`, and requests for agents
that lived in the dead process come back with `AgentLostError`: they are not to blame. With no
workers the calls run in this process at `submit`.

A worker whose resident memory has grown beyond a limit is `is_outgrown`; once nobody's agent lives
in it any more its user calls `recycle`, and the next request meets a fresh process.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from vla_nav.episodes.types import Embodiment
from vla_nav.simulators.client import (
    Worker,
    WorkerDiedError,
    WorkerProcess,
    start_fault,
    start_worker,
)
from vla_nav.simulators.memory import resident_mib

_MAX_STARTS_IN_A_ROW = 3  # a worker that cannot even start is a fault of the set-up
_JOIN_S = 10.0
_RECYCLE = ""  # no method of a host


class AgentLostError(RuntimeError):
    """The agent's worker was started again since the agent was opened."""


class Completed(NamedTuple):
    """An answer: `value`, or the `error` that came instead."""

    ticket: Hashable
    value: Any
    error: Exception | None


class _Request(NamedTuple):
    ticket: Hashable
    method: str
    arguments: dict[str, Any]


class SimulatorPool:
    """`num_workers` processes of one backend, or this process where it is 0."""

    def __init__(
        self,
        backend: str,
        embodiment: Embodiment,
        options: dict[str, Any],
        *,
        num_workers: int,
        python: str | None = None,
        timeout_s: float = 120.0,
        max_resident_mib: float | None = None,
    ) -> None:
        """max_resident_mib: of a worker, beyond which it is outgrown; None for never."""

        def start() -> Worker:
            return start_worker(
                backend,
                embodiment,
                options,
                is_local=num_workers == 0,
                python=python,
                timeout_s=timeout_s,
            )

        self.num_lanes = max(1, num_workers)
        self._answers: queue.SimpleQueue[Completed] = queue.SimpleQueue()
        with ThreadPoolExecutor(self.num_lanes) as starters:  # a start is a second of imports
            starts = [starters.submit(start) for _ in range(self.num_lanes)]
        try:
            self._lanes = [
                _Lane(start, one.result(), self._answers, max_resident_mib) for one in starts
            ]
        except WorkerDiedError as error:
            raise start_fault(error, backend, python) from None
        # An agent in yet another scene of the same worker would push one out that is in use.
        self.max_scenes = starts[0].result().max_scenes
        if num_workers:
            for lane in self._lanes:
                lane.run_in_thread()

    @property
    def num_restarts(self) -> int:
        """How often a worker had to be started again."""
        return sum(lane.num_restarts for lane in self._lanes)

    @property
    def num_recycles(self) -> int:
        """How often an outgrown worker was replaced."""
        return sum(lane.num_recycles for lane in self._lanes)

    @property
    def busy_s(self) -> float:
        """Seconds spent inside workers, of all lanes together."""
        return sum(lane.busy_s for lane in self._lanes)

    @property
    def peak_resident_mib(self) -> float:
        """The largest resident memory that a worker was seen with; 0 without workers."""
        return max(lane.peak_mib for lane in self._lanes)

    def pids(self) -> list[int]:
        """Process ids of the live workers."""
        return [lane.worker.pid for lane in self._lanes if isinstance(lane.worker, WorkerProcess)]

    def is_outgrown(self, lane: int) -> bool:
        """Whether the lane's worker takes more memory than it may."""
        return self._lanes[lane].is_outgrown

    def recycle(self, lane: int) -> None:
        """End the lane's worker behind the requests it has; the agents in it are lost."""
        self._lanes[lane].recycle()

    def submit(self, lane: int, ticket: Hashable, method: str, **arguments: Any) -> None:
        """Ask worker `lane`; the answer comes out of `completed` under `ticket`."""
        self._lanes[lane].submit(_Request(ticket, method, arguments))

    def completed(self, timeout_s: float) -> list[Completed]:
        """Every answer that is there; waits up to `timeout_s` for a first one."""
        answers = []
        try:
            answers.append(self._answers.get(timeout=timeout_s) if timeout_s > 0 else None)
            if answers[-1] is None:
                answers.pop()
            while True:
                answers.append(self._answers.get_nowait())
        except queue.Empty:
            return answers

    def close(self) -> None:
        """End every worker."""
        for lane in self._lanes:
            lane.close()


class _Lane:
    """One worker, its queue, and which agents live in it."""

    def __init__(
        self,
        start: Callable[[], Worker],
        worker: Worker,
        answers: queue.SimpleQueue[Completed],
        max_resident_mib: float | None,
    ) -> None:
        self._start = start
        self._answers = answers
        self._max_resident_mib = max_resident_mib
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_closing = False
        self._agents: set[int] = set()
        self._is_recycled = False
        self.is_outgrown = False
        self.num_restarts = self.num_recycles = 0
        self.busy_s = self.peak_mib = 0.0
        self.worker: Worker | None = worker

    def run_in_thread(self) -> None:
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def submit(self, request: _Request) -> None:
        if self._thread is None:
            self._answers.put(self._answer(request))
        else:
            self._requests.put(request)

    def recycle(self) -> None:
        self.is_outgrown = False
        if self._thread is not None:  # what runs in this process cannot be replaced
            self.submit(_Request(None, _RECYCLE, {}))

    def close(self) -> None:
        self._is_closing = True
        if self._thread is not None:
            if self.worker is not None:
                self.worker.kill()
            self._requests.put(None)
            self._thread.join(timeout=_JOIN_S)
        if self.worker is not None:
            self.worker.close()

    def _serve(self) -> None:
        while (request := self._requests.get()) is not None and not self._is_closing:
            if request.method == _RECYCLE:
                self._end_worker()
                self._is_recycled = True
            else:
                self._answers.put(self._answer(request))

    def _end_worker(self) -> None:
        if self.worker is not None:
            self.worker.close()
        self.worker, self._agents, self.is_outgrown = None, set(), False

    def _weigh(self) -> None:
        """Look how much memory the worker takes; a process of its own only."""
        if isinstance(self.worker, WorkerProcess):
            resident = resident_mib(self.worker.pid)
            self.peak_mib = max(self.peak_mib, resident)
            limit = self._max_resident_mib
            self.is_outgrown = self.is_outgrown or (limit is not None and resident > limit)

    def _answer(self, request: _Request) -> Completed:
        agent = request.arguments.get("agent")
        if agent is not None and request.method != "open" and agent not in self._agents:
            return Completed(
                request.ticket, None, AgentLostError(f"agent {agent} of a dead worker")
            )
        try:
            if self.worker is None:
                self.worker = self._restarted()
            begun = time.perf_counter()
            value = self.worker.call(request.method, **request.arguments)
            self.busy_s += time.perf_counter() - begun
            self._weigh()
        except WorkerDiedError as error:
            self._end_worker()
            return Completed(request.ticket, None, error)
        except Exception as error:  # noqa: BLE001 - raised where the answer is awaited
            return Completed(request.ticket, None, error)
        if request.method == "open":
            self._agents.add(request.arguments["agent"])
        elif request.method == "close":
            self._agents.discard(request.arguments["agent"])
        return Completed(request.ticket, value, None)

    def _restarted(self) -> Worker:
        for attempt in range(_MAX_STARTS_IN_A_ROW):
            try:
                worker = self._start()
            except WorkerDiedError:
                if attempt == _MAX_STARTS_IN_A_ROW - 1:
                    raise
            else:
                self.num_recycles += self._is_recycled
                self.num_restarts += not self._is_recycled
                self._is_recycled = False
                return worker
        raise AssertionError("unreachable")
