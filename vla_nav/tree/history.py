"""From an episode's tokens to its paths: every context of the layout, then what is taught there.

Full_t: the current frame at full token count; pool_t: the same frame as history; exec_t: what was
done at step t; label_t: what is taught there (any number of labels, each a path of its own).

    history full,   actions hidden     root - full_0 - full_1 - full_2
                                                |        |        |
                                             label_0  label_1  label_2

    history pooled, actions hidden     root ------- pool_0 ------- pool_1
                                        |             |              |
                                       full_0        full_1         full_2
                                       label_0       label_1        label_2

    history full,   actions visible    root - full_0 - exec_0 - full_1 - exec_1 - full_2
                                                |                 |                 |
                                             label_0           label_1           label_2
                                       (label_t merges with exec_t as far as they are equal)

    history pooled, actions visible    root - pool_0 - exec_0 - pool_1 - exec_1
                                        |               |                 |
                                      full_0          full_1            full_2
                                      label_0         label_1           label_2

    history window, 2                  root - full_0 - full_1 - label_1
    (uniform and summary likewise:      |       |
     a rewritten context shares         |    label_0
     what comes before the rewriting)   |---- full_1 - full_2 - label_2

    instruction last, two of them      root - full_0 - full_1 ...
                                                | \\
                                          instr_a  instr_b
                                          label_0  label_0

    branch at 1 (with its own label)   root - full_0 - full_1 - full_2
                                                          | \\ - full_2' ...
                                                    label_1  label_1'

`supervise: own` teaches each path its own step's label (every step once). `supervise: all` also
teaches it the executed actions in its context where those were what a label taught (an executed
action that no expert taught stays context), which gives the article's path counts g_i. With
`instruction: last` such an action is predicted without the instruction, which stands behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from vla_nav.errors import unknown_name
from vla_nav.tree.contexts import context_of, summary_step
from vla_nav.tree.episode import Branch, EpisodeTokens, StepTokens
from vla_nav.tree.layout import SUPERVISION, Layout
from vla_nav.tree.types import Path, Segment, Trunk


def paths_of(tokens: EpisodeTokens, layout: Layout, *, supervise: str = "own") -> tuple[Path, ...]:
    """The paths of an episode: `context_of` each step and one of its labels, for every label.

    Order: instruction by instruction; the episode's own steps, then each branch followed by its
    branches; label by label. The last of a path's `segments` is its label. Steps without a label
    add to the context only. Raises `UserError` for an unknown supervision and `ValueError` for a
    branch that does not begin inside its parent.
    """
    if supervise not in SUPERVISION:
        raise unknown_name("tree.supervise", supervise, SUPERVISION)
    lines = list(_lines(tokens))
    if layout.actions == "visible":
        known: dict[int, StepTokens] = {}
        lines = [line._replace(steps=_as_taught(line.steps, supervise, known)) for line in lines]
    paths: list[Path] = []
    for instruction in tokens.instructions:
        for line in lines:
            paths.extend(_line_paths(tokens.root, instruction, line, layout))
    return tuple(paths)


class _Line(NamedTuple):
    """One way through the episode: all its steps, of which those from `first` on are its own."""

    first: int
    steps: Sequence[StepTokens]
    summaries: Mapping[int, Segment]


def _lines(tokens: EpisodeTokens) -> Iterator[_Line]:
    trunk = _Line(0, tokens.steps, tokens.summaries)
    yield trunk
    for branch in tokens.branches:
        yield from _branch_lines(trunk, branch)


def _branch_lines(parent: _Line, branch: Branch) -> Iterator[_Line]:
    """The line of `branch` and those of its own branches."""
    if not parent.first <= branch.step <= len(parent.steps):
        raise ValueError(
            f"a branch at step {branch.step} of a parent that has steps {parent.first} to "
            f"{len(parent.steps) - 1}"
        )
    held = {s: summary for s, summary in parent.summaries.items() if s <= branch.step}
    line = _Line(
        branch.step,
        (*parent.steps[: branch.step], *branch.steps),
        {**held, **branch.summaries},
    )
    yield line
    for inner in branch.branches:
        yield from _branch_lines(line, inner)


def _line_paths(root: Segment, instruction: Segment, line: _Line, layout: Layout) -> Iterator[Path]:
    after = (instruction,) if layout.instruction == "last" and len(instruction) else ()
    first, steps, summaries = line
    if layout.history in ("window", "uniform"):
        for t in range(first, len(steps)):
            if steps[t].labels:
                context = context_of(root, instruction, steps, layout, t)
                yield from _labelled(None, context, steps[t])
        return
    beginning = Trunk(None, root)
    if layout.instruction == "first":
        beginning = Trunk(beginning, instruction)
    start: int | None = None
    trunk, known = beginning, 0  # `trunk` holds the summary of `start` and the steps up to `known`
    for t in range(first, len(steps)):
        newest = summary_step(layout, t, summaries)
        if newest is not None and newest != start:
            trunk, start, known = Trunk(beginning, summaries[newest]), newest, newest
        for step in steps[known:t]:
            trunk = _as_history(trunk, step, layout)
        known = t
        if layout.history == "pooled":
            yield from _labelled(trunk, (steps[t].full, *after), steps[t])
        else:
            current = Trunk(trunk, steps[t].full)
            yield from _labelled(current, after, steps[t])


def _as_history(trunk: Trunk, step: StepTokens, layout: Layout) -> Trunk:
    trunk = Trunk(trunk, step.pooled if layout.history == "pooled" else step.full)
    return Trunk(trunk, step.executed) if layout.actions == "visible" else trunk


def _labelled(
    trunk: Trunk | None, context: tuple[Segment, ...], step: StepTokens
) -> Iterator[Path]:
    for label in step.labels:
        yield Path((*context, label.tokens), label.coefficient, trunk, label.advantage)


def _as_taught(
    steps: Sequence[StepTokens], supervise: str, known: dict[int, StepTokens]
) -> tuple[StepTokens, ...]:
    """The steps with executed actions as targets under `all` where a label taught them, and as
    context else; equal steps are one."""
    return tuple(known.setdefault(id(step), _taught(step, supervise)) for step in steps)


def _taught(step: StepTokens, supervise: str) -> StepTokens:
    executed = step.executed
    is_taught = supervise == "all" and any(
        np.array_equal(executed.keys, label.tokens.keys) for label in step.labels
    )
    if executed.is_supervised == is_taught:
        return step
    return replace(step, executed=replace(executed, is_supervised=is_taught))
