"""Known failures of habitat-sim: from what it printed to the cause and the remedy.

habitat-sim tells the reason of most failures on standard error and then ends the process, often
without a Python exception. `explain` looks such a text up; the table has the library's own words
(habitat-sim 0.1.7 to 0.3.3), the most particular first, since general ones follow in every text.

    Platform::WindowlessEglApplication::tryCreateContext(): unable to find CUDA device 0 among 1 ...
    WindowlessContext: Unable to create windowless context          <- only says that, not why
"""

from __future__ import annotations

import re
import signal
from typing import NamedTuple


class Fault(NamedTuple):
    """A failure: its name, the cause in a user's words, what to do."""

    name: str
    cause: str
    remedy: str


INSTALL = (
    "install it in an environment of its own (docs/habitat.md: conda install habitat-sim headless "
    "-c conda-forge -c aihabitat) and set simulators.python to that environment's bin/python"
)
GPU_REMEDY = (
    "on a machine without a GPU set simulators.options.gpu_device_id=-1; on one with a GPU install "
    "the driver's EGL part (libEGL_nvidia.so.0 and glvnd/egl_vendor.d/10_nvidia.json), and in a "
    "container set NVIDIA_DRIVER_CAPABILITIES=compute,utility,graphics"
)
DRIVER_REMEDY = (
    "install libegl1 and, for software rendering, libgl1-mesa-dri; in a container with a GPU set "
    "NVIDIA_DRIVER_CAPABILITIES=compute,utility,graphics"
)
CONDA_REMEDY = (
    "the environment's own libGL, libEGL or libstdc++ hides the system's: remove conda's "
    "libgl/libegl/libglvnd packages from it, or make a fresh environment with habitat-sim alone"
)

FAULTS: tuple[tuple[str, Fault], ...] = (
    (
        r"unable to find (EGL device for )?CUDA device|Could not find an EGL device for CUDA",
        Fault("gpu device", "no EGL device belongs to the CUDA device that was asked for",
              GPU_REMEDY),
    ),
    (
        r"requested EGL device \d+ but",
        Fault("gpu device", "there are fewer EGL devices than the one asked for", GPU_REMEDY),
    ),
    (
        r"no EGL devices found|cannot query EGL devices|Failed to allocate device list",
        Fault("egl driver", "libEGL is there, but no driver behind it", DRIVER_REMEDY),
    ),
    (
        r"cannot retrieve OpenGL version|cannot get default EGL display|cannot initialize EGL"
        r"|cannot get platform display",
        Fault("egl driver", "the OpenGL driver that libEGL found does not work",
              f"{DRIVER_REMEDY}; {CONDA_REMEDY}"),
    ),
    (
        r"DISPLAY not detected|GLX context does not support|Could not initialize GLFW"
        r"|cannot open display",
        Fault("not headless", "this habitat-sim was built for a screen",
              "install the headless build (conda install habitat-sim headless ...)"),
    ),
    (
        r"libstdc\+\+\.so\.6: version|GLIBCXX_[\d.]+['` ]* not found|CXXABI_[\d.]+['` ]* not found",
        Fault("libstdc++", "the environment's libstdc++ is older than the driver or the library",
              "conda install -c conda-forge 'libstdcxx-ng>=12' in habitat-sim's environment"),
    ),
    (
        r"lib(EGL|OpenGL|GL|GLdispatch|GLX)[\w-]*\.so[.\d]*: cannot open shared object",
        Fault("no libEGL", "the OpenGL libraries of the system are missing",
              "install libegl1 and libopengl0 (Debian, Ubuntu: apt-get install libegl1 libopengl0 "
              "libgl1-mesa-dri)"),
    ),
    (
        r"No module named '?habitat_sim",
        Fault("no habitat-sim", "the interpreter has no habitat_sim", INSTALL),
    ),
    (
        r"No module named '?(numpy|msgpack|magnum|quaternion|attr)\b",
        Fault("packages", "the interpreter lacks a package that the worker needs",
              "pip install numpy msgpack in habitat-sim's environment"),
    ),
    (
        r"compiled using NumPy 1\.x cannot be run|_ARRAY_API not found"
        r"|numpy\.dtype size changed|numpy\.core\.multiarray failed to import",
        Fault("numpy", "habitat-sim or its quaternion package was built for another NumPy",
              "pip install 'numpy<2' in habitat-sim's environment (habitat-sim up to 0.3.3 of the "
              "stable channel)"),
    ),
    (
        r"requested scene 'data/scene_datasets/",
        Fault("scene path", "a scene path still has the prefix data/scene_datasets/",
              "make scene ids relative to the scenes folder (without data/scene_datasets/)"),
    ),
    (
        r"No Stage Attributes exists for requested scene",
        Fault("no scene", "the scene, or the scene dataset config that names it, was not found",
              "check the scenes folder and simulators.options.scene_dataset"),
    ),
    (
        r"Error loading general mesh data from file",
        Fault("scene file", "a scene file is damaged", "download or write the scene again"),
    ),
    (
        r"Unable to compute a navmesh|collision mesh has no vertices",
        Fault("navmesh", "the scene has no navigation mesh and none can be computed",
              "put the data set's .navmesh beside the scene, and check that the scene has a floor"),
    ),
    (
        r"Unable to create windowless context|Failed to create OpenGL context|platform current",
        Fault("egl driver", "no OpenGL context could be made", f"{GPU_REMEDY}; {DRIVER_REMEDY}"),
    ),
)  # fmt: skip


def without_noise(lines: list[str]) -> list[str]:
    """Lines of standard error without those of the environment map that we turn off (named
    `none`, see `habitat_library.py`): the library calls it an error for every scene."""
    return [line for line in lines if not re.search(r"format of none$|named `none` not", line)]


def explain(text: str, code: int | None = None) -> Fault | None:
    """The known failure behind a text of standard error or an exception, or None.

    code: the process's exit status, negative for a signal; it decides only where no words do.
    """
    for pattern, fault in FAULTS:
        if re.search(pattern, text):
            return fault
    if code == -signal.SIGSEGV:
        return Fault(
            "crash",
            "the process ended by a segmentation fault",
            "habitat-sim does that when a driver is broken or a navigation mesh is missing: try "
            "simulators.options.gpu_device_id=-1, and simulators.options.navmesh=recompute",
        )
    if code == -signal.SIGABRT:
        return Fault(
            "crash",
            "the process aborted itself",
            "read the worker's last lines; two simulators in one process do that, and so do "
            "damaged scenes",
        )
    if code == -signal.SIGKILL:
        return Fault(
            "memory",
            "the process was killed from outside, most often for its memory",
            "lower num_workers, or give the container more memory",
        )
    return None
