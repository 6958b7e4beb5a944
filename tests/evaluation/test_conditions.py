"""Rows of the table: what they read and see, and that chance is what it claims to be."""

import numpy as np
import pytest
from worlds import made_episode

from vla_nav.actions.decisions import DecisionRule, cut
from vla_nav.episodes.types import MOVE_FORWARD, STOP, Camera, Embodiment, Pose
from vla_nav.errors import UserError
from vla_nav.evaluation.conditions import (
    CONDITIONS,
    Instructions,
    chance_decision,
    conditions_named,
    random_decision,
    route,
)
from vla_nav.simulators.protocol import Observation

BODY = Embodiment((Camera("front", 8, 8, 90.0, 1.0),), 0.2, 1.5, 30.0, 0.25, True)
BY_NAME = {condition.name: condition for condition in CONDITIONS}


def test_the_swapped_instruction_is_of_another_route_and_the_same_whatever_is_around():
    episodes = [made_episode(str(i)) for i in range(20)]
    # Second phrasings of the same routes: never a swap partner of each other.
    twins = [
        made_episode(f"{i}b", goals=episodes[i].goals, instruction=f"walk to place {i}")
        for i in range(20)
    ]
    texts = Instructions([*episodes, *twins], seed=3)
    partners = {episode.key: texts.swapped(episode) for episode in episodes}
    for episode in episodes:
        partner = partners[episode.key]
        assert route(partner) != route(episode)
        assert partner.instruction != episode.instruction
        assert texts.of(BY_NAME["swapped_instruction"], episode) == partner.instruction
    assert len({partner.key for partner in partners.values()}) > 5
    reordered = Instructions([*twins[::-1], *episodes[::-1]], seed=3)
    assert all(reordered.swapped(e).key == partners[e.key].key for e in episodes)
    other_seed = Instructions([*episodes, *twins], seed=4)
    assert any(other_seed.swapped(e).key != partners[e.key].key for e in episodes)


def test_a_single_route_cannot_be_swapped():
    only = [made_episode("1"), made_episode("2", goals=made_episode("1").goals)]
    with pytest.raises(UserError, match="second route"):
        Instructions(only, seed=0).swapped(only[0])


def test_what_each_row_reads_and_sees():
    episodes = [made_episode("1"), made_episode("2")]
    texts = Instructions(episodes, seed=0)
    assert texts.of(BY_NAME["policy"], episodes[0]) == episodes[0].instruction
    assert texts.of(BY_NAME["black_images"], episodes[0]) == episodes[0].instruction
    assert texts.of(BY_NAME["no_instruction"], episodes[0]) == ""
    seen = Observation(
        Pose.from_yaw((0.0, 0.0, 0.0), 0.0),
        {"front": np.full((4, 6, 3), 7, np.uint8)},
        {"front": np.full((4, 6), 2.0, np.float32)},
        {},
    )
    assert BY_NAME["policy"].observe(seen) is seen
    dark = BY_NAME["black_images"].observe(seen)
    assert dark.pose == seen.pose
    assert dark.rgb["front"].shape == (4, 6, 3)
    assert dark.rgb["front"].dtype == np.uint8
    assert not dark.rgb["front"].any()
    assert not dark.depth["front"].any()
    assert seen.rgb["front"].all()


def test_unknown_and_repeated_rows_are_refused():
    with pytest.raises(UserError, match="did you mean 'expert'"):
        conditions_named(["policy", "expart"])
    with pytest.raises(UserError, match="once"):
        conditions_named(["policy", "policy"])
    with pytest.raises(UserError, match="at least one"):
        conditions_named([])


@pytest.mark.parametrize("text", ["primitive", "turn_then_forward(4)", "fixed(3)"])
def test_random_decisions_have_the_rules_shape_and_never_stop(text):
    rule, rng = DecisionRule.parse(text), np.random.default_rng(0)
    seen = {random_decision(rule, BODY, rng) for _ in range(400)}
    assert len(seen) >= 3
    for decision in seen:
        assert decision
        assert STOP not in decision
        assert cut(decision, rule) == decision
    assert any(MOVE_FORWARD in decision for decision in seen)


def test_chance_stops_with_the_declared_probability():
    rule, rng = DecisionRule.parse("turn_then_forward(4)"), np.random.default_rng(1)
    stops = sum(
        chance_decision(rule, BODY, rng, stop_probability=0.06) == (STOP,) for _ in range(4000)
    )
    assert 0.045 < stops / 4000 < 0.075  # four standard deviations of a share of 4000
