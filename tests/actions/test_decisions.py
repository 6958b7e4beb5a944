"""Decision rules: the cuts of a plan are its primitives again, and STOP stands alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vla_nav.actions.decisions import DecisionRule, cut, fixed, primitive, turn_then_forward
from vla_nav.episodes.types import MOVE_FORWARD as F
from vla_nav.episodes.types import STOP
from vla_nav.episodes.types import TURN_LEFT as L
from vla_nav.episodes.types import TURN_RIGHT as R
from vla_nav.errors import UserError

RULES = (primitive(), turn_then_forward(1), turn_then_forward(4), fixed(3))
MOVES = st.lists(st.sampled_from((F, L, R)), max_size=30).map(tuple)


@pytest.mark.parametrize("rule", RULES, ids=str)
@given(moves=MOVES)
def test_decisions_partition_the_plan_and_stop_is_its_own(rule, moves):
    plan, decisions = (*moves, STOP), []
    while plan:
        decisions.append(cut(plan, rule))
        assert decisions[-1], "a decision is never empty"
        plan = plan[len(decisions[-1]) :]
    assert sum(decisions, ()) == (*moves, STOP)
    assert decisions[-1] == (STOP,)
    assert not any(STOP in decision for decision in decisions[:-1])


@pytest.mark.parametrize(
    ("rule", "plan", "expected"),
    [
        (primitive(), (L, F), (L,)),
        (turn_then_forward(4), (L, L, F, F, F, F, F), (L, L, F, F, F, F)),
        (turn_then_forward(4), (F, L), (F,)),
        (turn_then_forward(4), (L, STOP), (L,)),
        (turn_then_forward(4), (), ()),
        (fixed(3), (L, F, STOP), (L, F)),
        (fixed(3), (L, F), (L, F)),
    ],
)
def test_cut_by_hand(rule, plan, expected):
    assert cut(plan, rule) == expected


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_rule_is_read_back_from_its_text(rule):
    assert DecisionRule.parse(str(rule)) == rule
    assert DecisionRule.parse(rule) is rule


def test_named_and_defaulted_counts_are_understood():
    assert DecisionRule.parse("turn_then_forward(max_forward=2)") == turn_then_forward(2)
    assert DecisionRule.parse("turn_then_forward") == turn_then_forward(4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("turn_then_foward(4)", "did you mean 'turn_then_forward'"),
        ("fixed(0)", "must be >= 1"),
        ("primitive(2)", r"use fixed\(2\)"),
        ("4 steps", "not understood"),
    ],
)
def test_bad_rules_are_refused_in_one_line(text, message):
    with pytest.raises(UserError, match=message) as caught:
        DecisionRule.parse(text)
    assert "\n" not in str(caught.value)
