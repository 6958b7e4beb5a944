"""Doctor for `simulators=habitat`: the interpreter, its packages, habitat-sim, and rendering.

    I411 the interpreter starts | I412 it has what the worker imports | I413 habitat-sim
    I414 it makes a simulator and renders on the configured device

A program runs in that interpreter and reports after every stage, so that a stage that ends the
process (habitat-sim does, without an exception) is known by what came before it; its standard
error is looked up in the table of known failures (`simulators/habitat_faults.py`).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from vla_nav.errors import UserError
from vla_nav.simulators.habitat_faults import INSTALL, explain
from vla_nav.verification.probes import Probe, one_line

OLDEST_PYTHON = (3, 9)
_TIMEOUT_S = 120.0
_STAGES = ("python", "packages", "habitat_sim", "render")
_CODES = dict(zip(_STAGES, ("I411", "I412", "I413", "I414"), strict=True))
_NAMES = {
    "python": "habitat's interpreter",
    "packages": "packages of the worker",
    "habitat_sim": "habitat-sim",
    "render": "habitat-sim rendering",
}
_REMEDIES = {
    "python": "set simulators.python to the interpreter of the environment that has habitat-sim",
    "packages": "pip install numpy msgpack in habitat-sim's environment",
    "habitat_sim": INSTALL,
    "render": "see docs/habitat.md, part Troubles; simulators.options.gpu_device_id=-1 renders "
    "without a GPU",
}


class _Answer(NamedTuple):
    """What the program said per stage, how it ended, its standard error."""

    stages: dict[str, dict[str, Any]]
    code: int | None  # None: it did not end in time
    text: str


def probe_habitat(simulators: Mapping[str, Any], *, timeout_s: float = _TIMEOUT_S) -> list[Probe]:
    """I411 to I414, up to the first that fails. simulators: python and options.gpu_device_id."""
    python = os.path.expanduser(simulators.get("python") or sys.executable)
    fault = _interpreter_fault(python)
    if fault:
        return [Probe("I411", _NAMES["python"], "error", fault, _REMEDIES["python"])]
    device = (simulators.get("options") or {}).get("gpu_device_id")
    answer = _ask(python, device, timeout_s)
    probes: list[Probe] = []
    for stage in _STAGES:
        said = answer.stages.get(stage)
        if said is None or said.get("error"):
            return [*probes, _failure(stage, answer)]
        if stage == "python" and tuple(said["version"]) < OLDEST_PYTHON:
            found = f"Python {'.'.join(map(str, said['version']))} ({python})"
            remedy = f"{'.'.join(map(str, OLDEST_PYTHON))} is the oldest that works; {INSTALL}"
            return [Probe("I411", _NAMES[stage], "error", found, remedy)]
        probes.append(_success(stage, said, python))
    return probes


def require_habitat(simulators: Mapping[str, Any]) -> None:
    """Raise `UserError` with the code, the finding and the remedy of the first probe that fails.

    A check of data needs the simulator: that it is missing is no finding about the data.
    """
    for probe in probe_habitat(simulators):
        if probe.severity == "error":
            raise UserError(
                f"{probe.code} {probe.name}: {probe.found}; {probe.remedy}; without a simulator "
                "data is checked with doctor.reachability.num_scenes=0"
            )


def _interpreter_fault(python: str) -> str:
    """What is wrong with the path, or ""."""
    found = shutil.which(python)
    if found is not None:
        return ""
    path = Path(python)
    if path.is_dir():
        return f"{python} is a folder; its interpreter is most often bin/python below it"
    if path.exists():
        return f"{python} is not an executable file"
    return f"{python} does not exist"


def _ask(python: str, device: int | None, timeout_s: float) -> _Answer:
    root = str(Path(__file__).parents[2])
    with tempfile.TemporaryDirectory(prefix="vla_nav_doctor_") as folder:
        command = [python, "-c", _PROGRAM, root, "null" if device is None else str(device)]
        environment = {**os.environ, "HABITAT_SIM_LOG": "error", "MAGNUM_LOG": "default"}
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                timeout=timeout_s,
                check=False,
                cwd=folder,
                env=environment,
            )
        except subprocess.TimeoutExpired as error:
            return _Answer(_stages(error.stdout), None, _text(error.stderr))
        except OSError as error:
            return _Answer({}, 1, f"cannot start {python}: {error.strerror}")
    return _Answer(_stages(done.stdout), done.returncode, _text(done.stderr))


def _stages(output: bytes | None) -> dict[str, dict[str, Any]]:
    """The program's lines; what the library prints between them is passed over."""
    stages = {}
    for line in _text(output).splitlines():
        _, mark, value = line.partition(_MARK)
        if mark:
            said = json.loads(value)
            stages[said.pop("stage")] = said
    return stages


