"""What fills the memory at the peak of a step: weights, gradients, optimiser, activations, caches.

    held before the step   weights | optimiser state | weight average | cache: frames or features of
                           the batch | batch: its ids, attention plans | other: what else the device
                           counts (CUDA)
    during the step        gradients so far | gateways | activations = all else, up to the peak

The course of a step is followed by torch's profiler, which sees every allocation on CPU and CUDA
alike; at every boundary between regions the gradients and the gateways' keys are counted. So the
classes are those of one instant, the peak, and add up to it.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from vla_nav.profiling.regions import IDLE, Label, Mark
from vla_nav.profiling.step_profile import Block
from vla_nav.profiling.structure import nbytes

_COURSE_POINTS = 400  # of the course in the report


class Sample(NamedTuple):
    """At a boundary: its time, what begins, bytes of gradients and of gateways' keys."""

    time_ns: int
    label: Label
    gradients: int
    gateways: int


class Change(NamedTuple):
    """Bytes allocated (or freed, below zero) at a time of `time.time_ns`."""

    time_ns: int
    change_bytes: int


class Course(NamedTuple):
    """Bytes above the beginning over time, and the highest; `at` is the region of the peak."""

    times_ns: list[int]
    level_bytes: list[int]
    peak_bytes: int
    at: Label
    gradients: int
    gateways: int


class MemorySampler:
    """Called at every mark of a traced step; keeps the samples."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], gateway_bytes: Callable[[], int]
    ) -> None:
        self.samples: list[Sample] = []
        self._parameters, self._gateway_bytes = list(parameters), gateway_bytes

    def __call__(self, mark: Mark) -> None:
        """Count gradients and gateways now."""
        gradients = sum(_dense_bytes(p.grad) for p in self._parameters)
        made = Sample(time.time_ns(), mark.label, gradients, self._gateway_bytes())
        self.samples.append(made)


def course(changes: Sequence[Change], samples: Sequence[Sample]) -> Course:
    """The level over time, and what the samples say about its peak."""
    times, levels, level = [], [], 0
    for change in sorted(changes):
        level += change.change_bytes
        times.append(change.time_ns)
        levels.append(level)
    place = max(range(len(levels)), key=levels.__getitem__, default=None)
    if place is None:
        return Course([], [], 0, IDLE, 0, 0)
    known = [sample.time_ns for sample in samples]
    index = max(0, bisect_right(known, times[place]) - 1)
    sample = samples[index] if samples else Sample(0, IDLE, 0, 0)
    return Course(
        times, levels, max(0, levels[place]), sample.label, sample.gradients, sample.gateways
    )


def held_bytes(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    averages: Any,
    *,
    batch_bytes: int,
    frame_bytes: int,
    allocated_bytes: int,
) -> dict[str, int]:
    """Held before a step, by class. allocated_bytes: all that the device counts then, 0 where it
    does not count."""
    weights = {id(x): x.nbytes for x in (*model.parameters(), *model.buffers())}
    held = {
        "weights": sum(weights.values()),
        "optimiser": nbytes(list(optimiser.state.values())),
        "average": nbytes(averages),
        "cache": frame_bytes,
        "batch": batch_bytes - frame_bytes,
    }
    return {**held, "other": max(0, allocated_bytes - sum(held.values()))}


def classes(held: dict[str, int], found: Course, num_parallel: int = 1) -> dict[str, int]:
    """Bytes by class at the peak; they add up to what is held plus the course's peak, for so many
    packs at once."""
    during = found.peak_bytes
    gateways = min(found.gateways, during)
    gradients = min(found.gradients, during - gateways)
    return {
        **held,
        "gradients": gradients,
        "gateways": gateways,
        "activations": num_parallel * (during - gradients - gateways),
    }


def memory_report(
    held: dict[str, int],
    found: Course | None,
    blocks: Sequence[Block],
    *,
    num_parallel: int = 1,
) -> dict[str, Any]:
    """Bytes by class at the peak (without a traced step: what is held), the course of the traced
    step, and the device's own highest count in the profiled ones (None on a CPU)."""
    by_class = held if found is None else classes(held, found, num_parallel)
    report: dict[str, Any] = {
        "classes_bytes": by_class,
        "peak_bytes": sum(by_class.values()),
        "device_peak_bytes": max((block.peak_bytes for block in blocks), default=0) or None,
    }
    if found is not None and found.times_ns:
        start, base = found.times_ns[0], sum(held.values())
        places = np.unique(np.linspace(0, len(found.times_ns) - 1, _COURSE_POINTS).astype(int))
        report["peak_region"] = " ".join(found.at)
        report["course"] = {
            "time_ms": [round((found.times_ns[k] - start) / 1e6, 3) for k in places],
            "bytes": [
                base + max(found.level_bytes[a:b])
                for a, b in zip(places, [*places[1:], len(found.times_ns)], strict=True)
            ],
        }
    return report


def _dense_bytes(gradient: torch.Tensor | None) -> int:
    return 0 if gradient is None or gradient.is_sparse else gradient.nbytes
