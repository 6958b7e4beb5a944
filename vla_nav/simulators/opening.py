"""A simulator by configuration: in this process where the backend allows, else behind a worker.

conf/simulators/*.yaml  ->  SimulatorSetup  --opened(body)-->  MeshSimulator
                                                               RemoteSimulator - - worker
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vla_nav.episodes.types import Embodiment
from vla_nav.frozen import frozen
from vla_nav.simulators.client import (
    IN_PROCESS_BACKENDS,
    Worker,
    WorkerDiedError,
    start_fault,
    start_worker,
)
from vla_nav.simulators.protocol import Simulator
from vla_nav.simulators.remote import RemoteSimulator


@frozen
class SimulatorSetup:
    """Which simulator: the backend, its keyword options, and where its process comes from."""

    backend: str
    options: Mapping[str, Any]
    python: str | None = None
    timeout_s: float = 120.0

    @staticmethod
    def of(simulators: Mapping[str, Any]) -> SimulatorSetup:
        """The setup of a composed `simulators` configuration."""
        return SimulatorSetup(
            simulators["backend"],
            dict(simulators["options"]),
            simulators.get("python"),
            float(simulators.get("timeout_s", 120.0)),
        )

    def opened(self, embodiment: Embodiment) -> Simulator:
        """A simulator without a scene; close it, since it may own a process."""
        if self.backend in IN_PROCESS_BACKENDS:
            from vla_nav.simulators.mesh import MeshSimulator

            return MeshSimulator(embodiment, **self.options)
        return RemoteSimulator(
            self.started(embodiment), embodiment, backend=self.backend, restart=self.started
        )

    def version(self, embodiment: Embodiment) -> str:
        """The version of the simulation library: what results were made with. "" for mesh."""
        if self.backend in IN_PROCESS_BACKENDS:
            return ""
        worker = self.started(embodiment)
        try:
            return worker.version
        finally:
            worker.close()

    def started(self, embodiment: Embodiment) -> Worker:
        """A worker, in this process where the backend allows."""
        try:
            return start_worker(
                self.backend,
                embodiment,
                dict(self.options),
                is_local=True,
                python=self.python,
                timeout_s=self.timeout_s,
            )
        except WorkerDiedError as error:
            raise start_fault(error, self.backend, self.python) from None
