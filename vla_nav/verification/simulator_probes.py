"""Doctor's look at the simulator (I4): a worker process that loads a room, walks and renders in it.

floor of 4 x 4 m, four walls, a block    2 m of floor are 2 m, a step is a step, no image is of
                                         one colour
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vla_nav.episodes.types import MOVE_FORWARD, Embodiment, Pose
from vla_nav.errors import UserError
from vla_nav.simulators.client import WorkerDiedError, WorkerFaultError, WorkerProcess
from vla_nav.simulators.remote import RemoteSimulator
from vla_nav.verification.habitat_installation import probe_habitat
from vla_nav.verification.probes import Probe, one_line

_WORKER_TIMEOUT_S = 60.0
_ROOM_M = 4.0


def probe_backend(body: Embodiment, simulators: Mapping[str, Any]) -> list[Probe]:
    """I41x: what habitat-sim needs, where it is the backend; then I401 if that is there."""
    probes = probe_habitat(simulators) if simulators["backend"] == "habitat" else []
    if any(probe.severity == "error" for probe in probes):
        return probes
    return [*probes, probe_simulator(body, simulators)]


def probe_simulator(body: Embodiment, simulators: Mapping[str, Any]) -> Probe:
    """I401: a worker process starts, loads a room, renders, moves and measures a distance."""
    backend, name = simulators["backend"], f"simulator worker ({simulators['backend']})"
    python = simulators.get("python")
    try:
        worker = WorkerProcess(
            backend,
            body,
            dict(simulators.get("options") or {}),
            python=python,
            timeout_s=min(float(simulators.get("timeout_s", 120.0)), _WORKER_TIMEOUT_S),
        )
    except (UserError, WorkerDiedError, WorkerFaultError) as error:
        remedy = "set simulators.python to an interpreter that has the backend"
        return Probe("I401", name, "error", one_line(error), remedy)
    simulator = RemoteSimulator(worker, body, backend=backend)
    try:
        with tempfile.TemporaryDirectory() as folder:
            text, fault = _use(simulator, _write_room(Path(folder) / "room.glb"), body)
    except (UserError, WorkerDiedError, WorkerFaultError) as error:
        text, fault = one_line(error), "the worker did not get through a room of four walls"
    finally:
        simulator.close()
    if fault:
        remedy = "install trimesh and embreex again (mesh), or mend the backend's environment"
        return Probe("I401", name, "error", f"{fault}: {text}", remedy)
    return Probe("I401", name, "ok", text)


def _write_room(path: Path) -> Path:
    """A floor, four walls and a block to see."""
    import trimesh

    half = _ROOM_M / 2
    parts = [trimesh.creation.box((_ROOM_M, 0.1, _ROOM_M))]
    parts[0].apply_translation((0, -0.05, 0))
    for x, z, width, depth in (
        (-half, 0, 0.1, _ROOM_M),
        (half, 0, 0.1, _ROOM_M),
        (0, -half, _ROOM_M, 0.1),
        (0, half, _ROOM_M, 0.1),
    ):
        wall = trimesh.creation.box((width, 2.5, depth))
        wall.apply_translation((x, 1.25, z))
        parts.append(wall)
    block = trimesh.creation.box((0.6, 2.0, 0.4))
    block.apply_translation((0.5, 1.0, -1.2))
    block.visual.face_colors = [200, 60, 40, 255]
    trimesh.Scene([*parts, block]).export(path)
    return path


def _use(simulator: RemoteSimulator, room: Path, body: Embodiment) -> tuple[str, str]:
    """(what was seen, what was wrong or "")."""
    simulator.load_scene(str(room))
    pose = simulator.reset(Pose.from_yaw((0.0, 0.0, 1.0), 0.0))
    moved = simulator.act(MOVE_FORWARD).pose
    step = float(np.linalg.norm(np.subtract(moved.position, pose.position)))
    images = simulator.observe().rgb
    distance = simulator.geodesic_distance((0.0, 0.0, 1.0), [(0.0, 0.0, -1.0)])
    text = f"moved {step:.3f} m, {len(images)} images, 2 m of floor measured {distance:.3f} m"
    if abs(step - body.step_m) > 0.01:
        return text, f"a step of {body.step_m:g} m is wrong"
    if not 1.99 <= distance <= 2.2:
        return text, "a distance is wrong"
    if any(np.ptp(image) == 0 for image in images.values()):
        return text, "an image is of one colour"
    return text, ""
