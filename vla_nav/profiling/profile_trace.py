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
import os
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from vla_nav.files import atomic_path
from vla_nav.profiling.memory import Change
from vla_nav.profiling.regions import IDLE, Mark

_CLOCK = "vla_nav/clock"
_MEMORY = "[memory]"  # as torch names what its allocators report
_REGIONS_PID = "regions"


class StepTrace:
    """A context around the traced steps. Behind it: `changes` of memory, `write` for the file."""

    def __init__(self, device: torch.device) -> None:
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it reports a GPU that is not there
        kinds = [ProfilerActivity.CPU]
        if device.type == "cuda":
            kinds.append(ProfilerActivity.CUDA)
        self._device = device
        self._profile = profile(activities=kinds, profile_memory=True)
        self._clock_ns = 0  # of time.perf_counter_ns, at the range `clock`
        self.allocated_bytes = 0  # on CUDA, at the start

    def __enter__(self) -> StepTrace:
        self._profile.__enter__()
        if self._device.type == "cuda":
            self.allocated_bytes = torch.cuda.memory_allocated(self._device)
        with record_function(_CLOCK):
            self._clock_ns = time.perf_counter_ns()
        return self

    def __exit__(self, *_: Any) -> None:
        self._profile.__exit__(None, None, None)

    def changes(self) -> list[Change]:
        """Every allocation on the device, and every release."""
        return [
            Change(event.start_ns(), event.nbytes())
            for event in self._events()
            if event.name() == _MEMORY
        ]

    def longest(self, count: int) -> list[tuple[str, float]]:
        """The device's kernels (on a CPU: operators, without those that they call) that take the
        longest, and their ms."""
        is_nested = self._device.type != "cuda"
        events = [
            Called(event.name(), event.start_thread_id(), event.start_ns(), event.end_ns())
            for event in self._events()
            if event.name() not in (_MEMORY, _CLOCK)
            and not event.is_user_annotation()
            and not (is_nested and event.is_async())
        ]
        times = own_ns(events) if is_nested else Counter[str]()
        for event in () if is_nested else events:
            times[event.name] += event.stop_ns - event.start_ns
        return [(name, time_ns / 1e6) for name, time_ns in times.most_common(count)]

    def _events(self) -> list[Any]:
        """Those of the device."""
        results = self._profile.profiler
        assert results is not None
        assert results.kineto_results is not None
        kind = f".{self._device.type.upper()}"
        events = results.kineto_results.events()
        return [event for event in events if str(event.device_type()).endswith(kind)]

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


class Called(NamedTuple):
    """An operator's call on a thread."""

    name: str
    thread: int
    start_ns: int
    stop_ns: int


def own_ns(calls: Sequence[Called]) -> Counter[str]:
    """Time by name, each call without the calls inside it.

    >>> own_ns([Called("linear", 1, 0, 100), Called("mm", 1, 10, 90)])
    Counter({'mm': 80, 'linear': 20})
    """
    times: Counter[str] = Counter()
    above: list[Called] = []
    for call in sorted(calls, key=lambda call: (call.thread, call.start_ns, -call.stop_ns)):
        while above and (above[-1].thread != call.thread or above[-1].stop_ns <= call.start_ns):
            above.pop()
        duration = call.stop_ns - call.start_ns
        times[call.name] += duration
        if above:
            times[above[-1].name] -= duration
        above.append(call)
    return times


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
