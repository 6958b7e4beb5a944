"""The simulator backends as users configure them, each with the accuracy that it promises.

    make_bench("habitat")  ->  Bench: one worker, many scenes and bodies, one after the other

A bench talks to its backend as the program does: through a worker and `RemoteSimulator`. The mesh
backend answers in this process, habitat-sim in a process of `VLA_NAV_HABITAT_PYTHON`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from mesh_scenes import SceneBuilder, embodiment

from vla_nav.episodes.types import Camera, Embodiment
from vla_nav.simulators import plain
from vla_nav.simulators.client import Worker, start_worker
from vla_nav.simulators.remote import RemoteSimulator

CONF = Path(__file__).parents[2] / "conf" / "simulators"
NO_CAMERAS: tuple[Camera, ...] = ()


@dataclass(frozen=True)
class Promise:
    """What a backend promises, in metres (and the reason, where it is not the arithmetic).

    free_m: x and z after a free walk. height_m: how far above the floor an agent may stand.
    contact_m: how much nearer and farther than its radius it stops at a straight wall.
    round_m: the same at slanted walls and corners. geodesic: relative error of a distance.
    depth_m: error of a pixel's depth that sees one surface.
    """

    free_m: float
    height_m: float
    contact_m: tuple[float, float]
    round_m: tuple[float, float]
    geodesic: float
    depth_m: float


PROMISES = {
    # Contact is found to 0.5 mm; slanted obstacles are sampled at cells of 0.1 m.
    "mesh": Promise(1e-6, 1e-3, (2e-3, 2e-3), (0.05, 0.06), 0.02, 2e-3),
    # Positions are float32; the navigation mesh has cells of 0.05 m, 0.2 m high; it is eroded by
    # whole cells (the radius rounded up) after rounding obstacles out to cells, and its outline
    # is simplified by up to 1.3 cells.
    "habitat": Promise(1e-4, 0.25, (0.01, 0.12), (0.08, 0.15), 0.05, 2e-2),
}


class Bench:
    """A backend at work. `open` gives a simulator of a scene; the one before is then no more."""

    def __init__(self, name: str, worker: Worker, folder: Path) -> None:
        self.name = name
        self.promise = PROMISES[name]
        self._worker = worker
        self._folder = folder
        self._configured: tuple[Embodiment, dict[str, Any]] | None = None

    def open(
        self,
        scene: Callable[[], SceneBuilder] | str | Path,
        *,
        options: dict[str, Any] | None = None,
        **body: Any,
    ) -> RemoteSimulator:
        """A simulator with the scene loaded. scene: a file, or a function that builds it (written
        once, by its name). options: beyond the configuration's. body: of `embodiment`."""
        wanted = embodiment(**{"cameras": NO_CAMERAS, **body}), options or {}
        if wanted != self._configured:
            self._worker.call(
                "configure",
                embodiment=plain.embodiment_to_plain(wanted[0]),
                options={**configured_options(self.name), **wanted[1]},
            )
            self._configured = wanted
        simulator = RemoteSimulator(self._worker, wanted[0], backend=self.name)
        simulator.load_scene(str(self.file(scene)))
        return simulator

    def file(self, scene: Callable[[], SceneBuilder] | str | Path) -> Path:
        """The scene's file."""
        if not callable(scene):
            return Path(scene)
        path = self._folder / f"{scene.__name__}.glb"
        return path if path.exists() else scene().write(path)

    def close(self) -> None:
        """End the worker."""
        self._worker.close()


def make_bench(name: str, folder: Path) -> Bench:
    """A bench of a backend; skips the test where the backend is not installed."""
    python = os.environ.get("VLA_NAV_HABITAT_PYTHON") if name == "habitat" else None
    if name == "habitat" and not python:
        pytest.skip("VLA_NAV_HABITAT_PYTHON names no interpreter with habitat-sim")
    worker = start_worker(
        name, embodiment(cameras=NO_CAMERAS), {}, is_local=True, python=python, timeout_s=120.0
    )
    return Bench(name, worker, folder)


def configured_options(name: str) -> dict[str, Any]:
    """The options that users get without asking: conf/simulators/<name>.yaml."""
    return yaml.safe_load((CONF / f"{name}.yaml").read_text(encoding="utf-8"))["options"]
