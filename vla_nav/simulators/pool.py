"""Several simulator workers beside one policy: requests go out, answers come back as they finish.

    submit(worker, ticket, method, ...)  ---> queue ---> thread ---> worker process
    completed(timeout_s)                 <--- Completed(ticket, value or error) <---'

Each worker answers its requests in order. When one dies (crash, hang beyond the timeout) it is
started again; the request it died over comes back with `WorkerDiedError`, and requests for agents
that lived in the dead process come back with `AgentLostError`: they are not to blame. With no
workers the calls run in this process at `submit`.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from vla_nav.episodes.types import Embodiment
from vla_nav.errors import UserError
from vla_nav.simulators.client import (
    LocalWorker,
    Worker,
    WorkerDiedError,
    WorkerProcess,
)

_MAX_STARTS_IN_A_ROW = 3  # a worker that cannot even start is a fault of the set-up
_JOIN_S = 10.0


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
    ) -> None:
        def start() -> Worker:
            if num_workers == 0:
                return LocalWorker(backend, embodiment, options)
            return WorkerProcess(backend, embodiment, options, python=python, timeout_s=timeout_s)

        self.num_lanes = max(1, num_workers)
        self._answers: queue.SimpleQueue[Completed] = queue.SimpleQueue()
        with ThreadPoolExecutor(self.num_lanes) as starters:  # a start is a second of imports
            starts = [starters.submit(start) for _ in range(self.num_lanes)]
        try:
            self._lanes = [_Lane(start, one.result(), self._answers) for one in starts]
        except WorkerDiedError as error:
            raise UserError(
                f"simulators.python={python}: no worker of backend '{backend}' starts ({error}); "
                "name an interpreter that has the backend, or raise simulators.timeout_s"
            ) from None
        if num_workers:
            for lane in self._lanes:
                lane.run_in_thread()

    @property
    def num_restarts(self) -> int:
        """How often a worker had to be started again."""
        return sum(lane.num_restarts for lane in self._lanes)

    def pids(self) -> list[int]:
        """Process ids of the live workers."""
        return [lane.worker.pid for lane in self._lanes if isinstance(lane.worker, WorkerProcess)]

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
    ) -> None:
        self._start = start
        self._answers = answers
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_closing = False
        self._agents: set[int] = set()
        self.num_restarts = 0
        self.worker: Worker | None = worker

    def run_in_thread(self) -> None:
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def submit(self, request: _Request) -> None:
        if self._thread is None:
            self._answers.put(self._answer(request))
        else:
            self._requests.put(request)

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
            self._answers.put(self._answer(request))

    def _answer(self, request: _Request) -> Completed:
        agent = request.arguments.get("agent")
        if agent is not None and request.method != "open" and agent not in self._agents:
            return Completed(
                request.ticket, None, AgentLostError(f"agent {agent} of a dead worker")
            )
        try:
            if self.worker is None:
                self.worker = self._restarted()
            value = self.worker.call(request.method, **request.arguments)
        except WorkerDiedError as error:
            if self.worker is not None:
                self.worker.close()
            self.worker, self._agents = None, set()
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
                self.num_restarts += 1
                return worker
        raise AssertionError("unreachable")
