"""What a slot keeps, appends and forgets: all that a later context needs, no token twice."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vla_nav.episodes.types import Pose
from vla_nav.models.slots import Slot, first_needed, rest_of, shown
from vla_nav.tree import Layout, StepTokens, every_layout, frame_segment, text_segment
from vla_nav.tree.types import Segment, concatenate

HERE = Pose.from_yaw((0.0, 0.0, 0.0), 0.0)
NUM_STREAMS, NUM_FULL = 2, 3


def step_tokens(t: int) -> StepTokens:
    """Two cameras of three full and one pooled token each."""
    rows = range(t * NUM_STREAMS, (t + 1) * NUM_STREAMS)
    full = concatenate(*(frame_segment(50, row, NUM_FULL) for row in rows))
    pooled = concatenate(*(frame_segment(50, row, 1, first=NUM_FULL) for row in rows))
    return StepTokens(full, pooled, text_segment(()))


def step_features(t: int) -> torch.Tensor:
    """(streams, P, 2): stream and step, so that a mistaken row shows."""
    stream = torch.arange(NUM_STREAMS).repeat_interleave(NUM_FULL + 1)
    value = torch.stack([stream, torch.full_like(stream, t)], dim=-1)
    return value.reshape(NUM_STREAMS, NUM_FULL + 1, 2).float()


def keys(segments: tuple[Segment, ...]) -> list[int]:
    return [int(key) for segment in segments for key in segment.keys]


def slot() -> Slot:
    return Slot(0, text_segment([1]), text_segment([2, 3]), np.random.default_rng(0))


layouts = st.builds(
    Layout,
    st.sampled_from(["full", "pooled", "window", "uniform", "summary"]),
    st.sampled_from(["hidden", "visible"]),
    st.sampled_from(["first", "last"]),
    window=st.integers(1, 6),
    uniform=st.integers(2, 6),
    summary_every=st.integers(1, 3),
    summary_keep=st.integers(1, 4),
)


@settings(max_examples=60, deadline=None)
@given(layouts, st.integers(1, 14), st.integers(0, 2**32 - 1))
def test_every_needed_frame_is_still_there_and_what_is_held_is_the_context(layout, num_steps, seed):
    """Whatever was decoded, executed and summarised, at any time and for any earlier step."""
    rng = np.random.default_rng(seed)
    state, held = slot(), []
    for t in range(num_steps):
        if t and rng.random() < 0.4:
            about = int(rng.integers(1, t + 1))
            state.summaries[about] = text_segment(rng.integers(4, 9, int(rng.integers(0, 3))))
        step = step_tokens(t)
        context = state.context(layout, step)
        rest = rest_of(context, state.held)
        state.add(step, HERE, step_features(t))
        (new,), table = shown([state], [rest])
        held = held[: rest.num_kept] + keys((Segment(*rest.tokens),))
        assert held == keys(context)
        is_frame = rest.tokens.frame_index >= 0
        for row, frame in zip(
            new.frame_index[is_frame], rest.tokens.frame_index[is_frame], strict=True
        ):
            assert table[row, 0].tolist() == [frame % NUM_STREAMS, frame // NUM_STREAMS]
        assert (new.frame_index[~is_frame] == -1).all()
        decoded = rng.integers(60, 62, int(rng.integers(0, 4)))
        state.held = (*context, text_segment(decoded))
        held += decoded.tolist()
        state.drop_features(layout)
        if layout.actions == "visible":
            state.note_executed(text_segment(rng.integers(60, 62, int(rng.integers(1, 4)))))


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        (Layout("full", "visible"), [0, 0, 0, 0, 0, 0, 0]),
        (Layout("full", "hidden", "last"), [0, 0, 0, 0, 0, 0, 0]),
        (Layout("pooled", "hidden"), [1, 1, 1, 1, 1, 1, 1]),
        (Layout("window", "hidden", window=3), [1, 2, 2, 2, 2, 2, 2]),
        (Layout("window", "visible", window=1), [0, 0, 0, 0, 0, 0, 0]),
        (Layout("summary", "hidden", summary_keep=2), [1, 2, 3, 4, 2, 3, 4]),  # of 3, from t = 4
    ],
    ids=lambda value: value.name if isinstance(value, Layout) else "",
)
def test_no_more_frames_are_kept_than_the_layout_may_ask_for(layout, expected):
    state, found = slot(), []
    for t in range(7):
        if t == 3:
            state.summaries[3] = text_segment([9])
        state.held = state.context(layout, step_tokens(t))
        state.add(step_tokens(t), HERE, step_features(t))
        state.drop_features(layout)
        found.append(len(state.features))
    assert found == expected


def test_what_may_be_forgotten_never_comes_back():
    for layout in every_layout(window=3, uniform=4, summary_keep=2):
        first = [first_needed(layout, t, {4: text_segment([9])}) for t in range(20)]
        assert first == sorted(first), layout.name


def test_a_prefix_ends_inside_a_segment_or_at_equal_tokens_of_other_objects():
    held = (text_segment([1, 2]), text_segment([3, 4, 5]), text_segment([6]))
    context = (held[0], text_segment([3, 4]), text_segment([7, 6]))
    rest = rest_of(context, held)
    assert (rest.num_kept, rest.tokens.token_ids.tolist()) == (4, [7, 6])
    rest = rest_of(context, ())
    assert (rest.num_kept, rest.tokens.token_ids.tolist()) == (0, [1, 2, 3, 4, 7, 6])
    one, other = frame_segment(50, 0, 2), frame_segment(50, 1, 2)
    assert rest_of((one, other), (one, one)).num_kept == 2, "a placeholder's id says nothing"
