"""The other end of a simulator worker's pipes.

WorkerProcess   starts `worker.py` with any interpreter, checks the protocol, exchanges frames
LocalWorker     the same calls without a process
start_fault     what is said to the user where none starts
start_worker    either of them: a backend that may end its process always gets its own
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import msgpack

from vla_nav.episodes.types import Embodiment
from vla_nav.errors import UserError
from vla_nav.simulators import plain
from vla_nav.simulators.habitat_faults import Fault, explain, without_noise
from vla_nav.simulators.worker import PROTOCOL_VERSION, answer, make_host, read_frame, write_frame

IN_PROCESS_BACKENDS = ("mesh",)  # habitat-sim's errors can end the process it lives in
_WORKER_FILE = Path(__file__).with_name("worker.py")


class WorkerDiedError(RuntimeError):
    """The worker process ended, hung beyond its timeout or broke the protocol; why, if known."""

    def __init__(self, text: str, fault: Fault | None = None) -> None:
        super().__init__(text if fault is None else f"{text}; {fault.cause}: {fault.remedy}")
        self.fault = fault


class WorkerFaultError(RuntimeError):
    """A method raised inside the worker; the text holds the worker's own traceback."""


class Worker(Protocol):
    """Something that answers a host's methods. max_scenes: how many it keeps loaded.

    version: of the simulation library, "" for the backends of this package.
    """

    max_scenes: int
    version: str

    def call(self, method: str, **arguments: Any) -> Any:
        """The method's value; `UserError` and `WorkerFaultError` as raised there."""
        ...

    def kill(self) -> None:
        """Make a call in progress in another thread raise."""
        ...

    def close(self) -> None:
        """End it; safe to call twice."""
        ...


class LocalWorker:
    """A host in this process."""

    def __init__(self, backend: str, embodiment: Embodiment, options: dict[str, Any]) -> None:
        self._host = make_host(backend)
        self.max_scenes: int = self._host.max_scenes
        self.version: str = self._host.version
        self.call(
            "configure", embodiment=plain.embodiment_to_plain(embodiment), options=dict(options)
        )

    def call(self, method: str, **arguments: Any) -> Any:
        """See `Worker`."""
        return _value(answer(self._host, {"method": method, "arguments": arguments}))

    def kill(self) -> None:
        """Nothing to do: calls run in the caller's thread."""

    def close(self) -> None:
        """Drop the host and its scenes."""
        self._host = None


class WorkerProcess:
    """A worker in a process of its own, configured and ready when the constructor returns."""

    def __init__(
        self,
        backend: str,
        embodiment: Embodiment,
        options: dict[str, Any],
        *,
        python: str | None = None,
        timeout_s: float = 120.0,
    ) -> None:
        self._backend, self._timeout_s = backend, timeout_s
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        command = [os.path.expanduser(python or sys.executable), str(_WORKER_FILE), backend]
        # It is killed, not asked to leave: what it writes meanwhile is for us to remove.
        self._folder = tempfile.TemporaryDirectory(
            prefix="vla_nav_worker_", ignore_cleanup_errors=True
        )
        own = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
        own["TMPDIR"] = self._folder.name
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env={**os.environ, **own},
            )
        except OSError as error:
            self._folder.cleanup()
            raise UserError(
                f"simulators.python: cannot start {command[0]} ({error.strerror}); "
                "give the path of an interpreter that has the backend"
            ) from None
        try:
            self.hello: dict[str, Any] = self._receive()
            _check_protocol(self.hello, command[0])
            self.max_scenes: int = self.hello.get("max_scenes", 1)
            self.version = str(self.hello.get("version", ""))
            self.call(
                "configure", embodiment=plain.embodiment_to_plain(embodiment), options=dict(options)
            )
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def call(self, method: str, **arguments: Any) -> Any:
        """See `Worker`; raises `WorkerDiedError` when no answer comes within the timeout."""
        assert self._process.stdin is not None
        try:
            write_frame(self._process.stdin, {"method": method, "arguments": arguments})
        except (BrokenPipeError, ValueError):
            raise self._died("closed its input") from None
        return _value(self._receive())

    def kill(self) -> None:
        """End the process at once, from any thread; a call in progress raises."""
        self._process.kill()

    def close(self) -> None:
        """End the process at once; its state is nothing worth saving."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None:
                with suppress(BrokenPipeError):  # bytes that a dead worker never took
                    stream.close()
        self._folder.cleanup()

    def _receive(self) -> Any:
        deadline = time.monotonic() + self._timeout_s
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()

        def read(count: int) -> bytes:
            parts = []
            while count:
                ready, _, _ = select.select(
                    [descriptor], [], [], max(0.0, deadline - time.monotonic())
                )
                if not ready:
                    raise self._died(f"gave no answer in {self._timeout_s:g} s")
                part = os.read(descriptor, min(count, 1 << 20))
                if not part:
                    self._process.wait()
                    raise self._died(f"ended with code {self._process.returncode}")
                parts.append(part)
                count -= len(part)
            return b"".join(parts)

        try:
            return read_frame(read)
        except (ValueError, msgpack.UnpackException) as error:
            raise self._died(f"broke the protocol ({error})") from None

    def _died(self, what: str) -> WorkerDiedError:
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - 2000))
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        lines = without_noise(lines)
        last = f": {lines[-1]}" if lines else ""
        text = f"simulator worker {self._process.pid} {what}{last}"
        is_known = self._backend == "habitat"  # whose words the table has
        fault = explain("\n".join(lines), self._process.poll()) if is_known else None
        return WorkerDiedError(text, fault)


def start_fault(error: WorkerDiedError, backend: str, python: str | None) -> UserError:
    """The one line for a worker that does not even start."""
    place = f"simulators.python={python or f'null, {sys.executable}'}"
    why = f"{error}; name an interpreter that has the backend, or raise simulators.timeout_s"
    if error.fault is not None:  # then the process's number and last words tell nothing more
        why = f"{error.fault.cause}; {error.fault.remedy}"
    return UserError(f"{place}: no worker of backend '{backend}' starts: {why}")


def start_worker(
    backend: str,
    embodiment: Embodiment,
    options: dict[str, Any],
    *,
    is_local: bool,
    python: str | None = None,
    timeout_s: float = 120.0,
) -> Worker:
    """A configured worker; `is_local` asks for one in this process, where the backend allows."""
    if is_local and backend in IN_PROCESS_BACKENDS:
        return LocalWorker(backend, embodiment, options)
    return WorkerProcess(backend, embodiment, options, python=python, timeout_s=timeout_s)


def _check_protocol(hello: dict[str, Any], python: str) -> None:
    if hello.get("protocol") != PROTOCOL_VERSION:
        raise UserError(
            f"simulators.python: {python} speaks worker protocol {hello.get('protocol')}, "
            f"this program {PROTOCOL_VERSION}; use the worker file of the same version"
        )


def _value(reply: dict[str, Any]) -> Any:
    error = reply.get("error")
    if error is None:
        return reply["value"]
    if error["kind"] == "UserError":
        raise UserError(error["text"])
    raise WorkerFaultError(f"{error['kind']}: {error['text']}\n{error['trace']}")
