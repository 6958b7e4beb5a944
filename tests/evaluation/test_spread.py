"""Spread over scenes, seeds and differences, against loops that do what the words say."""

import numpy as np
import pytest

from vla_nav.evaluation.spread import difference, spread


def made_run(rng, *, num=60, num_scenes=8, lift=0.0):
    """Episode key -> (scene, value); scenes differ in difficulty."""
    hard = np.random.default_rng(3).random(num_scenes)
    scenes = np.random.default_rng(4).integers(0, num_scenes, size=num)
    return {
        (str(i),): (f"s{scene}", float(rng.random() < hard[scene] + lift))
        for i, scene in enumerate(scenes)
    }


def quantiles_by_loops(runs, *, num=3000, seed=11):
    """Resample runs, then scenes, with replacement; the mean over all their episodes."""
    rng = np.random.default_rng(seed)
    scenes = sorted({scene for run in runs for scene, _ in run.values()})
    means = []
    for _ in range(num):
        drawn = [scenes[i] for i in rng.integers(0, len(scenes), size=len(scenes))]
        values = []
        for run in [runs[i] for i in rng.integers(0, len(runs), size=len(runs))]:
            for name in drawn:
                values += [value for scene, value in run.values() if scene == name]
        means.append(np.mean(values))
    return np.quantile(means, [0.025, 0.975])


def test_one_run_has_no_spread_over_runs_but_an_interval_over_scenes():
    run = made_run(np.random.default_rng(0))
    got = spread([run], seed=0)
    assert got.mean == pytest.approx(np.mean([value for _, value in run.values()]))
    assert got.std is None
    low, high = quantiles_by_loops([run])
    # Two bootstraps of 2000 and 3000: their quantiles differ by about 0.01.
    assert (got.low, got.high) == (pytest.approx(low, abs=0.03), pytest.approx(high, abs=0.03))


def test_several_runs_have_mean_deviation_and_an_interval_over_both():
    runs = [made_run(np.random.default_rng(i), lift=0.3 * (i - 1)) for i in range(3)]
    got = spread(runs, seed=0)
    means = [np.mean([value for _, value in run.values()]) for run in runs]
    assert got.by_run == pytest.approx(means)
    assert got.mean == pytest.approx(np.mean(means))
    assert got.std == pytest.approx(np.std(means, ddof=1))
    low, high = quantiles_by_loops(runs)
    assert (got.low, got.high) == (pytest.approx(low, abs=0.03), pytest.approx(high, abs=0.03))
    one = spread(runs[1:2], seed=0)
    assert got.high - got.low > one.high - one.low  # seeds that differ make it wider
    assert spread(runs, seed=0) == got


def test_equal_runs_scatter_over_scenes_alone():
    run = made_run(np.random.default_rng(0))
    got = spread([run, run, run], seed=0)
    assert got.std == pytest.approx(0.0, abs=1e-12)
    low, high = quantiles_by_loops([run])
    assert (got.low, got.high) == (pytest.approx(low, abs=0.03), pytest.approx(high, abs=0.03))


def test_a_difference_is_paired_so_hard_scenes_cancel():
    rng = np.random.default_rng(1)
    one = made_run(rng)
    other = {key: (scene, value + 0.1) for key, (scene, value) in one.items()}
    got = difference([one], [other], seed=0)
    assert (got.mean, got.low, got.high) == pytest.approx((0.1, 0.1, 0.1))
    alone = spread([one], seed=0)
    assert alone.high - alone.low > 0.05  # unpaired, 0.1 would drown in it
    back = difference([other], [one], seed=0)
    assert back.mean == pytest.approx(-0.1)


def test_only_shared_episodes_count_in_a_difference_and_runs_are_averaged_first():
    one = [{("a",): ("s", 0.0), ("b",): ("s", 1.0)}, {("a",): ("s", 1.0), ("c",): ("s", 1.0)}]
    other = [{("a",): ("s", 1.0), ("d",): ("t", 0.0)}]
    got = difference(one, other, seed=0)
    assert got.mean == pytest.approx(0.5)  # episode a alone: 1 - mean(0, 1)


def test_nothing_and_infinity_have_no_interval():
    assert spread([{}], seed=0).mean is None
    got = spread([{("a",): ("s", float("inf")), ("b",): ("t", 1.0)}], seed=0)
    assert (got.mean, got.low) == (float("inf"), None)
