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
    work: Callable[[], Any], *, device: str, repeats: int = 5, warmups: int = 2
) -> Measured:
    """Run `work` warmups + repeats times; device events on CUDA, the process's clock on a CPU."""
    for _ in range(warmups):
        work()
    is_cuda = torch.device(device).type == "cuda"
    base = peak = 0
    if is_cuda:
        torch.cuda.synchronize()
        base = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    times = [_timed(work, is_cuda=is_cuda) for _ in range(repeats)]
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
    on all of them. A sample is `calls` calls behind one another: with several, the host's share of
    a short call hides behind the device's."""

    def many(work: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> None:
            for _ in range(calls):
                work()

        return run

    is_cuda = torch.device(device).type == "cuda"
    for work in works:
        for _ in range(warmups):
            work()
    if is_cuda:
        torch.cuda.synchronize()
    times: list[list[float]] = [[] for _ in works]
    for _ in range(repeats):
        for work, found in zip(works, times, strict=True):
            found.append(_timed(many(work), is_cuda=is_cuda) / calls)
    return [statistics.median(found) for found in times]


def _timed(work: Callable[[], Any], *, is_cuda: bool) -> float:
    if not is_cuda:
        start = time.perf_counter()
        work()
        return 1e3 * (time.perf_counter() - start)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end)
