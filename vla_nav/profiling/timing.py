"""Time and memory of a piece of work on a device: medians after a warm-up, peaks above a base."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch


class Measured(NamedTuple):
    """Median and spread (max - min) of the times, and the peak of allocated bytes during the work:
    in all, and above what was allocated before (0 on a CPU, where torch does not count)."""

    time_ms: float
    spread_ms: float
    peak_bytes: int
    working_bytes: int


def measure(
    work: Callable[[], Any], *, device: str, repeats: int = 5, warmups: int = 2, calls: int = 1
) -> Measured:
    """Run `work` warmups + repeats x calls times; device events on CUDA, the process's clock on a
    CPU. A sample is the mean of `calls` calls behind one another: the device is idle once before
    them, not before each."""
    for _ in range(warmups):
        work()
    is_cuda = torch.device(device).type == "cuda"
    base = peak = 0
    if is_cuda:
        torch.cuda.synchronize()
        base = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    times = [_timed(work, is_cuda=is_cuda, calls=calls) for _ in range(repeats)]
    if is_cuda:
        peak = torch.cuda.max_memory_allocated()
    return Measured(statistics.median(times), max(times) - min(times), peak, peak - base)


def alternate(
    works: Sequence[Callable[[], Any]],
    *,
    device: str,
    repeats: int = 10,
    warmups: int = 3,
    calls: int = 1,
) -> list[float]:
    """Median ms of one call of each piece of work, timed in turn so that a clock that drifts falls
    on all of them. Samples are means of `calls` calls, as in `measure`; on CUDA a call ahead keeps
    the device busy while the host queues the timed ones, so what is timed is the device's work."""
    is_cuda = torch.device(device).type == "cuda"
    for work in works:
        for _ in range(warmups):
            work()
    if is_cuda:
        torch.cuda.synchronize()
    times: list[list[float]] = [[] for _ in works]
    for _ in range(repeats):
        for work, found in zip(works, times, strict=True):
            if is_cuda:
                work()
            found.append(_timed(work, is_cuda=is_cuda, calls=calls))
    return [statistics.median(found) for found in times]


def _timed(work: Callable[[], Any], *, is_cuda: bool, calls: int) -> float:
    """Milliseconds of one of `calls` calls."""
    if not is_cuda:
        start = time.perf_counter()
        for _ in range(calls):
            work()
        return 1e3 * (time.perf_counter() - start) / calls
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(calls):
        work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / calls
