"""The trace of a few steps for Perfetto (ui.perfetto.dev): torch's operators and kernels, and the
regions of the profile as lanes of their own.

    python            aten::mm | aten::copy_ | ...                 what torch's profiler saw
    regions, host     data wait | vision | attention | rest | ...  one lane per thread
    regions, device   the same boundaries by CUDA events           when the device reached them

Regions are timed by another clock than torch's events; a range that both have taken, `clock`, ties
them together. The file is Chrome's trace format, compressed.
"""

from __future__ import annotations

import gzip
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from vla_nav.files import atomic_path
from vla_nav.profiling.memory import Change
from vla_nav.profiling.regions import IDLE, Mark

_CLOCK = "vla_nav/clock"
_REGIONS_PID = "regions"


class StepTrace:
    """A context around the traced steps. Behind it: `changes` of memory, `write` for the file."""

    def __init__(self, device: torch.device) -> None:
        kinds = [ProfilerActivity.CPU]
        if device.type == "cuda":
            kinds.append(ProfilerActivity.CUDA)
        self._device = device
        self._profile = profile(activities=kinds, profile_memory=True)
        self._clock_ns = 0  # of time.perf_counter_ns, at the range `clock`

    def __enter__(self) -> StepTrace:
        self._profile.__enter__()
        with record_function(_CLOCK):
            self._clock_ns = time.perf_counter_ns()
        return self

    def __exit__(self, *_: Any) -> None:
        self._profile.__exit__(None, None, None)

    def changes(self) -> list[Change]:
        """Every allocation on the device, and every release."""
        results = self._profile.profiler
        assert results is not None
        kind = self._device.type.upper()
        return [
            Change(event.start_ns(), event.nbytes())
            for event in results.kineto_results.events()
            if event.name() == "[memory]" and str(event.device_type()).endswith(f".{kind}")
        ]

    def kernel_ms(self) -> list[tuple[str, float]]:
        """The device's kernels (on a CPU: operators, time of their own) and their time, longest
        first."""
        rows = self._profile.key_averages()
        is_cuda = self._device.type == "cuda"
        times = [
            (row.key, (row.self_device_time_total if is_cuda else row.self_cpu_time_total) / 1e3)
            for row in rows
            if not row.key.startswith(("[", "vla_nav/"))
        ]
        return sorted((pair for pair in times if pair[1] > 0), key=lambda pair: -pair[1])

    def write(self, target: Path, marks: Mapping[int, Sequence[Mark]]) -> None:
        """Write the trace with the regions of `marks` to `target` (.json.gz)."""
        with tempfile.TemporaryDirectory() as folder:
            stock = Path(folder) / "trace.json"
            self._profile.export_chrome_trace(str(stock))
            trace = json.loads(stock.read_text(encoding="utf-8"))
        events = trace["traceEvents"]
        clock = next(event for event in events if event.get("name") == _CLOCK)
        events += region_events(marks, clock_ns=self._clock_ns, clock_us=float(clock["ts"]))
        with atomic_path(target) as temporary:
            temporary.write_bytes(gzip.compress(json.dumps(trace).encode(), compresslevel=5))


def region_events(
    marks: Mapping[int, Sequence[Mark]], *, clock_ns: int, clock_us: float
) -> list[dict[str, Any]]:
    """Chrome trace events of every region; clock_ns and clock_us are one instant."""
    events = [_name("process_name", 0, "regions of the step")]
    for lane, (key, some) in enumerate(sorted(marks.items())):
        events.append(_name("thread_name", lane, "host" if key == 0 else f"pack thread {lane}"))
        starts = [clock_us + (mark.host_ns - clock_ns) / 1e3 for mark in some]
        events += _lane(lane, starts, some)
    main = marks[0]
    if main and main[0].event is not None:
        lane = len(marks)
        events.append(_name("thread_name", lane, "device"))
        begin = clock_us + (main[0].host_ns - clock_ns) / 1e3  # the device was idle there
        starts = [begin + 1e3 * main[0].event.elapsed_time(mark.event) for mark in main]
        events += _lane(lane, starts, main)
    return events


def _lane(lane: int, starts: Sequence[float], marks: Sequence[Mark]) -> list[dict[str, Any]]:
    return [
        {
            "ph": "X",
            "cat": mark.label.phase,
            "name": " ".join(part for part in mark.label if part != "step"),
            "pid": _REGIONS_PID,
            "tid": lane,
            "ts": start,
            "dur": max(0.0, stop - start),
        }
        for mark, start, stop in zip(marks, starts, starts[1:], strict=False)
        if mark.label != IDLE
    ]


def _name(kind: str, lane: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": _REGIONS_PID, "tid": lane, "args": {"name": name}}
