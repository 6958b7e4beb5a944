"""The profile on CUDA: parts by events, memory by the device's count, kernels in the trace."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Trainer

from tests.training.tiny import make_data, recipe
from vla_nav.profiling.profile_run import profile
from vla_nav.profiling.regions import ATTENTION, BACKWARD, FORWARD, REST, Label, Recorder, durations
from vla_nav.profiling.step_profile import ProfileSettings

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_a_region_lasts_as_long_as_the_device_works_on_it() -> None:
    recorder = Recorder("cuda")
    cycles = 20_000_000
    torch.cuda._sleep(cycles)
    torch.cuda.synchronize()
    start = time.perf_counter()
    torch.cuda._sleep(cycles)
    torch.cuda.synchronize()
    once_s = time.perf_counter() - start
    recorder.start()
    recorder.mark(Label(ATTENTION, FORWARD))
    torch.cuda._sleep(cycles)
    recorder.mark(Label(REST, FORWARD))
    torch.cuda._sleep(3 * cycles)
    marks = recorder.stop()
    torch.cuda.synchronize()
    found = durations(marks)
    # The host was through long before the device.
    assert found[Label(ATTENTION, FORWARD)] == pytest.approx(once_s, rel=0.2)
    assert found[Label(REST, FORWARD)] == pytest.approx(3 * once_s, rel=0.2)


def test_a_step_on_the_device_adds_up(tmp_path: Path) -> None:
    data = make_data(tmp_path / "data", num_episodes=12)
    result = profile(
        recipe(data),
        ProfileSettings(warmup_steps=3, steps=4, trace_steps=1),
        output_dir=tmp_path,
        make_trainer=lambda **keywords: Trainer(
            accelerator="gpu", devices=1, precision="bf16-mixed", **keywords
        ),
    )
    assert result["check"]["adds_up"], result["check"]
    found = {(part["region"], part["phase"]) for part in result["parts"] if part["ms"] > 0}
    assert {(ATTENTION, FORWARD), (ATTENTION, BACKWARD), (REST, BACKWARD)} <= found
    memory = result["memory"]
    assert memory["classes_bytes"]["activations"] > 0
    assert memory["peak_bytes"] == pytest.approx(memory["device_peak_bytes"], rel=0.25)
    assert result["operators"]
    trace = json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))
    lanes = {
        event["args"]["name"]
        for event in trace["traceEvents"]
        if event["pid"] == "regions" and event["name"] == "thread_name"
    }
    assert lanes == {"host", "device"}
