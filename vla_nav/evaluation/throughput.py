"""Where an evaluation's time goes: one line per start and shard, and what they amount to together.

    wall     |--------------------------------------------------|  of one start, worker starts apart
    policy   |####  ########  #####   ########  #####   ########|  observations in, actions out
    waiting  |    ..        ..     ...        ..     ...        |  nothing to decide yet
    lanes    |=== ===== ======== ======= ======= ======== ======|  inside a simulator, per worker

    <folder>/timing-<shard>-of-<n>.jsonl    a line per start, of what that start itself played

`policy_share` near 1 says that the simulators keep up, `simulators_share` near 1 that they are what
everybody waits for. Starts of several processes may overlap: rates are counts over `elapsed_s`, the
time in which at least one of them was playing; shares are of the summed wall time.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

_DIGITS = 4


@dataclass
class Timing:
    """Seconds and counts of one start, or of several together (`total`).

    simulators_s: seconds inside simulators, summed over workers; lanes_s: what they could have
    been. num_frames: images given by simulators. num_calls: forward calls of the policy.
    peak_worker_mib: the largest resident memory of a worker, 0 where they run in this process.
    """

    wall_s: float = 0.0
    policy_s: float = 0.0
    waiting_s: float = 0.0
    simulators_s: float = 0.0
    lanes_s: float = 0.0
    num_calls: int = 0
    num_decisions: int = 0
    num_frames: int = 0
    num_episodes: int = 0
    num_restarts: int = 0
    num_recycles: int = 0
    peak_worker_mib: float = 0.0
    began_s: float = 0.0  # since the epoch
    elapsed_s: float = 0.0
    num_starts: int = 1


def total(timings: Sequence[Timing]) -> Timing:
    """Sums, the largest peak, and the time in which at least one start was playing."""
    whole = Timing(began_s=min((one.began_s for one in timings), default=0.0), num_starts=0)
    apart = ("began_s", "elapsed_s", "peak_worker_mib")
    for one in timings:
        for name in (entry.name for entry in fields(Timing) if entry.name not in apart):
            setattr(whole, name, getattr(whole, name) + getattr(one, name))
        whole.peak_worker_mib = max(whole.peak_worker_mib, one.peak_worker_mib)
    whole.elapsed_s = _covered((one.began_s, one.began_s + one.wall_s) for one in timings)
    return whole


def with_rates(timing: Timing) -> dict[str, Any]:
    """The numbers and what follows from them, as plain JSON; None where nothing was played."""

    def per(count: float, seconds: float) -> float | None:
        return count / seconds if seconds > 0 else None

    elapsed = timing.elapsed_s or timing.wall_s
    values = {
        **asdict(timing),
        "elapsed_s": elapsed,
        "policy_share": per(timing.policy_s, timing.wall_s),
        "waiting_share": per(timing.waiting_s, timing.wall_s),
        "simulators_share": per(timing.simulators_s, timing.lanes_s),
        "episodes_per_s": per(timing.num_episodes, elapsed),
        "frames_per_s": per(timing.num_frames, elapsed),
        "decisions_per_s": per(timing.num_decisions, elapsed),
        "decisions_per_call": per(timing.num_decisions, timing.num_calls),
    }
    return {
        key: round(value, _DIGITS) if isinstance(value, float) else value
        for key, value in values.items()
    }


def sentence(rates: Mapping[str, Any]) -> str:
    """The console's line about `with_rates`; empty where nothing was played."""
    if not rates["num_episodes"]:
        return ""
    parts = [f"{rates['num_episodes']} episodes in {rates['elapsed_s']:.1f} s"]
    if rates["num_frames"]:
        parts.append(f"{rates['frames_per_s']:.1f} frames/s")
    if rates["num_decisions"]:
        parts.append(f"{rates['decisions_per_s']:.1f} decisions/s")
        parts.append(f"policy {100 * rates['policy_share']:.0f} % of the time")
    if rates["simulators_share"] is not None:
        parts.append(f"simulators {100 * rates['simulators_share']:.0f} % busy")
    for name, what in (("num_restarts", "restarted"), ("num_recycles", "recycled")):
        if rates[name]:
            parts.append(f"{rates[name]} workers {what}")
    return ", ".join(parts)


def note_timing(folder: Path, timing: Timing, *, shard: int, num_shards: int) -> None:
    """Add the line of one start to its shard's file; a start that played nothing has none."""
    if not timing.wall_s:
        return
    line = json.dumps({**asdict(timing), "host": socket.gethostname(), "pid": os.getpid()})
    with open(folder / f"timing-{shard:03d}-of-{num_shards:03d}.jsonl", "a") as handle:
        handle.write(line + "\n")


def read_timings(folder: Path) -> list[Timing]:
    """Every start of every shard that came to an end by itself, in the order of their beginning.

    Times are no results: a line torn by a kill is passed over.
    """
    names = {entry.name for entry in fields(Timing)}
    found = []
    for path in sorted(folder.glob("timing-*.jsonl")):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                values = json.loads(line)
                found.append(Timing(**{name: values[name] for name in names}))
            except (json.JSONDecodeError, KeyError, TypeError):
                continue
    return sorted(found, key=lambda one: one.began_s)


def _covered(intervals: Iterable[tuple[float, float]]) -> float:
    """The length of a union of intervals.

    >>> _covered([(0, 2), (1, 3), (5, 6)])
    4.0
    """
    length, reached = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        length += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return length
