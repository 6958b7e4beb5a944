"""Doctor without data: what this machine and environment can run. Every probe really runs.

    I1 Python and packages | I2 torch and its devices | I3 attention against its definition
    I4 simulator: what habitat-sim needs, a worker process started, a room rendered and walked
    I5 EGL | I6 disk, memory

A probe that fails is an error with a remedy; what is merely absent (no GPU, no EGL) is information,
since everything but speed and habitat-sim works without it. Codes keep their meaning.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from vla_nav.attention.parity import require_parity
from vla_nav.episodes.types import Embodiment
from vla_nav.errors import UserError
from vla_nav.verification.probes import Probe, one_line
from vla_nav.verification.simulator_probes import probe_backend

PYTHON_RANGE = ((3, 11), (3, 14))  # from, to exclusive
_LOW_DISK_GIB, _LOW_SHM_MIB, _LOW_MEMORY_GIB = 5.0, 512, 4.0
_EGL_TIMEOUT_S = 30.0


def examine_installation(
    *,
    body: Embodiment,
    simulators: Mapping[str, Any],
    output_dir: str | Path,
    progress: Callable[[Probe], None] | None = None,
) -> tuple[Probe, ...]:
    """Every probe. body, simulators: backend, python and options of the worker that is started.

    output_dir: whose disk is looked at. progress: told every probe as it is done.
    """
    probes: list[Probe] = []
    steps: list[Callable[[], list[Probe]]] = [
        lambda: [probe_python(sys.version_info[:3])],
        lambda: [probe_packages()],
        probe_torch,
        probe_attention,
        lambda: probe_backend(body, simulators),
        lambda: [probe_egl()],
        lambda: probe_room(Path(output_dir)),
    ]
    for step in steps:
        for probe in step():
            probes.append(probe)
            if progress is not None:
                progress(probe)
    return tuple(probes)


def probe_python(version: tuple[int, int, int]) -> Probe:
    """I101: the interpreter."""
    text = ".".join(map(str, version)) + f" ({sys.executable})"
    low, high = PYTHON_RANGE
    if low <= version[:2] < high:
        return Probe("I101", "Python", "ok", text)
    allowed = f"{low[0]}.{low[1]} to {high[0]}.{high[1] - 1}"
    return Probe("I101", "Python", "error", text, f"make an environment with Python {allowed}")


def probe_packages(requirements: list[str] | None = None) -> Probe:
    """I102: every required package is there in a version that is allowed."""
    from packaging.requirements import Requirement

    stated = _requirements() if requirements is None else requirements
    wrong, num = [], 0
    for line in stated:
        need = Requirement(line)
        if need.marker is not None and not need.marker.evaluate({"extra": ""}):
            continue
        num += 1
        try:
            version = metadata.version(need.name)
        except metadata.PackageNotFoundError:
            wrong.append(f"{need.name} is missing")
            continue
        if not need.specifier.contains(version, prereleases=True):
            wrong.append(f"{need.name} {version} (needs {need.specifier})")
    if not stated:
        text = "the project's requirements are not known here"
        return Probe("I102", "packages", "warning", text, "install the project with pip")
    if wrong:
        names = " ".join(f'"{re.sub(" .*", "", fault)}"' for fault in wrong)
        remedy = f"pip install --upgrade {names} -c constraints.txt"
        return Probe("I102", "packages", "error", "; ".join(wrong), remedy)
    return Probe("I102", "packages", "ok", f"{num} required ones in allowed versions")


def probe_torch() -> list[Probe]:
    """I201: torch computes; I202: every CUDA device does."""
    off = float((torch.eye(64) @ torch.full((64, 64), 2.0) - 2.0).abs().max())
    text = f"{torch.__version__}, CUDA build {torch.version.cuda or 'none'}"
    if off:
        remedy = "install torch again: a product of matrices is wrong"
        return [Probe("I201", "torch", "error", f"{text}, off by {off}", remedy)]
    probes = [Probe("I201", "torch", "ok", text)]
    if not torch.cuda.is_available():
        driver = shutil.which("nvidia-smi")
        if driver is None:
            text = "none: everything runs on the CPU, training of full-size models is slow"
            return [*probes, Probe("I202", "CUDA", "info", text)]
        kind = "has no CUDA build" if torch.version.cuda is None else "does not see the driver"
        text = f"nvidia-smi is there ({driver}), but torch {kind}"
        remedy = "install a torch build for the driver's CUDA version (nvidia-smi shows it)"
        return [*probes, Probe("I202", "CUDA", "error", text, remedy)]
    return probes + [_probe_device(index) for index in range(torch.cuda.device_count())]


def probe_attention() -> list[Probe]:
    """I301: the training backend equals the definition, on the CPU and on the first GPU."""
    cases = [("sdpa", "cpu", torch.float32)]
    if torch.cuda.is_available():
        cases += [("flex", "cuda", torch.bfloat16), ("sdpa", "cuda", torch.bfloat16)]
    probes = []
    for name, device, dtype in cases:
        label = f"attention {name} on {device}"
        try:
            parity = require_parity(
                name, device, dtype=dtype, num_heads=4, num_kv_heads=2, head_dim=64
            )
        except (UserError, RuntimeError) as error:
            remedy = "use the other backend (attention=flex or sdpa), or another torch release"
            probes.append(Probe("I301", label, "error", one_line(error), remedy))
            continue
        worst = parity.differences[0]
        text = f"off by {worst.relative:.1g} at most, allowed {parity.tolerance:g}, {dtype}"
        probes.append(Probe("I301", label, "ok", text))
    return probes


def probe_egl() -> Probe:
    """I501: EGL devices, which habitat-sim renders with; the mesh backend needs none."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _EGL_PROGRAM],
            capture_output=True,
            text=True,
            timeout=_EGL_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Probe("I501", "EGL", "info", "does not answer", _EGL_REMEDY)
    answer = done.stdout.strip()
    if done.returncode == 0 and answer.isdigit() and int(answer) > 0:
        return Probe("I501", "EGL", "ok", f"{answer} devices")
    reason = answer or f"ended with code {done.returncode}"
    return Probe("I501", "EGL", "info", f"{reason}; only habitat-sim needs it", _EGL_REMEDY)


