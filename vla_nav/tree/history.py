"""From an episode's tokens to its paths: what the policy sees and is taught at every step.

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

`supervise: own` teaches each path its own step's label (every step once). `supervise: all` also
teaches it the executed actions in its context where those were what a label taught (an executed
action that no expert taught stays context), which gives the article's path counts g_i.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from vla_nav.errors import unknown_name
from vla_nav.tree.types import Path, Segment, Trunk

History = Literal["full", "pooled"]
Actions = Literal["hidden", "visible"]
Supervise = Literal["own", "all"]


@dataclass(frozen=True, slots=True, eq=False)
class StepTokens:
    """The tokens of one step: the frame as current observation (`full`) and as history (`pooled`),
    the executed action, and one supervised segment per expert label."""

    full: Segment
    pooled: Segment
    executed: Segment
    labels: tuple[Segment, ...]


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeTokens:
    """The tokens of one episode: the root (instruction, robot, cameras), then its steps.

    Frame indices count the episode's own frame table from 0.
    """

    root: Segment
    steps: tuple[StepTokens, ...]


def paths_of(
    tokens: EpisodeTokens,
    *,
    history: History,
    actions: Actions,
    supervise: Supervise = "own",
) -> tuple[Path, ...]:
    """The paths of an episode, one per step and label, in step order.

    Steps without a label add to the context only. Raises `UserError` for an unknown layout and
    `ValueError` for a label that is not supervised.
    """
    for kind, value, allowed in (
        ("history", history, get_args(History)),
        ("actions", actions, get_args(Actions)),
        ("supervise", supervise, get_args(Supervise)),
    ):
        if value not in allowed:
            raise unknown_name(f"tree.{kind}", value, allowed)
    paths: list[Path] = []
    trunk = Trunk(None, tokens.root)
    for step in tokens.steps:
        if history == "full":
            trunk = Trunk(trunk, step.full)
            leaf: tuple[Segment, ...] = ()
        else:
            leaf = (step.full,)
        for label in step.labels:
            if not label.is_supervised:
                raise ValueError("a label segment must be supervised")
            paths.append(Path((*leaf, label), trunk=trunk))
        if history == "pooled":
            trunk = Trunk(trunk, step.pooled)
        if actions == "visible":
            trunk = Trunk(trunk, _executed(step, supervise))
    return tuple(paths)


def _executed(step: StepTokens, supervise: Supervise) -> Segment:
    """The executed action as context; a target too under `all` where a label taught it."""
    executed = step.executed
    is_taught = supervise == "all" and any(
        np.array_equal(executed.keys, label.keys) for label in step.labels
    )
    if executed.is_supervised == is_taught:
        return executed
    return replace(executed, is_supervised=is_taught)
