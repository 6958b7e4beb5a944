"""Doctor for habitat-sim: every known failure is named with its remedy, and a good one passes.

The failures' words are habitat-sim's own. Those that need it run where VLA_NAV_HABITAT_PYTHON
names its interpreter; there the failures are brought about for real.
"""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from vla_nav.episodes.types import Camera, Embodiment
from vla_nav.simulators.client import WorkerDiedError, WorkerProcess
from vla_nav.simulators.habitat_faults import FAULTS, explain
from vla_nav.verification.habitat_installation import probe_habitat
from vla_nav.verification.simulator_probes import probe_backend

HABITAT = os.environ.get("VLA_NAV_HABITAT_PYTHON", "")
BODY = Embodiment((Camera("front", 16, 12, 90.0, 1.25),), 0.18, 1.5, 30.0, 0.25, True)
STAGES = ("python", "packages", "habitat_sim")
WORDS = {
    "gpu device": "Platform::WindowlessEglApplication::tryCreateContext(): unable to find CUDA "
    "device 0 among 1 EGL devices in total\nWindowlessContext: Unable to create windowless context",
    "egl driver": "Platform::WindowlessEglApplication::tryCreateContext(): no EGL devices found, "
    "likely a driver issue; enable --magnum-gpu-validation to see additional info\n"
    "WindowlessContext: Unable to create windowless context",
    "not headless": "DISPLAY not detected. For headless systems, compile with --headless",
    "no libEGL": "ImportError: libOpenGL.so.0: cannot open shared object file: No such file or "
    "directory",
    "libstdc++": "ImportError: /opt/conda/lib/libstdc++.so.6: version `GLIBCXX_3.4.30' not found "
    "(required by /usr/lib/libLLVM-15.so.1)",
    "no habitat-sim": "ModuleNotFoundError: No module named 'habitat_sim'",
    "packages": "ModuleNotFoundError: No module named 'msgpack'",
    "numpy": "A module that was compiled using NumPy 1.x cannot be run in NumPy 2.0.2",
    "scene path": "ESP_CHECK failed: No Stage Attributes exists for requested scene "
    "'data/scene_datasets/mp3d/a/a.glb' in currently specified Scene Dataset `default`.",
    "no scene": "ESP_CHECK failed: No Stage Attributes exists for requested scene "
    "'apt_0' in currently specified Scene Dataset `/d/x.scene_dataset_config.json`.",
    "scene file": "ESP_CHECK failed: Error loading general mesh data from file 'a.glb'",
    "navmesh": "ESP_CHECK failed: ::recomputeNavMesh: Unable to compute a navmesh upon "
    "a non-existent mesh - the underlying joined collision mesh has no vertices.",
}


