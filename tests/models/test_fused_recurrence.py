"""Fused kernels of recurrent layers: interpreted on the CPU, refused where they cannot run."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from vla_nav.errors import UserError
from vla_nav.models.backbone import BackboneConfig
from vla_nav.models.hybrid import fused
from vla_nav.models.hybrid.fused import uses_fused

PROGRAM = Path(__file__).with_name("interpreted_kernels.py")
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)
needs_fla = pytest.mark.skipif(
    importlib.util.find_spec("fla") is None, reason="the extra `hybrid` is not installed"
)


def differences(check: str) -> dict[str, float]:
    root = str(PROGRAM.parents[2])
    environment = dict(os.environ, TRITON_INTERPRET="1")
    environment["PYTHONPATH"] = os.pathsep.join([root, environment.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(PROGRAM), check],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


@needs_triton
def test_states_and_gradients_are_passed_as_by_loops():
    found = differences("states")
    assert len(found) == 22
    assert max(found.values()) < 1e-6, found


@pytest.mark.slow
@needs_fla
def test_a_pack_through_the_stages_equals_the_torch_path():
    found = differences("stages")
    assert len(found) == 15
    assert max(found.values()) < 2e-6, found


@pytest.mark.slow
@needs_fla
@pytest.mark.timeout(900)
def test_models_by_fused_kernels_equal_float64():
    found = differences("models")
    assert len(found) == 8
    assert max(found.values()) < 5e-5, found  # as the torch path in float32


def test_kernels_are_chosen_by_device_and_dtype(monkeypatch):
    monkeypatch.setattr(fused, "stages", lambda: None)
    assert uses_fused("auto", "cuda", torch.bfloat16)
    assert not uses_fused("auto", "cuda", torch.float64)
    assert not uses_fused("auto", "cpu", torch.float32)
    assert not uses_fused("torch", "cuda", torch.bfloat16)


def test_a_gpu_without_the_extra_is_refused_with_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "fla", None)
    fused.stages.cache_clear()
    with pytest.raises(UserError, match=r"extra `hybrid`.*kernels=torch"):
        uses_fused("auto", "cuda", torch.bfloat16)


def test_kernels_are_refused_on_the_cpu_and_in_float64(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(UserError, match="runs on the CPU"):
        uses_fused("fla", "cpu", torch.float32)
    with pytest.raises(UserError, match="float64"):
        uses_fused("fla", "cuda", torch.float64)
    with pytest.raises(UserError, match=r"unknown models\.backbone\.kernels 'fls'"):
        BackboneConfig(kernels="fls")


def test_heads_that_the_kernels_do_not_hold_are_refused():
    table = object()  # not reached
    q, v, g = torch.zeros(3, 2, 7), torch.zeros(3, 4, 8), torch.zeros(3, 4)
    with pytest.raises(UserError, match="sizes must be even"):
        fused.mamba2([q, q, v, g], torch.zeros(1, 4, 7, 8), table)
