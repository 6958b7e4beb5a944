"""The numbers of a profile: parts that add up to the wall time, and what they are held against.

    parts       ms of every region and pass, its share, what was predicted, FLOP/s reached
    groups      vision against backbone first; forward, backward, recompute, in all
    check       sum of the parts against the wall time, which another clock took: within 3 %
    overhead    profiled against bare steps, each per predicted FLOP (steps differ in length)

Parts are of the profiled steps; step time, MFU and the epoch are of the bare ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

from vla_nav.profiling.prediction import Peak, Predicted, Rates, total_predicted
from vla_nav.profiling.regions import (
    ATTENTION,
    AVERAGE,
    COMMUNICATION,
    DATA,
    EMBEDDINGS,
    HEAD,
    OPTIMISER,
    OTHER,
    PHASES,
    PROJECTOR,
    REGIONS,
    RELAY,
    REST,
    STEP,
    TRANSFER,
    VISION,
    Label,
    durations,
)
from vla_nav.profiling.step_profile import BARE, PROFILED, Block
from vla_nav.profiling.structure import Structure, total_structure

TOLERANCE = 0.03  # of the wall time, between it and the sum of the parts
NUM_OPERATORS = 12
GROUPS = {
    "vision": (VISION, PROJECTOR),
    "backbone": (ATTENTION, REST),
    "embeddings": (EMBEDDINGS,),
    "head and loss": (HEAD,),
    "gateways": (RELAY,),
    "data": (DATA, TRANSFER),
    "communication": (COMMUNICATION,),
    "optimiser": (OPTIMISER, AVERAGE),
    "other": (OTHER,),
}


class Timed(NamedTuple):
    """A block of bare or profiled steps, what these held, and what was to be expected."""

    block: Block
    found: Structure
    predicted: Predicted


class Measured(NamedTuple):
    """What was measured."""

    timed: Sequence[Timed]
    rates: Rates
    peak: Peak
    memory: Mapping[str, Any]
    operators: Sequence[tuple[str, float]]
    steps_per_epoch: int
    num_ranks: int


def profile_report(measured: Measured, *, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Plain values: what profile.json holds."""
    bare, profiled = (
        [item for item in measured.timed if item.block.kind == kind] for kind in (BARE, PROFILED)
    )
    num, num_bare = (sum(item.block.num for item in some) for some in (profiled, bare))
    wall_s, bare_s = (sum(item.block.wall_s for item in some) for some in (profiled, bare))
    seconds = total_durations([item.block for item in profiled])
    expected, expected_bare = (
        total_predicted([item.predicted for item in some]) for some in (profiled, bare)
    )
    done = total_structure([item.found for item in bare])
    step_s, predicted_s = bare_s / num_bare, sum(expected_bare.seconds.values())
    epoch_h = measured.steps_per_epoch * step_s / 3600
    return {
        "command": "vla-nav profile",
        "what": dict(facts),
        "steps": {
            "profiled": num,
            "bare": num_bare,
            "profiled_ms": 1e3 * wall_s / num,
            "bare_ms": 1e3 * step_s,
            "tokens_per_s": done.trees.num_tree_tokens / bare_s,
            "host_data_wait_ms": 1e3 * host_seconds(profiled, DATA) / num,
            "trees_per_s": done.trees.num_trees / bare_s,
        },
        "groups": groups(seconds, wall_s, num),
        "parts": parts(seconds, expected, wall_s, num),
        "check": check(seconds, wall_s),
        "overhead": overhead(bare, profiled),
        "notes": notes(seconds, facts),
        "prediction": {
            "matmul_tflops": measured.rates.matmul / 1e12,
            "copy_gb_per_s": measured.rates.copy / 1e9,
            "transfer_gb_per_s": measured.rates.transfer / 1e9 or None,
            "step_ms": 1e3 * predicted_s / num_bare,
            "measured_over_predicted": bare_s / predicted_s,
        },
        "mfu": {
            "flops_per_step": expected_bare.total_flops / num_bare,
            "peak_flops": measured.peak.flops,
            "peak_source": measured.peak.source,
            "mfu": expected_bare.total_flops / bare_s / measured.peak.flops,
        },
        "epoch": {
            "steps": measured.steps_per_epoch,
            "hours": epoch_h,
            "device_hours": measured.num_ranks * epoch_h,
        },
        "structure": total_structure([item.found for item in profiled]).as_json(),
        "memory": dict(measured.memory),
        "operators": [{"name": name, "ms": time_ms} for name, time_ms in measured.operators],
    }