def fake(path: Path, *lines: str) -> str:
    """A program in the interpreter's place that says and does what `lines` (of sh) are."""
    path.write_text("#!/bin/sh\n" + "\n".join(lines) + "\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def saying(*stages: str, version: str = "[3, 9, 18]") -> list[str]:
    said = {
        "python": f'{{"stage": "python", "version": {version}}}',
        "packages": '{"stage": "packages", "text": "numpy 1.26.4"}',
        "habitat_sim": '{"stage": "habitat_sim", "text": "0.3.3"}',
    }
    return [f"echo 'vla-nav-doctor {said[stage]}'" for stage in stages]


@pytest.mark.parametrize("name", WORDS)
def test_the_librarys_words_are_known(name: str) -> None:
    fault = explain(f"[10:33:01] some line before\n{WORDS[name]}\n", 1)
    assert fault is not None
    assert fault.name == name
    assert fault.remedy


def test_the_general_words_do_not_hide_the_particular_ones() -> None:
    last = explain("WindowlessContext: Unable to create windowless context")
    assert last is not None
    assert "gpu_device_id=-1" in last.remedy
    first = explain(WORDS["egl driver"])
    assert first is not None
    assert "no driver" in first.cause
    assert len({pattern for pattern, _ in FAULTS}) == len(FAULTS)


def test_unknown_words_are_not_explained_but_signals_are() -> None:
    noise = "Trade::AnyImageImporter::openFile(): cannot determine the format of none\n"
    assert explain(f"{noise}Traceback: ZeroDivisionError", 1) is None
    for code in (signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL):
        fault = explain("", -code)
        assert fault is not None
        assert fault.remedy


def test_an_interpreter_that_cannot_be_started_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("not a program")
    for path, words in (("nowhere", "does not exist"), ("", "is a folder"), ("plain", "not an")):
        (probe,) = probe_habitat({"python": str(tmp_path / path)})
        assert (probe.code, probe.severity) == ("I411", "error")
        assert words in probe.found
        assert "simulators.python" in probe.remedy


@pytest.mark.skipif(find_spec("habitat_sim") is not None, reason="habitat-sim is in this one")
def test_an_environment_without_habitat_sim_is_named_with_the_way_to_install_it() -> None:
    probes = probe_habitat({"python": None, "options": {}})
    assert [(probe.code, probe.severity) for probe in probes] == [
        ("I411", "ok"),
        ("I412", "ok"),
        ("I413", "error"),
    ]
    assert sys.executable in probes[0].found
    assert "conda install habitat-sim" in probes[-1].remedy


def test_a_python_that_is_too_old_is_an_error(tmp_path: Path) -> None:
    python = fake(tmp_path / "python", *saying("python", version="[3, 8, 18]"), "exit 1")
    (probe,) = probe_habitat({"python": python})
    assert (probe.code, probe.severity) == ("I411", "error")
    assert "3.8.18" in probe.found
    assert "3.9" in probe.remedy


def test_a_process_that_ends_while_rendering_is_explained_by_its_last_words(tmp_path: Path) -> None:
    words = WORDS["gpu device"].replace("\n", "\\n")
    python = fake(tmp_path / "python", *saying(*STAGES), f"printf '{words}' >&2", "exit 1")
    *good, last = probe_habitat({"python": python, "options": {"gpu_device_id": 0}})
    assert [probe.severity for probe in good] == ["ok"] * 3
    assert (last.code, last.severity) == ("I414", "error")
    assert "CUDA device" in last.found
    assert "gpu_device_id=-1" in last.remedy
    assert "\n" not in last.found


def test_a_crash_without_words_is_explained_by_its_signal(tmp_path: Path) -> None:
    python = fake(tmp_path / "python", *saying(*STAGES), "kill -SEGV $$")
    probe = probe_habitat({"python": python})[-1]
    assert (probe.code, probe.severity) == ("I414", "error")
    assert "segmentation fault" in probe.found


def test_a_driver_that_hangs_is_given_up(tmp_path: Path) -> None:
    python = fake(tmp_path / "python", *saying(*STAGES), "exec sleep 60")
    probe = probe_habitat({"python": python}, timeout_s=1.0)[-1]
    assert (probe.code, probe.severity) == ("I414", "error")
    assert "no answer" in probe.found


def test_a_worker_that_dies_of_it_says_so_too(tmp_path: Path) -> None:
    words = WORDS["egl driver"].replace("\n", "\\n")
    python = fake(tmp_path / "python", f"printf '{words}' >&2", "exit 1")
    with pytest.raises(WorkerDiedError, match=r"context; libEGL is there.*libgl1-mesa-dri"):
        WorkerProcess("habitat", BODY, {}, python=python)
    with pytest.raises(WorkerDiedError, match=r"context$"):
        WorkerProcess("mesh", BODY, {}, python=python)


def test_without_what_habitat_needs_no_worker_is_started(tmp_path: Path) -> None:
    settings = {"backend": "habitat", "python": str(tmp_path / "nowhere"), "options": {}}
    assert [probe.code for probe in probe_backend(BODY, settings)] == ["I411"]


@pytest.mark.habitat
class TestWithHabitat:
    SETTINGS = {"backend": "habitat", "python": HABITAT, "timeout_s": 60.0}  # noqa: RUF012

    def test_a_good_installation_passes_and_its_worker_walks(self) -> None:
        probes = probe_backend(BODY, {**self.SETTINGS, "options": {}})
        assert [probe.code for probe in probes] == ["I411", "I412", "I413", "I414", "I401"]
        assert {probe.severity for probe in probes} == {"ok"}, probes

    @pytest.mark.skipif(
        any(Path("/dev").glob("nvidia[0-9]*")), reason="there is a GPU, so this does not fail"
    )
    def test_a_gpu_that_is_not_there_is_named(self) -> None:
        probe = probe_habitat({**self.SETTINGS, "options": {"gpu_device_id": 0}})[-1]
        assert (probe.code, probe.severity) == ("I414", "error")
        assert "CUDA device" in probe.found
        assert "gpu_device_id=-1" in probe.remedy

    @pytest.mark.slow
    def test_scenes_that_fail_inside_the_library_have_the_words_of_the_table(
        self, tmp_path: Path
    ) -> None:
        (tmp_path / "bad.glb").write_bytes(b"glTF\x02\0\0\0\x14\0\0\0abcdefgh")
        program = (
            "import sys, habitat_sim\n"
            "settings = habitat_sim.SimulatorConfiguration()\n"
            "settings.gpu_device_id, settings.scene_id = -1, sys.argv[1]\n"
            "settings.create_renderer = settings.enable_physics = False\n"
            "body = habitat_sim.AgentConfiguration()\n"
            "body.sensor_specifications = []\n"
            "made = habitat_sim.Simulator(habitat_sim.Configuration(settings, [body]))\n"
            "made.recompute_navmesh(made.pathfinder, habitat_sim.NavMeshSettings())\n"
        )
        for scene, name in (
            ("nowhere.glb", "no scene"),
            ("data/scene_datasets/mp3d/a/a.glb", "scene path"),
            ("bad.glb", "scene file"),
            ("NONE", "navmesh"),
        ):
            command = [HABITAT, "-c", program, scene]
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
            fault = explain(done.stderr, done.returncode)
            assert fault is not None, done.stderr
            assert fault.name == name

    def test_a_libegl_without_a_driver_is_named(self, tmp_path: Path) -> None:
        python = fake(
            tmp_path / "python",
            f"export __EGL_VENDOR_LIBRARY_DIRS={tmp_path}",  # as in a container without drivers
            f'exec "{HABITAT}" "$@"',
        )
        probe = probe_habitat({**self.SETTINGS, "python": python, "options": {}})[-1]
        assert (probe.code, probe.severity) == ("I414", "error"), probe
        assert "driver" in probe.found
        assert "libgl1-mesa-dri" in probe.remedy
