"""Recorded actions as steps: poses by dead reckoning, labels from what was executed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.episodes.fixtures.walk import walk
from vla_nav.episodes.types import Pose
from vla_nav.episodes.walked import HORIZON, ORIGIN, Walked, dead_reckon, walked_steps

ACTIONS = st.lists(st.integers(1, 5), max_size=60)


def decisions_of(actions: list[int]) -> list[Walked]:
    return [Walked({"front": str(at)}, (a,), (a,)) for at, a in enumerate(actions)]


@given(ACTIONS, st.sampled_from([10.0, 15.0, 30.0]), st.floats(-180, 180))
def test_poses_are_those_of_an_independent_walk(
    actions: list[int], turn_deg: float, yaw_deg: float
) -> None:
    start = Pose.from_yaw((1.0, 0.5, -2.0), math.radians(yaw_deg))
    poses = dead_reckon(start, actions, turn_deg=turn_deg, step_m=0.25)
    positions, yaws = walk((1.0, 0.5, -2.0), yaw_deg, actions, turn_deg=turn_deg)
    np.testing.assert_allclose([p.position for p in poses], positions, atol=1e-9)
    off = [math.remainder(math.degrees(p.yaw_rad) - y, 360) for p, y in zip(poses, yaws, strict=1)]
    np.testing.assert_allclose(off, 0, atol=1e-7)  # float64 sines of up to 60 turns


@given(ACTIONS)
def test_every_action_and_stop_is_taught_where_it_was_executed(actions: list[int]) -> None:
    actions = [*actions, 0]
    steps = walked_steps(ORIGIN, decisions_of(actions), turn_deg=15, step_m=0.25)
    assert [step.executed for step in steps] == [(action,) for action in actions]
    for at, step in enumerate(steps):
        (label,) = step.labels
        assert label.primitives == tuple(actions[at : at + HORIZON])
        ahead = [s.pose for s in steps[at + 1 : at + 1 + HORIZON]]
        assert list(label.poses[: len(ahead)]) == ahead
        assert len(label.poses) == len(label.primitives)
    assert sum(step.labels[0].primitives[0] == 0 for step in steps) == 1


def test_labels_end_before_what_is_unknown_or_differs() -> None:
    decisions = [
        Walked({}, (1, 1), (1, 1)),
        Walked({}, (2,), (2,)),
        Walked({}, (), None),
        Walked({}, (3,), (3,)),
        Walked({}, (1,), (2, 2)),
        Walked({}, (0,), (0,)),
    ]
    steps = walked_steps(ORIGIN, decisions, turn_deg=90, step_m=1)
    taught = [tuple(label.primitives for label in step.labels) for step in steps]
    assert taught == [((1, 1, 2),), ((2,),), (), ((3,),), ((2, 2),), ((0,),)]
    assert steps[2].pose == steps[3].pose  # nothing is known to have been executed between
    # taught, not executed: half a turn from the heading there
    at = steps[4]
    assert math.isclose(abs(at.pose.relative(at.labels[0].poses[-1])[2]), math.pi)


def test_a_label_ends_with_its_first_stop() -> None:
    steps = walked_steps(ORIGIN, decisions_of([1, 0, 1, 0]), turn_deg=15, step_m=0.25)
    assert [step.labels[0].primitives for step in steps] == [(1, 0), (0,), (1, 0), (0,)]


@pytest.mark.parametrize("horizon", [1, 3])
def test_labels_are_as_long_as_asked(horizon: int) -> None:
    decisions = decisions_of([1] * 9)
    steps = walked_steps(ORIGIN, decisions, turn_deg=15, step_m=0.25, horizon=horizon)
    assert [len(s.labels[0].primitives) for s in steps] == [min(horizon, 9 - at) for at in range(9)]
