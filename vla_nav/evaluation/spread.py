"""How far a mean may be from the truth: over scenes, over seeds, and between two policies.

    one run        resample scenes (episodes of one scene resemble each other)
    n seeds        mean of the runs, their standard deviation, and an interval that resamples
                   scenes and runs: a policy trained or sampled again would give another run
    difference     of two policies on the same episodes: paired, so what is hard for both cancels

Axis legend:  R runs, S scenes, B resamples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from vla_nav.seeding import generator

NUM_RESAMPLES = 2000
Values = Mapping[tuple[str, ...], tuple[str, float]]  # episode key -> (scene, value)


class Spread(NamedTuple):
    """A mean over runs and episodes. std: over runs, None of one; low, high: 95 %."""

    mean: float | None
    std: float | None
    low: float | None
    high: float | None
    by_run: tuple[float | None, ...]


def spread(runs: Sequence[Values], *, seed: int) -> Spread:
    """The mean of the runs' means and how it scatters; None where a run has no value."""
    by_run = tuple(_mean([value for _, value in run.values()]) for run in runs)
    if any(mean is None for mean in by_run):
        return Spread(None, None, None, None, by_run)
    mean = float(np.mean(by_run))
    if not math.isfinite(mean):
        return Spread(mean, None, None, None, by_run)
    std = float(np.std(by_run, ddof=1)) if len(by_run) > 1 else None
    low, high = _interval(*_tables(runs), seed=seed)
    return Spread(mean, std, low, high, by_run)


def difference(one: Sequence[Values], other: Sequence[Values], *, seed: int) -> Spread:
    """`other` minus `one` over the episodes that every run of both has, paired by episode.

    An episode's value is its mean over a policy's runs, so the interval is over scenes.
    """
    shared = set.intersection(*(set(run) for run in (*one, *other)))
    paired = {
        key: (
            one[0][key][0],
            float(np.mean([run[key][1] for run in other]))
            - float(np.mean([run[key][1] for run in one])),
        )
        for key in sorted(shared)
    }
    return spread([paired], seed=seed)


def _tables(runs: Sequence[Values]) -> tuple[np.ndarray, np.ndarray]:
    """Sums and counts of the values by run and scene: two arrays (R, S)."""
    scenes = sorted({scene for run in runs for scene, _ in run.values()})
    place = {scene: index for index, scene in enumerate(scenes)}
    sums, counts = (np.zeros((len(runs), len(scenes))) for _ in range(2))
    for number, run in enumerate(runs):
        for scene, value in run.values():
            sums[number, place[scene]] += value
            counts[number, place[scene]] += 1
    return sums, counts


def _interval(sums: np.ndarray, counts: np.ndarray, *, seed: int) -> tuple[float, float]:
    """The 2.5 % and 97.5 % quantiles of means over resampled runs and scenes."""
    num_runs, num_scenes = sums.shape
    rng = generator(seed, "bootstrap")
    scenes = _times(rng.integers(0, num_scenes, size=(NUM_RESAMPLES, num_scenes)), num_scenes)
    runs = np.ones((NUM_RESAMPLES, 1))
    if num_runs > 1:
        runs = _times(rng.integers(0, num_runs, size=(NUM_RESAMPLES, num_runs)), num_runs)
    total = np.einsum("br,bs,rs->b", runs, scenes, sums)  # (B,)
    number = np.einsum("br,bs,rs->b", runs, scenes, counts)
    low, high = np.quantile((total / number)[number > 0], [0.025, 0.975])
    return float(low), float(high)


def _times(draws: np.ndarray, size: int) -> np.ndarray:
    """(B, n) drawn indices -> (B, size): how often each index was drawn."""
    return np.stack([np.bincount(draw, minlength=size) for draw in draws]).astype(float)


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