def probe_room(output_dir: Path) -> list[Probe]:
    """I601 disk of the output, I602 shared memory for loader workers, I603 memory and cores."""
    place = output_dir.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free / 2**30
    is_low = free < _LOW_DISK_GIB
    remedy = "free some space, or set paths.output_dir to another disk" if is_low else ""
    severity = "warning" if is_low else "ok"
    if not os.access(place, os.W_OK):
        severity, remedy = "error", "set paths.output_dir to a folder that can be written"
    probes = [Probe("I601", "disk", severity, f"{free:.1f} GiB free at {place}", remedy)]
    shm = Path("/dev/shm")
    if shm.is_dir():
        mib = shutil.disk_usage(shm).total / 2**20
        low = mib < _LOW_SHM_MIB
        remedy = "start the container with a larger --shm-size, or num_workers=0" if low else ""
        text = f"{mib:.0f} MiB"
        probes.append(Probe("I602", "shared memory", "warning" if low else "ok", text, remedy))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0))
    low = memory < _LOW_MEMORY_GIB
    remedy = "lower num_workers and the token budget" if low else ""
    text = f"{memory:.0f} GiB, {cores} cores"
    return [*probes, Probe("I603", "memory", "warning" if low else "ok", text, remedy)]


_EGL_REMEDY = (
    "install libegl1 (and libgl1-mesa-dri without a GPU); in a container ask for the graphics "
    "capability of the driver"
)
_EGL_PROGRAM = """
import ctypes, ctypes.util
name = ctypes.util.find_library("EGL") or "libEGL.so.1"
try:
    egl = ctypes.CDLL(name)
except OSError:
    raise SystemExit(print("no libEGL") or 1)
egl.eglGetProcAddress.restype = ctypes.c_void_p
found = egl.eglGetProcAddress(b"eglQueryDevicesEXT")
if not found:
    raise SystemExit(print("libEGL cannot list devices") or 1)
kind = ctypes.CFUNCTYPE(
    ctypes.c_uint, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_int)
)
devices, count = (ctypes.c_void_p * 64)(), ctypes.c_int(0)
if not kind(found)(64, devices, ctypes.byref(count)):
    raise SystemExit(print("libEGL lists no devices") or 1)
print(count.value)
"""


def _requirements() -> list[str]:
    """Of the pyproject.toml that this file is checked out with, or of the installed project."""
    project = Path(__file__).parents[2] / "pyproject.toml"
    if project.is_file():
        return tomllib.loads(project.read_text(encoding="utf-8"))["project"]["dependencies"]
    try:
        return metadata.requires("vla_nav") or []
    except metadata.PackageNotFoundError:
        return []


def _probe_device(index: int) -> Probe:
    name = f"CUDA device {index}"
    try:
        about = torch.cuda.get_device_properties(index)
        one = torch.ones(64, 64, device=f"cuda:{index}", dtype=torch.bfloat16)
        is_right = bool(((one @ one) == 64).all())
        free, total = (size / 2**30 for size in torch.cuda.mem_get_info(index))
    except RuntimeError as error:
        remedy = "install a torch build for this GPU and driver (nvidia-smi shows its CUDA version)"
        return Probe("I202", name, "error", one_line(error), remedy)
    text = f"{about.name}, {free:.0f} of {total:.0f} GiB free, sm_{about.major}{about.minor}"
    if not is_right:
        remedy = "install a torch build for this GPU: a bfloat16 product is wrong"
        return Probe("I202", name, "error", text, remedy)
    return Probe("I202", name, "ok", text)
