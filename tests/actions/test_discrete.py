"""`discrete` and `chunk`: primitives to tokens and back."""

from __future__ import annotations

import pytest

from vla_nav.actions import ChunkSpace, DiscreteSpace, Primitives, Stop
from vla_nav.actions.chunk import END
from vla_nav.actions.decisions import cut
from vla_nav.episodes.types import LOOK_UP, STOP, ExpertLabel, Pose, Step
from vla_nav.episodes.types import MOVE_FORWARD as F
from vla_nav.episodes.types import TURN_LEFT as L
from vla_nav.episodes.types import TURN_RIGHT as R
from vla_nav.errors import UserError

POSE = Pose.from_yaw((0.0, 0.0, 0.0), 0.0)


def label(*primitives: int) -> ExpertLabel:
    return ExpertLabel(primitives, (POSE,) * len(primitives))


def test_discrete_label_is_the_next_primitive():
    space = DiscreteSpace()
    assert space.label(POSE, label(R, F, STOP)) == Primitives((R,))
    assert space.label(POSE, label(STOP)) == Stop()
    assert [space.encode(space.decode((i,)).action) for i in range(4)] == [(0,), (1,), (2,), (3,)]


def test_discrete_refuses_data_with_longer_decisions():
    with pytest.raises(UserError, match="decision=primitive"):
        DiscreteSpace().executed(Step(POSE, {}, (L, F), ()))


def test_discrete_needs_looks_for_camera_pitch():
    with pytest.raises(UserError, match=r"actions\.looks=true"):
        DiscreteSpace().encode(Primitives((LOOK_UP,)))
    assert DiscreteSpace(looks=True).encode(Primitives((LOOK_UP,))) == (LOOK_UP,)


@pytest.mark.parametrize(
    ("length", "decision", "plan", "tokens"),
    [
        (3, None, (F, F, F, F, STOP), (F, F, F)),
        (3, None, (F, F, STOP), (F, F, END)),
        (3, None, (STOP,), (STOP,)),
        (8, "turn_then_forward(2)", (L, F, F, F), (L, F, F, END)),
        (2, "turn_then_forward(4)", (L, L, L, F), (L, L)),
        (1, None, (R, F), (R,)),
    ],
)
def test_chunk_label_is_the_decision(length, decision, plan, tokens):
    space = ChunkSpace(length=length, decision=decision)
    action = space.label(POSE, label(*plan))
    assert space.encode(action) == tokens
    assert space.decode(tokens) == (action, True)
    executed = cut(plan, space.decision)
    assert space.encode(space.executed(Step(POSE, {}, executed, ()))) == tokens


def test_chunk_drops_what_follows_stop():
    assert ChunkSpace(length=4).encode(Primitives((F, STOP, F))) == (F, END)


def test_chunk_refuses_no_length():
    with pytest.raises(UserError, match=r"actions\.length"):
        ChunkSpace(length=0)
