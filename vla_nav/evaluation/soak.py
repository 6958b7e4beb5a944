"""A long evaluation under fire: workers are killed at random, memory and processes are watched.

    evaluate (a process of its own) --lines--> |----x--x----x--...--x----|   x: kill -9 of a worker
                                               every 0.2 s: resident memory of main and workers

    memory   the median resident memory in the last fifth against that of the third fifth
    spared   one worker is never killed: what a worker's memory does over the whole run
    leaked   processes that carry the run's mark in their environment after its end
    lost     expected keys without a line; no key can stand there twice (`read_results`)

An episode over which two workers died in a row is marked and left to a second start of the same
command, as in any evaluation; the verdict says how many starts there were.

Scenes are kept up to a number, so a run must load more of them early than a worker keeps.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from vla_nav.evaluation.results import read_results
from vla_nav.evaluation.runs import INCOMPLETE
from vla_nav.evaluation.throughput import read_timings, total
from vla_nav.simulators.memory import resident_mib

FLATNESS = 0.05
_MARK = "VLA_NAV_SOAK_RUN"
_EVERY_S = 0.2
_EARLY, _LATE = (0.4, 0.6), (0.8, 1.0)  # of the episodes: where memory is compared
_GROWN_UP_S = 2.0  # younger workers are still loading what the last kill has cost
_ENDING_S = 10.0  # in which the last process must have gone


class Sample(NamedTuple):
    """Lines written, and resident MiB of the main process and of the spared worker."""

    num_lines: int
    main_mib: float
    spared_mib: float
    num_files: int


@dataclass
class Observed:
    """What the watch over one run saw."""

    exit_code: int = -1
    num_starts: int = 1
    seconds: float = 0.0
    num_kills: int = 0
    pids: set[int] = field(default_factory=set)
    samples: list[Sample] = field(default_factory=list)
    leaked: list[int] = field(default_factory=list)


def watch(
    overrides: Sequence[str], folder: Path, *, num_lines: int, num_kills: int, seed: int
) -> Observed:
    """Run `vla-nav evaluate` with `overrides` (which name `folder`) and kill workers meanwhile.

    num_lines: what it will have written at its end; the kills are spread evenly over them.
    """
    rng = random.Random(seed)
    mark = uuid.uuid4().hex
    begun = time.monotonic()
    command = [sys.executable, "-m", "vla_nav.commands.cli", "evaluate", *overrides]
    environment = {**os.environ, _MARK: mark}
    process = subprocess.Popen(command, env=environment)
    observed = Observed()
    first_seen: dict[int, float] = {}
    due = [round(num_lines * (number + 0.5) / num_kills) for number in range(num_kills)]
    spared: int | None = None
    while process.poll() is None:
        time.sleep(_EVERY_S)
        workers = _children(process.pid)
        now = time.monotonic()
        first_seen = {pid: first_seen.get(pid, now) for pid in workers}
        observed.pids |= set(workers)
        spared = spared if spared is not None or not workers else min(workers)
        lines = sum(path.read_bytes().count(b"\n") for path in folder.glob("results-*.jsonl"))
        if spared in workers:
            files = len(list(Path(f"/proc/{process.pid}/fd").glob("*")))
            observed.samples.append(
                Sample(lines, resident_mib(process.pid), resident_mib(spared), files)
            )
        targets = [p for p in workers if p != spared and now - first_seen[p] >= _GROWN_UP_S]
        if due and lines >= due[0] and targets:
            due.pop(0)
            os.kill(rng.choice(targets), signal.SIGKILL)
            observed.num_kills += 1
    observed.exit_code = process.returncode
    if observed.exit_code == INCOMPLETE:
        observed.num_starts = 2
        observed.exit_code = subprocess.run(command, env=environment).returncode
    observed.seconds = time.monotonic() - begun
    deadline = time.monotonic() + _ENDING_S
    while (leaked := _marked(mark)) and time.monotonic() < deadline:
        time.sleep(_EVERY_S)
    observed.leaked = leaked
    return observed


def verdict(observed: Observed, folder: Path, *, num_lines: int) -> dict[str, Any]:
    """Numbers and `faults`, what is not as it must be. Raises `UserError` for a key twice."""
    records, timing = read_results(folder), total(read_timings(folder))
    growth = {
        "main": _growth([(s.num_lines, s.main_mib) for s in observed.samples], num_lines),
        "worker": _growth([(s.num_lines, s.spared_mib) for s in observed.samples], num_lines),
        "open_files": _growth([(s.num_lines, s.num_files) for s in observed.samples], num_lines),
    }
    faults = [f"{name}: grew by {part:+.3f}" for name, part in growth.items() if part > FLATNESS]
    if observed.exit_code:
        faults.append(f"exit code {observed.exit_code}")
    if len(records) != num_lines:
        faults.append(f"{len(records)} of {num_lines} episodes have a line")
    if observed.leaked:
        faults.append(f"processes left behind: {observed.leaked}")
    if timing.num_restarts != observed.num_kills:
        faults.append(f"{observed.num_kills} kills, {timing.num_restarts} restarts")
    return {
        "episodes": len(records),
        "expected": num_lines,
        "starts": observed.num_starts,
        "kills": observed.num_kills,
        "restarts": timing.num_restarts,
        "played_again": sum(record["attempts"] > 1 for record in records.values()),
        "processes": len(observed.pids),
        "left_behind": len(observed.leaked),
        "growth": {name: round(part, 4) for name, part in growth.items()},
        "peak_main_mib": round(max((s.main_mib for s in observed.samples), default=0.0), 1),
        "peak_worker_mib": round(timing.peak_worker_mib, 1),
        "seconds": round(observed.seconds, 1),
        "frames": timing.num_frames,
        "faults": faults,
    }


def _growth(points: Sequence[tuple[int, float]], num_lines: int) -> float:
    """The late median over the early one, less 1; infinite where a window has no sample.

    >>> _growth([(1, 5.0), (5, 2.0), (9, 2.1)], 10) < 0.06
    True
    """
    medians = []
    for first, last in (_EARLY, _LATE):
        values = [mib for lines, mib in points if first * num_lines <= lines <= last * num_lines]
        medians.append(statistics.median(values) if values else None)
    early, late = medians
    return late / early - 1 if early and late else float("inf")


def _children(pid: int) -> list[int]:
    """Child processes that have not ended, by /proc."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, task.read_text().split())
        except OSError:  # the thread has ended
            continue
    return [child for child in found if resident_mib(child) > 0]


def _marked(mark: str) -> list[int]:
    """Live processes whose environment carries the mark."""
    wanted, found = f"{_MARK}={mark}".encode(), []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:  # ended meanwhile, or another user's
            continue
    return found