def host_seconds(timed: Sequence[Timed], region: str) -> float:
    """What the main thread spends in a region by its own clock, whatever the device does."""
    return sum(
        (second.host_ns - first.host_ns) / 1e9
        for item in timed
        for first, second in pairwise(item.block.marks[0])
        if first.label.region == region
    )


def total_durations(blocks: Sequence[Block]) -> dict[Label, float]:
    """Seconds of every label over all blocks."""
    total: dict[Label, float] = defaultdict(float)
    for block in blocks:
        for label, value in durations(block.marks).items():
            total[label] += value
    return dict(total)


def parts(
    seconds: Mapping[Label, float], predicted: Predicted, wall_s: float, num_steps: int
) -> list[dict[str, Any]]:
    """One row per label, in the order of a step; times per step."""
    rows = []
    for label in sorted(seconds, key=_place):
        expected, flops = predicted.seconds.get(label), predicted.flops.get(label)
        rows.append(
            {
                "region": label.region,
                "phase": label.phase,
                "ms": 1e3 * seconds[label] / num_steps,
                "share": seconds[label] / wall_s,
                "predicted_ms": None if expected is None else 1e3 * expected / num_steps,
                "tflops": None if not flops else flops / max(seconds[label], 1e-9) / 1e12,
            }
        )
    return rows


def groups(seconds: Mapping[Label, float], wall_s: float, num_steps: int) -> list[dict[str, Any]]:
    """Parts added up: vision against backbone first. ms per step of every pass and in all."""
    rows = []
    for name, regions in GROUPS.items():
        by_phase = {
            phase: 1e3 * sum(seconds.get(Label(region, phase), 0.0) for region in regions)
            for phase in PHASES
        }
        total = sum(by_phase.values())
        if total or name in ("vision", "backbone"):
            row = {f"{phase}_ms": value / num_steps for phase, value in by_phase.items()}
            rows.append(
                {"name": name, **row, "ms": total / num_steps, "share": total / 1e3 / wall_s}
            )
    return rows


def check(seconds: Mapping[Label, float], wall_s: float) -> dict[str, Any]:
    """Whether the parts add up to the wall time, and how much of it has no name."""
    total = sum(seconds.values())
    difference = total / wall_s - 1
    return {
        "sum_s": total,
        "wall_s": wall_s,
        "difference": difference,
        "tolerance": TOLERANCE,
        "adds_up": abs(difference) <= TOLERANCE,
        "unattributed_share": seconds.get(Label(OTHER, STEP), 0.0) / wall_s,
    }


def overhead(bare: Sequence[Timed], profiled: Sequence[Timed]) -> dict[str, float]:
    """What profiling costs (median over neighbouring blocks), and how much the bare blocks alone
    differ; both relative, per predicted FLOP, since blocks differ in length."""
    without, with_marks = (
        [item.block.wall_s / item.predicted.total_flops for item in some]
        for some in (bare, profiled)
    )
    ratios = [b / a for a, b in zip(without, with_marks, strict=True)]
    return {"profiling": median(ratios) - 1, "bare_spread": max(without) / min(without) - 1}


def notes(seconds: Mapping[Label, float], facts: Mapping[str, Any]) -> list[str]:
    """What a reader has to know about the split."""
    found = []
    if not any(label.region == ATTENTION for label in seconds):
        found.append(
            "attention is called by the compiled code of the layers and could not be split off: "
            "'backbone rest' holds it"
        )
    if facts["parallel_packs"] > 1:
        found.append(
            "packs of a step run in threads at once: an instant in which k threads work counts 1/k "
            "to each of their parts; in the traced step they run one after another, and its "
            f"activations are counted {facts['parallel_packs']} times"
        )
    if facts["device_type"] == "cuda":
        found.append("times are the device's: a part lasts until the device reaches the next one")
    return found


def _place(label: Label) -> tuple[int, int]:
    return REGIONS.index(label.region), PHASES.index(label.phase)
