"""Measured steps as what a cost model is fitted to: counts of each step, and its seconds.

    | data wait | to device | forwards and backwards of its packs ... | optimiser | average |
                              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ these seconds

Waiting, copies, communication and the update are the same whatever a pack holds, or another rank's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from vla_nav.profiling.regions import (
    AVERAGE,
    COMMUNICATION,
    DATA,
    OPTIMISER,
    TRANSFER,
    Mark,
)
from vla_nav.profiling.step_profile import Block
from vla_nav.profiling.structure import Structure
from vla_nav.training.cost_model import PackCounts

_NOT_OF_A_PACK = (DATA, TRANSFER, COMMUNICATION, OPTIMISER, AVERAGE)


def measured_steps(block: Block, found: Sequence[Structure]) -> Iterator[dict[str, float]]:
    """Every step of a profiled block with its counts and seconds. found: of each step."""
    for one, seconds in zip(found, pack_seconds(block.marks[0]), strict=True):
        trees = one.trees
        counts = PackCounts(
            tokens=trees.num_tree_tokens,
            pairs=trees.num_tree_pairs,
            predictors=trees.num_tree_predictors,
            frames=trees.num_tree_frames,
            packs=one.num_packs,
            partitions=one.num_partitions,
            recomputed_tokens=one.num_recomputed_tokens,
        )
        yield {**counts._asdict(), "seconds": seconds}


def pack_seconds(marks: Sequence[Mark]) -> list[float]:
    """Of every step on a timeline, without what is not a pack's; a step begins with its fetch."""
    steps: list[float] = []
    for first, second in pairwise(marks):
        if first.label.region == DATA:
            steps.append(0.0)
        elif steps and first.label.region not in _NOT_OF_A_PACK:
            steps[-1] += _between(first, second)
    return steps


def _between(first: Mark, second: Mark) -> float:
    if first.event is not None:
        return float(first.event.elapsed_time(second.event)) / 1e3
    return (second.host_ns - first.host_ns) / 1e9
