"""Table rows from hand-made records: means, flags and clustered intervals."""

import numpy as np
import pytest

from vla_nav.errors import UserError
from vla_nav.evaluation.aggregate import aggregate, interval
from vla_nav.evaluation.metrics import NON_FINITE

SCORES = ("sr", "sr_1m", "osr", "osr_public", "spl", "ndtw", "ndtw_public", "sdtw")


def record(scene, value, *, ne_m=1.0, flag=None):
    scores = dict.fromkeys(SCORES, None if flag else value)
    return {
        **scores,
        "scene_id": scene,
        "flag": flag,
        "ne_m": None if flag else ne_m,
        "geodesic_m": None if flag else 8.0,
        "path_m": 9.0,
        "steps": 40,
        "num_decisions": 16,
        "collisions": 2,
    }


def row(records, policy="exclude"):
    return aggregate("x", records, num_expected=len(records), flag_policy=policy, seed=0)


def test_means_are_over_episodes_not_scenes():
    got = row([record("a", 1.0), record("a", 1.0), record("a", 0.0), record("b", 0.0, ne_m=5.0)])
    assert (got["n"], got["sr"], got["sr_1m"], got["spl"]) == (4, 0.5, 0.5, 0.5)
    assert (got["ne_m"], got["steps"], got["num_scenes"]) == (2.0, 40.0, 2)
    assert got["sr_low"] <= got["sr"] <= got["sr_high"]


def test_flagged_episodes_are_excluded_and_counted_or_count_as_failures():
    records = [record("a", 1.0), record("b", 1.0), record("b", None, flag=NON_FINITE)]
    excluded = row(records)
    assert (excluded["n"], excluded["num_flagged"], excluded["sr"]) == (2, 1, 1.0)
    failures = row(records, policy="failure")
    assert (failures["n"], failures["num_flagged"], failures["sr"]) == (3, 1, pytest.approx(2 / 3))
    assert failures["ne_m"] == 1.0  # there is no distance to add, so it is not counted as 0
    with pytest.raises(UserError, match="flag_policy"):
        row(records, policy="ignore")


def test_nothing_scored_is_none_not_zero():
    got = row([record("a", None, flag=NON_FINITE)])
    assert (got["n"], got["sr"], got["sr_low"], got["ne_m"]) == (0, None, None, None)


def test_one_scene_has_no_spread_and_equal_scenes_have_none_either():
    assert interval([1, 0, 1, 0], ["a"] * 4, seed=0) == (0.5, 0.5)
    assert interval([1, 0, 1, 0], ["a", "a", "b", "b"], seed=0) == (0.5, 0.5)


def test_the_interval_is_that_of_resampled_scenes():
    rng = np.random.default_rng(5)
    scenes = [f"s{i}" for i in rng.integers(0, 12, size=90)]
    chance = {scene: rng.random() for scene in scenes}  # scenes differ: clustering matters
    values = [float(rng.random() < chance[scene]) for scene in scenes]
    groups = [[v for v, s in zip(values, scenes, strict=True) if s == name] for name in set(scenes)]
    means = []
    for _ in range(4000):
        drawn = [groups[i] for i in rng.integers(0, len(groups), size=len(groups))]
        means.append(np.mean([value for group in drawn for value in group]))
    low, high = interval(values, scenes, seed=0)
    # 2000 resamples on either side: the quantiles of two runs differ by about 0.01
    assert low == pytest.approx(np.quantile(means, 0.025), abs=0.03)
    assert high == pytest.approx(np.quantile(means, 0.975), abs=0.03)
    naive_low, naive_high = interval(values, [str(i) for i in range(90)], seed=0)
    assert high - low > naive_high - naive_low
    assert (low, high) == interval(values, scenes, seed=0)
