"""The trees that layouts give: sizes, sharing, branches, and every step taught exactly once."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from tests.tree.random_paths import token_list
from vla_nav.tree import (
    Branch,
    EpisodeTokens,
    Label,
    Layout,
    PrefixTree,
    StepTokens,
    every_layout,
    flatten,
    frame_segment,
    paths_of,
    text_segment,
)
from vla_nav.tree.sizes import layout_counts

NUM_ROOT, NUM_INSTRUCTION, NUM_FULL, NUM_POOLED, NUM_EXECUTED, NUM_LABEL = 3, 5, 4, 2, 2, 3
STOP = 9


def steps_of(num_steps: int, *, first: int = 0, line: int = 0) -> tuple[StepTokens, ...]:
    """Distinct frames; a label of 3 tokens, the last step's label is the one token STOP.

    line: other lines have other executed actions and labels.
    """
    steps = []
    for t in range(first, first + num_steps):
        is_last = t == first + num_steps - 1
        label = [STOP] if is_last else [100 + line, 10, 200 + t]
        steps.append(
            StepTokens(
                frame_segment(1, t, NUM_FULL),
                frame_segment(1, t, NUM_POOLED, first=NUM_FULL),
                text_segment([300 + line, 400 + t]),
                (Label(text_segment(label, is_supervised=True)),),
            )
        )
    return tuple(steps)


def token_episode(num_steps: int, *, num_instructions: int = 1, **rest) -> EpisodeTokens:
    instructions = tuple(
        text_segment([20 + i, *range(30, 29 + NUM_INSTRUCTION)]) for i in range(num_instructions)
    )
    return EpisodeTokens(text_segment(range(NUM_ROOT)), instructions, steps_of(num_steps), **rest)


def summaries_every(num: int, num_steps: int):
    return {s: text_segment([500 + s, 499]) for s in range(num, num_steps, num)}


EVERY = every_layout(window=32, uniform=32, summary_every=1, summary_keep=32)


@pytest.mark.parametrize("layout", EVERY, ids=lambda layout: layout.name)
@pytest.mark.parametrize("num_steps", [4, 31, 32, 33, 64, 87])
def test_every_step_including_stop_is_taught_exactly_once_around_a_window(layout, num_steps):
    episode = token_episode(num_steps, summaries=summaries_every(16, num_steps))
    tree = PrefixTree.from_paths(paths_of(episode, layout), num_frames=num_steps)
    taught: Counter[tuple[int, tuple[int, ...]]] = Counter()
    for path in flatten(tree):
        ids, frame, _, is_supervised, *_ = path.tokens()
        # The current frame is the last one that the path shows.
        taught[int(frame[frame >= 0][-1]), tuple(ids[is_supervised].tolist())] += 1
    expected = {
        (t, tuple(step.labels[0].tokens.token_ids.tolist())): 1
        for t, step in enumerate(episode.steps)
    }
    assert taught == expected
    assert (num_steps - 1, (STOP,)) in taught
    assert tree.loss_weights.sum() == 3 * (num_steps - 1) + 1


@pytest.mark.parametrize(
    "layout",
    every_layout(window=5, uniform=4, summary_every=2, summary_keep=3),
    ids=lambda layout: layout.name,
)
@pytest.mark.parametrize("num_steps", [1, 3, 4, 5, 6, 19])
def test_sizes_foretell_the_tree_exactly(layout, num_steps):
    summaries = summaries_every(3, num_steps)
    episode = token_episode(num_steps, summaries=summaries)
    tree = PrefixTree.from_paths(paths_of(episode, layout))
    counts = layout_counts(layout, num_steps, summaries)
    full, pooled, executed, summary_tokens = (int(column[-1]) for column in counts)
    expected = NUM_ROOT + full * NUM_FULL + pooled * NUM_POOLED + executed * NUM_EXECUTED
    expected += summary_tokens + NUM_LABEL * (num_steps - 1) + 1
    expected += NUM_INSTRUCTION * (num_steps if layout.instruction == "last" else 1)
    assert tree.num_tokens == expected
    # Of the first S steps alone, for every S, as one table says.
    for shorter in range(1, num_steps):
        alone = layout_counts(layout, shorter, summaries)
        assert [int(c[-1]) for c in alone] == [int(c[shorter]) for c in counts]


def test_a_moving_window_shares_no_frame_and_a_growing_one_all():
    episode = token_episode(9)
    tree = PrefixTree.from_paths(paths_of(episode, Layout("window", window=4)))
    shown = Counter(tree.frame_index[tree.patch_index == 0].tolist())
    shown.pop(-1, None)
    # Frames 0-3 once in the window that grows; then windows 1-4, 2-5, ..., 5-8 by themselves.
    expected = Counter(range(4))
    for first in range(1, 6):
        expected.update(range(first, first + 4))
    assert shown == expected


@pytest.mark.parametrize("num_instructions", [1, 3])
def test_instructions_behind_the_frames_share_all_of_them(num_instructions):
    num_steps = 7
    episode = token_episode(num_steps, num_instructions=num_instructions)
    num_labels = NUM_LABEL * (num_steps - 1) + 1
    last = PrefixTree.from_paths(paths_of(episode, Layout(instruction="last")))
    assert last.num_tokens == NUM_ROOT + num_steps * NUM_FULL + num_instructions * (
        num_steps * NUM_INSTRUCTION + num_labels
    )
    first = PrefixTree.from_paths(paths_of(episode, Layout()))
    assert first.num_tokens == NUM_ROOT + num_instructions * (
        NUM_INSTRUCTION + num_steps * NUM_FULL + num_labels
    )
    for tree in (first, last):
        assert tree.num_paths == num_instructions * num_steps
        assert tree.loss_weights.sum() == num_instructions * num_labels


@pytest.mark.parametrize("actions", ["hidden", "visible"])
def test_rollouts_from_one_state_share_what_led_to_it(actions):
    own = steps_of(6)
    rollouts = tuple(
        Branch(4, steps_of(3, first=4, line=line)) for line in (1, 2)
    )  # their frames 4 to 6 are equal, their actions are not
    episode = replace(token_episode(6), branches=rollouts)
    layout = Layout("full", actions)
    whole = PrefixTree.from_paths(paths_of(episode, layout))
    alone = PrefixTree.from_paths(paths_of(replace(episode, branches=()), layout))
    # Before: 5 frames and 4 actions are everyone's. A rollout adds the frames behind its own
    # actions, or (hidden) only frame 6, which the two share, as they share STOP after it.
    if actions == "visible":
        added = 2 * (2 * NUM_FULL + 2 * NUM_EXECUTED + 2 * NUM_LABEL + 1)
    else:
        added = NUM_FULL + 2 * 2 * NUM_LABEL + 1
    assert whole.num_tokens == alone.num_tokens + added
    assert whole.num_paths == len(own) + 2 * 3


def test_sampled_actions_of_one_state_keep_their_own_advantages():
    sampled = [
        Label(text_segment([7, token], is_supervised=True), 1.0, advantage)
        for token, advantage in ((1, 0.5), (2, -1.5), (1, 0.25))
    ]
    step = replace(steps_of(1)[0], labels=tuple(sampled))
    episode = replace(token_episode(1), steps=(step,))
    for layout in every_layout():
        tree = PrefixTree.from_paths(paths_of(episode, layout))
        assert tree.num_paths == 3
        assert tree.policy is not None
        found = dict(
            zip(
                tree.token_ids[tree.target_index].tolist(),
                zip(tree.policy.positive, tree.policy.negative, tree.loss_weights, strict=True),
                strict=True,
            )
        )
        assert found == {7: (0.75, -1.5, 3.0), 1: (0.75, 0.0, 2.0), 2: (0.0, -1.5, 1.0)}


def test_supervising_all_teaches_the_taught_actions_in_sight_and_no_others():
    steps = tuple(
        replace(step, executed=step.labels[0].tokens) if t != 1 else step
        for t, step in enumerate(steps_of(6))
    )
    episode = replace(token_episode(6), steps=steps)
    for layout, seen in (
        (Layout("window", "visible", window=3), lambda t: range(max(0, t - 2), t)),
        (Layout("full", "visible"), range),
        (Layout("pooled", "visible", "last"), range),
        (Layout("full", "hidden"), lambda t: range(0)),
    ):
        paths = paths_of(episode, layout, supervise="all")
        for t, path in enumerate(paths):
            expected = [
                token for i in seen(t) if i != 1 for token in steps[i].executed.token_ids.tolist()
            ]
            expected += steps[t].labels[0].tokens.token_ids.tolist()
            ids, _, _, is_supervised, *_ = path.tokens()
            assert ids[is_supervised].tolist() == expected
        own = paths_of(episode, layout)
        assert [token_list(p) for p in own] == [token_list(p) for p in paths]
        assert all(path.tokens().is_supervised.sum() == len(path.segments[-1]) for path in own)


def test_a_branch_sees_the_summaries_of_its_own_line():
    layout = Layout("summary", summary_keep=1)
    branch = Branch(2, steps_of(3, first=2, line=1), summaries={3: text_segment([77])})
    episode = token_episode(
        5, branches=(branch,), summaries={2: text_segment([55]), 3: text_segment([66])}
    )
    paths = paths_of(episode, layout)
    has = [
        [token for token in (55, 66, 77) if token in path.tokens().token_ids.tolist()]
        for path in paths
    ]
    assert has == [[], [], [55], [66], [66], [55], [77], [77]]


def test_equal_frames_only_make_a_tree_smaller():
    rng = np.random.default_rng(3)
    for layout in every_layout(window=3, uniform=3, summary_keep=2):
        for _ in range(5):
            rows = rng.integers(0, 3, 12)
            steps = tuple(
                replace(
                    step,
                    full=frame_segment(1, int(row), NUM_FULL),
                    pooled=frame_segment(1, int(row), NUM_POOLED, first=NUM_FULL),
                )
                for step, row in zip(steps_of(12), rows, strict=True)
            )
            summaries = summaries_every(3, 12)
            distinct = token_episode(12, summaries=summaries)
            equal = replace(distinct, steps=steps)
            sizes = [
                PrefixTree.from_paths(paths_of(episode, layout)).num_tokens
                for episode in (equal, distinct)
            ]
            assert sizes[0] <= sizes[1]