def _text(output: bytes | None) -> str:
    return (output or b"").decode("utf-8", "replace")


def _success(stage: str, said: Mapping[str, Any], python: str) -> Probe:
    name, code = _NAMES[stage], _CODES[stage]
    if stage == "python":
        return Probe(code, name, "ok", f"{'.'.join(map(str, said['version']))} ({python})")
    if stage == "render" and said["is_wrong"]:
        found = f"{said['text']}; an empty scene does not have the background's colour"
        return Probe(code, name, "error", found, _REMEDIES["render"])
    if stage == "render" and said["has_gpu"] and said["device"] == -1:
        remedy = "set simulators.options.gpu_device_id=null to render on the GPU"
        return Probe(code, name, "info", f"{said['text']}, though there is a GPU", remedy)
    return Probe(code, name, "ok", said["text"])


def _failure(stage: str, answer: _Answer) -> Probe:
    said = answer.stages.get(stage, {})
    text = f"{said.get('error', '')}\n{answer.text}"
    if answer.code is None:
        found = "no answer in time"
        remedy = "a driver hangs: try simulators.options.gpu_device_id=-1"
        return Probe(_CODES[stage], _NAMES[stage], "error", found, remedy)
    fault = explain(text, answer.code)
    lines = [line for line in text.strip().splitlines() if line.strip()]
    last = one_line(said.get("error") or (lines[-1] if lines else f"ended with code {answer.code}"))
    if fault is None:
        return Probe(_CODES[stage], _NAMES[stage], "error", last, _REMEDIES[stage])
    return Probe(_CODES[stage], _NAMES[stage], "error", f"{fault.cause}: {last}", fault.remedy)


_MARK = "vla-nav-doctor "
# Runs on any Python 3, to say that it is too old; so no f-strings.
_PROGRAM = """
import json, os, sys


def say(stage, **values):
    values["stage"] = stage
    os.write(1, ("\\n" + MARK + json.dumps(values) + "\\n").encode())


def fail(stage, error):
    say(stage, error=type(error).__name__ + ": " + str(error))
    raise SystemExit(1)


MARK, root, device = "vla-nav-doctor ", sys.argv[1], json.loads(sys.argv[2])
say("python", version=list(sys.version_info[:3]))
if sys.version_info < (3, 9):
    raise SystemExit(1)
try:
    import msgpack, numpy
except Exception as error:
    fail("packages", error)
say("packages", text="numpy " + numpy.__version__ + ", msgpack %d.%d.%d" % msgpack.version)
try:
    import habitat_sim
    sys.path.insert(0, root)
    from vla_nav.simulators.habitat import gpu_device
except Exception as error:
    fail("habitat_sim", error)
built = "with" if getattr(habitat_sim, "cuda_enabled", False) else "without"
bullet = "with" if getattr(habitat_sim, "built_with_bullet", False) else "without"
text = "%s (%s CUDA, %s Bullet)" % (habitat_sim.__version__, built, bullet)
say("habitat_sim", text=text)
try:
    os.mkdir("data")
    with open("data/default.pbr_config.json", "w") as file:
        none = {"enable_ibl": False, "ibl_blut_filename": "none", "ibl_envmap_filename": "none"}
        json.dump(none, file)
    found = gpu_device()
    settings = habitat_sim.SimulatorConfiguration()
    settings.gpu_device_id = found if device is None else device
    settings.scene_id = "NONE"
    settings.enable_physics = False
    spec = habitat_sim.CameraSensorSpec()
    spec.uuid, spec.resolution, spec.position = "eye", [32, 48], [0.0, 1.5, 0.0]
    spec.sensor_type = habitat_sim.SensorType.COLOR
    spec.clear_color = [0.2, 0.4, 0.6, 1.0]
    body = habitat_sim.AgentConfiguration()
    body.sensor_specifications = [spec]
    simulator = habitat_sim.Simulator(habitat_sim.Configuration(settings, [body]))
    image = simulator.get_sensor_observations()["eye"]
    where = "software (Mesa)" if settings.gpu_device_id < 0 else "CUDA device %d" % (
        settings.gpu_device_id
    )
    colour = [int(value) for value in image[0, 0]]
    say("render", text="%d x %d pixels by %s" % (image.shape[1], image.shape[0], where),
        is_wrong=colour[2] <= colour[0], has_gpu=found >= 0, device=settings.gpu_device_id)
    simulator.close()
except Exception as error:
    fail("render", error)
"""
