"""What each step sees under every layout: drawn by hand, from the words, and path by path."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tree.random_paths import token_list
from vla_nav.errors import UserError
from vla_nav.tree import (
    Branch,
    EpisodeTokens,
    Label,
    Layout,
    Path,
    StepTokens,
    context_of,
    every_layout,
    paths_of,
    seen_steps,
    text_segment,
)
from vla_nav.tree.types import trunks_of

ROOT, INSTRUCTION, FULL, POOLED, EXECUTED, SUMMARY, LABEL = range(0, 700, 100)
LETTERS = {FULL: "f", POOLED: "p", EXECUTED: "x", SUMMARY: "s", INSTRUCTION: "I", ROOT: "R"}


def step_tokens(t: int, labels: tuple[Label, ...] = (), *, line: int = 0) -> StepTokens:
    """One token for everything, which names what it is and the step (and line: 1000 each)."""
    kinds = (FULL, POOLED, EXECUTED)
    return StepTokens(*(text_segment([1000 * line + kind + t]) for kind in kinds), labels)


def drawn(layout: Layout, t: int, summary_steps: tuple[int, ...] = ()) -> str:
    """`context_of` as a string such as `R I f0 x0 f1`."""
    found = context_of(
        text_segment([ROOT]),
        text_segment([INSTRUCTION]),
        [step_tokens(i) for i in range(t + 1)],
        layout,
        t,
        {s: text_segment([SUMMARY + s]) for s in summary_steps},
    )
    words = []
    for segment in found:
        kind, number = divmod(int(segment.token_ids[0]), 100)
        letter = LETTERS[100 * kind]
        words.append(letter if letter in "RI" else f"{letter}{number}")
    return " ".join(words)


@pytest.mark.parametrize(
    ("layout", "t", "expected"),
    [
        (Layout("full", "visible"), 3, "R I f0 x0 f1 x1 f2 x2 f3"),
        (Layout("full", "hidden"), 3, "R I f0 f1 f2 f3"),
        (Layout("full", "visible", "last"), 1, "R f0 x0 f1 I"),
        (Layout("pooled", "visible"), 3, "R I p0 x0 p1 x1 p2 x2 f3"),
        (Layout("pooled", "hidden"), 0, "R I f0"),
        (Layout("pooled", "hidden", "last"), 2, "R p0 p1 f2 I"),
        (Layout("window", "visible", window=2), 3, "R I f2 x2 f3"),
        (Layout("window", "visible", window=2), 1, "R I f0 x0 f1"),
        (Layout("window", "hidden", window=1), 3, "R I f3"),
        (Layout("window", "hidden", "last", window=3), 4, "R f2 f3 f4 I"),
        (Layout("uniform", "visible", uniform=3), 3, "R I f0 x0 f2 x2 f3"),
        (Layout("uniform", "visible", uniform=3), 2, "R I f0 x0 f1 x1 f2"),
        (Layout("uniform", "hidden", uniform=2), 7, "R I f0 f7"),
        (Layout("uniform", "hidden", "last", uniform=4), 9, "R f0 f3 f6 f9 I"),
    ],
    ids=lambda value: value.name if isinstance(value, Layout) else None,
)
def test_contexts_are_those_drawn(layout, t, expected):
    assert drawn(layout, t) == expected


@pytest.mark.parametrize(
    ("keep", "every", "t", "expected"),
    [
        (2, 1, 2, "R I f0 x0 f1 x1 f2"),
        (2, 1, 3, "R I s2 f2 x2 f3"),
        (2, 1, 4, "R I s2 f2 x2 f3 x3 f4"),
        (2, 1, 5, "R I s4 f4 x4 f5"),
        (1, 1, 4, "R I s4 f4"),
        (2, 4, 4, "R I f0 x0 f1 x1 f2 x2 f3 x3 f4"),
        (2, 4, 6, "R I s4 f4 x4 f5 x5 f6"),
    ],
)
def test_a_summary_stands_for_what_came_before_it(keep, every, t, expected):
    layout = Layout("summary", "visible", summary_keep=keep, summary_every=every)
    assert drawn(layout, t, summary_steps=(2, 4)) == expected
    assert drawn(Layout("full", "visible"), t, summary_steps=(2, 4)).count("s") == 0


@given(t=st.integers(0, 300), num=st.integers(2, 40))
@settings(max_examples=100, deadline=None)
def test_uniform_frames_are_few_even_and_hold_both_ends(t, num):
    seen = list(seen_steps(Layout("uniform", uniform=num), t))
    assert seen[0] == 0
    assert seen[-1] == t
    assert len(seen) == min(num, t + 1)
    gaps = np.diff(seen)
    if len(gaps):
        assert gaps.min() >= 1
        assert gaps.max() - gaps.min() <= 1
    exact = np.linspace(0, t, len(seen))
    assert np.abs(np.array(seen) - exact).max(initial=0) <= 0.5 + 1e-9


labels_of = st.lists(
    st.tuples(st.integers(0, 3), st.floats(-2, 2), st.floats(-2, 2)), max_size=2
).map(
    lambda found: tuple(
        Label(text_segment([LABEL + i, LABEL], is_supervised=True), c, a) for i, c, a in found
    )
)


@st.composite
def episodes(draw) -> EpisodeTokens:
    """Episodes with any number of labels a step, instructions, branches of branches, summaries."""

    def steps_from(first: int, line: int) -> tuple[StepTokens, ...]:
        return tuple(
            step_tokens(first + i, labels, line=line)
            for i, labels in enumerate(draw(st.lists(labels_of, max_size=6)))
        )

    def branches(first: int, last: int, depth: int) -> tuple[Branch, ...]:
        found = []
        for line in range(draw(st.integers(0, 2 if depth < 2 else 0))):
            at = draw(st.integers(first, last))
            steps = steps_from(at, line + 3 * depth + 1)
            inner = branches(at, at + len(steps), depth + 1)
            found.append(Branch(at, steps, inner, summaries()))
        return tuple(found)

    def summaries():
        steps = draw(st.sets(st.integers(1, 9), max_size=3))
        tag = draw(st.integers(0, 1))
        return {s: text_segment([SUMMARY + s] * tag) for s in steps}

    steps = steps_from(0, 0)
    instructions = tuple(
        text_segment([INSTRUCTION + i] * (i != 1)) for i in range(draw(st.integers(1, 3)))
    )
    return EpisodeTokens(
        text_segment([ROOT]), instructions, steps, branches(0, len(steps), 0), summaries()
    )


def lines_of(episode: EpisodeTokens):
    """(own steps, all steps, summaries) of the episode and of each branch, depth first."""

    def walk(steps, summaries, branches):
        for branch in branches:
            at = branch.step
            whole = [*steps[:at], *branch.steps]
            merged = {s: v for s, v in summaries.items() if s <= at} | dict(branch.summaries)
            yield range(at, len(whole)), whole, merged
            yield from walk(whole, merged, branch.branches)

    yield range(len(episode.steps)), episode.steps, episode.summaries
    yield from walk(episode.steps, episode.summaries, episode.branches)


@given(
    episode=episodes(),
    layout=st.sampled_from(every_layout(window=3, uniform=3, summary_keep=2)),
)
@settings(max_examples=150, deadline=None)
def test_a_path_is_the_context_of_its_step_and_one_label(episode, layout):
    expected = [
        (
            token_list(
                Path(
                    (
                        *context_of(episode.root, instruction, steps, layout, t, summaries),
                        label.tokens,
                    )
                )
            ),
            label,
        )
        for instruction in episode.instructions
        for own, steps, summaries in lines_of(episode)
        for t in own
        for label in steps[t].labels
    ]
    paths = paths_of(episode, layout)
    assert len(paths) == len(expected)
    for path, (tokens, label) in zip(paths, expected, strict=True):
        assert token_list(path) == tokens
        assert path.segments[-1] is label.tokens
        assert (path.coefficient, path.advantage) == (label.coefficient, label.advantage)
        flags = path.tokens().is_supervised
        assert flags.sum() == len(label.tokens)
        assert flags[-len(label.tokens) :].all()


@pytest.mark.parametrize("layout", every_layout(window=3, uniform=4), ids=lambda x: x.name)
def test_paths_take_space_linear_in_the_steps(layout):
    label = Label(text_segment([LABEL], is_supervised=True))
    num_steps = 200
    steps = tuple(step_tokens(t, (label,)) for t in range(num_steps))
    paths = paths_of(
        EpisodeTokens(text_segment([ROOT]), (text_segment([INSTRUCTION]),), steps), layout
    )
    links = {id(link) for path in paths for link in trunks_of(path)}
    own = sum(len(path.segments) for path in paths)
    widest = {"window": 3, "uniform": 4}.get(layout.history, 1)
    assert len(links) + own <= num_steps * (2 * widest + 4)


def test_layouts_refuse_values_that_they_cannot_mean():
    for values, message in (
        ({"history": "windowed"}, r"unknown tree.history 'windowed' \(did you mean 'window'\?\)"),
        ({"actions": "shown"}, "unknown tree.actions 'shown'"),
        ({"instruction": "lst"}, r"unknown tree.instruction 'lst' \(did you mean 'last'\?\)"),
        ({"window": 0}, "tree.window=0: allowed: whole numbers from 1 on"),
        ({"uniform": 1}, "tree.uniform=1: allowed: whole numbers from 2 on"),
        ({"summary_every": 0}, "tree.summary_every=0"),
        ({"summary_keep": 0}, "tree.summary_keep=0"),
        ({"window": 2.5}, "tree.window=2.5"),
        ({"window": True}, "tree.window=True"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            Layout(**values)
        assert "\n" not in str(caught.value)


def test_a_branch_begins_inside_its_parent():
    label = Label(text_segment([LABEL], is_supervised=True))
    steps = tuple(step_tokens(t, (label,)) for t in range(3))
    for branch in (
        Branch(4, steps[:1]),
        Branch(-1, steps[:1]),
        Branch(2, steps[:1], (Branch(1, steps[:1]),)),
    ):
        episode = EpisodeTokens(text_segment([ROOT]), (text_segment([]),), steps, (branch,))
        with pytest.raises(ValueError, match="a branch at step"):
            paths_of(episode, Layout())
