"""Doctor without data: probes say ok where things work, and name the remedy where they do not."""

from __future__ import annotations

import stat
from importlib import metadata
from pathlib import Path

import pytest
import torch

from vla_nav.attention import parity
from vla_nav.episodes.types import Camera, Embodiment
from vla_nav.verification import installation, simulator_probes
from vla_nav.verification.doctor_report import installation_text
from vla_nav.verification.installation import (
    probe_attention,
    probe_egl,
    probe_packages,
    probe_python,
    probe_room,
    probe_torch,
)
from vla_nav.verification.probes import Probe
from vla_nav.verification.simulator_probes import probe_simulator

BODY = Embodiment((Camera("front", 16, 12, 90.0, 1.25),), 0.18, 1.5, 30.0, 0.25, True)
MESH = {"backend": "mesh", "python": None, "options": {"cell_m": 0.1}, "timeout_s": 60.0}


@pytest.mark.parametrize(
    ("version", "severity"),
    [((3, 10, 9), "error"), ((3, 11, 0), "ok"), ((3, 13, 2), "ok"), ((3, 14, 0), "error")],
)
def test_python_versions_outside_the_range_are_errors(
    version: tuple[int, int, int], severity: str
) -> None:
    probe = probe_python(version)
    assert probe.severity == severity
    assert bool(probe.remedy) == (severity == "error")


def test_the_packages_of_this_environment_are_known_and_allowed() -> None:
    assert probe_packages().severity == "ok"


def test_missing_and_outdated_packages_are_named_with_the_command_that_mends_it() -> None:
    needs = ["numpy>=1", "no-such-package-of-that-name>=2", "torch>=99"]
    probe = probe_packages(needs)
    assert probe.severity == "error"
    assert "no-such-package-of-that-name is missing" in probe.found
    assert f"torch {metadata.version('torch')} (needs >=99)" in probe.found
    assert "numpy" not in probe.found
    assert '"torch"' in probe.remedy


def test_torch_computes_here() -> None:
    probes = {probe.code: probe for probe in probe_torch()}
    assert probes["I201"].severity == "ok"
    assert torch.__version__ in probes["I201"].found
    assert probes["I202"].severity == ("ok" if torch.cuda.is_available() else "info")


def test_attention_is_held_to_its_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {probe.severity for probe in probe_attention()} == {"ok"}
    parity._require_parity.cache_clear()
    monkeypatch.setitem(parity.TOLERANCE, torch.float32, 1e-12)  # nothing is that exact
    probe = probe_attention()[0]
    parity._require_parity.cache_clear()
    assert probe.severity == "error"
    assert "off by" in probe.found
    assert probe.remedy


def test_a_worker_walks_through_a_room() -> None:
    probe = probe_simulator(BODY, MESH)
    assert probe.severity == "ok", probe.found
    assert "moved 0.250 m" in probe.found


def test_an_interpreter_without_the_backend_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no module named trimesh >&2\nexit 3\n")
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    for path in (str(python), str(tmp_path / "nowhere")):
        probe = probe_simulator(BODY, {**MESH, "python": path})
        assert probe.severity == "error"
        assert "simulators.python" in probe.remedy
    assert "\n" not in probe.found


def test_a_worker_that_moves_wrongly_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulator_probes, "_ROOM_M", 2.2)  # the way is blocked at once
    probe = probe_simulator(BODY, MESH)
    assert probe.severity == "error"


def test_egl_is_counted_or_its_absence_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = probe_egl()
    assert probe.severity in ("ok", "info")
    assert bool(probe.remedy) == (probe.severity == "info")
    monkeypatch.setattr(installation, "_EGL_PROGRAM", "import os; os.abort()")  # as drivers do
    probe = probe_egl()
    assert probe.severity == "info"
    assert "libegl1" in probe.remedy


def test_a_full_disk_is_a_warning_and_a_missing_folder_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probes = {probe.code: probe for probe in probe_room(tmp_path / "not" / "there")}
    assert probes["I601"].severity == "ok"
    assert str(tmp_path) in probes["I601"].found
    monkeypatch.setattr(installation, "_LOW_DISK_GIB", 1e9)
    monkeypatch.setattr(installation, "_LOW_SHM_MIB", 1e9)
    monkeypatch.setattr(installation, "_LOW_MEMORY_GIB", 1e9)
    low = probe_room(tmp_path)
    assert {probe.severity for probe in low} == {"warning"}
    assert all(probe.remedy for probe in low)


def test_the_report_shows_every_probe_and_counts_them() -> None:
    text = installation_text(
        [Probe("I101", "Python", "ok", "3.12.1"), Probe("I501", "EGL", "info", "none", "install")]
    )
    assert "I101  ok       Python: 3.12.1" in text
    assert "remedy: install" in text
    assert text.endswith("0 error, 0 warning, 1 info, 1 ok")
