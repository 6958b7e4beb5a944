"""Hand-computed episodes: every number below follows from the definitions with pen and paper."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vla_nav.errors import UserError
from vla_nav.evaluation.metrics import (
    NON_FINITE,
    SuccessRule,
    dtw,
    episode_metrics,
    normalised_dtw,
    without_repeats,
)

RULE = SuccessRule()


def line(*xs: float) -> np.ndarray:
    return np.array([[x, 0.0, 0.0] for x in xs])


def score(xs, distances, *, reference=(0.0, 4.0), has_stopped=True, rule=RULE, collisions=0):
    return episode_metrics(
        line(*xs),
        distances,
        line(*reference),
        has_stopped=has_stopped,
        num_collisions=collisions,
        rule=rule,
    )


def test_a_straight_walk_that_stops_one_and_a_half_metres_short():
    # goal at x = 4, walked to 2.5 and stopped: L = 4, P = 2.5
    got = score((0, 1, 2, 2.5), (4, 3, 2, 1.5), collisions=2)
    assert got.flag is None
    assert (got.sr, got.further, got.osr) == (1.0, {"sr_1m": 0.0, "sr_2m": 1.0}, 1.0)
    assert got.ne_m == 1.5
    assert got.spl == 1.0  # 4 / max(4, 2.5)
    # DTW of (0, 1, 2, 2.5) and (0, 4): 0-0, then 1 to 0 costs 1, 2 to 4 costs 2, 2.5 to 4 costs 1.5
    assert got.ndtw == pytest.approx(math.exp(-(0 + 1 + 2 + 1.5) / (2 * 3)))
    assert got.sdtw == got.ndtw
    assert (got.steps, got.collisions, got.path_m, got.geodesic_m) == (4, 2, 2.5, 4.0)


def test_success_needs_stop_and_strictly_less():
    assert score((0, 1), (4, 3.0)).sr == 0.0
    assert score((0, 1), (4, 3.0), rule=SuccessRule(is_strict=False)).sr == 1.0
    walked_in = score((0, 3.5), (4, 0.5), has_stopped=False)
    assert (walked_in.sr, walked_in.osr, walked_in.spl, walked_in.steps) == (0.0, 1.0, 0.0, 1)
    assert walked_in.sdtw == 0.0
    assert walked_in.ndtw > 0.5


def test_a_detour_halves_spl():
    # there and back and there again: L = 4, P = 8
    assert score((0, 2, 0, 2, 4), (4, 2, 4, 2, 0)).spl == 0.5


def test_oracle_success_counts_the_start_and_the_public_convention_does_not():
    left = score((0, 2), (2.5, 4.5))
    assert (left.osr, left.osr_public, left.sr) == (1.0, 0.0, 0.0)


def test_an_agent_that_stops_at_once_is_scored_from_its_start():
    got = score((0,), (2.0,))
    assert (got.sr, got.osr, got.osr_public, got.steps, got.path_m, got.spl) == (1, 1, 1, 1, 0, 1)
    assert got.ndtw == got.ndtw_public == pytest.approx(math.exp(-4 / 6))


def test_start_on_the_goal_has_spl_one():
    assert score((0,), (0.0,), reference=(0.0,)).spl == 1.0


def test_public_path_leaves_the_start_out():
    # path without the start: (1, 4) against (0, 4): costs 1 + 0
    got = score((0, 1, 4), (4, 3, 0))
    assert got.ndtw_public == pytest.approx(math.exp(-1 / 6))
    assert got.ndtw == pytest.approx(math.exp(-1 / 6))  # 0-0, 1-0, 4-4: also 1
    behind = score((0, -1, 4), (4, 5, 0))
    assert behind.ndtw == behind.ndtw_public == pytest.approx(math.exp(-1 / 6))


def test_turns_do_not_change_ndtw():
    assert score((0, 0, 0, 2, 2, 4), (4, 4, 4, 2, 2, 0)).ndtw == score((0, 2, 4), (4, 2, 0)).ndtw
    assert len(without_repeats(line(0, 0, 1, 1, 0))) == 3


@pytest.mark.parametrize("distances", [(math.inf, 3.0), (4.0, math.inf), (math.nan, 1.0)])
def test_an_unreachable_goal_is_flagged_and_never_scored(distances):
    got = score((0, 1), distances)
    assert got.flag == NON_FINITE
    values = got.as_dict()
    for name in ("sr", "sr_1m", "sr_2m", "osr", "osr_public", "spl", "ne_m", "ndtw", "sdtw"):
        assert values[name] is None, name
    assert got.steps == 2


def test_an_infinite_distance_in_mid_path_is_not_within_any_threshold():
    got = score((0, 1, 2), (5.0, math.inf, 4.0))
    assert (got.flag, got.osr) == (None, 0.0)


def test_height_counts_in_path_length_and_dtw():
    positions = np.array([[0.0, 0.0, 0.0], [0.0, 3.0, 4.0]])
    got = episode_metrics(
        positions, (5.0, 0.0), positions, has_stopped=True, num_collisions=0, rule=RULE
    )
    assert (got.path_m, got.ndtw, got.spl) == (5.0, 1.0, 1.0)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(-5, 5), min_size=1, max_size=5),
    st.lists(st.integers(-5, 5), min_size=1, max_size=4),
)
def test_dtw_is_the_cheapest_of_all_warpings(path, reference):
    def cheapest(i: int, j: int) -> float:  # enumerates every monotone alignment
        cost = abs(path[i] - reference[j])
        if i == j == 0:
            return cost
        before = [(i - 1, j), (i, j - 1), (i - 1, j - 1)]
        return cost + min(cheapest(a, b) for a, b in before if a >= 0 and b >= 0)

    expected = cheapest(len(path) - 1, len(reference) - 1)
    assert dtw(line(*path), line(*reference)) == pytest.approx(expected)


def test_ndtw_of_the_reference_itself_is_one():
    reference = np.random.default_rng(3).normal(size=(97, 3))
    assert normalised_dtw(reference, reference, threshold_m=3.0) == 1.0


def test_thresholds_must_be_positive():
    for bad in itertools.chain([0.0, -1.0], [math.inf, math.nan]):
        with pytest.raises(UserError, match="above 0"):
            SuccessRule(success_m=bad)
