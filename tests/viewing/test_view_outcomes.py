"""The words of the filters, against walks whose outcome is plain."""

import pytest

from vla_nav.episodes.types import Goal
from vla_nav.viewing.outcomes import outcome_of_record, outcome_of_walk

GOAL = (Goal((0.0, 0.0, -5.0), 1.0),)


def straight(*zs: float) -> list[tuple[float, float, float]]:
    return [(0.0, 0.0, z) for z in zs]


@pytest.mark.parametrize(
    ("places", "primitives", "flags"),
    [
        (straight(0, -2.5, -5, -5), [1, 1, 0], ()),
        (straight(0, -1, -1), [1, 0], ("failed", "early stop")),
        (straight(0, -5, -9, -9), [1, 1, 0], ("failed", "overshoot")),
        (straight(0, 9, 9), [1, 0], ("failed",)),
        (straight(0, -5), [1], ("failed", "stuck")),
        (straight(0, *[-4.5] * 9, -4.5), [1] * 9 + [0], ("stuck",)),
        (straight(0, *[-4.5] * 7, -4.5), [1] * 7 + [0], ()),
        (straight(*[-5] * 14), [2] * 12 + [0], ("stuck",)),
        (straight(*[-5] * 14), [2] * 6 + [3] * 6 + [0], ()),
    ],
)
def test_a_walk_of_a_data_set(places, primitives, flags):
    assert outcome_of_walk(places, primitives, GOAL, turn_deg=30).flags == flags


def test_without_goals_nothing_is_called_a_failure():
    assert outcome_of_walk(straight(0, -1, -1), [1, 0], (), turn_deg=30).flags == ()


def test_unparsed_actions_are_counted():
    outcome = outcome_of_walk(straight(-5, -5), [0], GOAL, turn_deg=30, num_unparsed=2)
    assert outcome.flags == ("unparsed",)
    assert "2 actions" in outcome.words[0]


def record(**values: object) -> dict:
    usual = {
        "flag": None, "sr": 0.0, "osr": 0.0, "ne_m": 6.0, "path_m": 1.0, "geodesic_m": 9.0,
        "has_stopped": True, "primitives": "110", "path": straight(0, -1, -2),
    }  # fmt: skip
    return {**usual, **values}


@pytest.mark.parametrize(
    ("values", "flags"),
    [
        ({}, ("failed", "early stop")),
        ({"path_m": 7.0}, ("failed",)),
        ({"osr": 1.0}, ("failed", "overshoot")),
        ({"sr": 1.0, "osr": 1.0, "ne_m": 1.0}, ()),
        ({"has_stopped": False, "primitives": "11"}, ("failed", "stuck")),
        ({"osr": 1.0, "ne_m": 1.0, "has_stopped": False, "primitives": "1"}, ("failed", "stuck")),
        ({"flag": "non_finite_geodesic", "sr": None, "ne_m": None}, ("flagged",)),
        ({"primitives": "1" * 10 + "0", "path_m": 7.0}, ("failed", "stuck")),
    ],
)
def test_a_result_of_an_evaluation(values, flags):
    assert outcome_of_record(record(**values), success_m=3.0, turn_deg=30).flags == flags
