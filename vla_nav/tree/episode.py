"""The tokens of an episode, from which every layout makes its paths.

    root  instructions         steps 0, 1, 2 ...   each: full, pooled, executed, labels
                                   \\
                                    branch at 1: steps 1', 2' ...      (sampled from state 1)

Frame indices of all segments point into one frame table, counted from 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from vla_nav.tree.types import Segment


@dataclass(frozen=True, slots=True, eq=False)
class Label:
    """One action that is taught at a state: an expert's, a relabel, or one of k sampled ones.

    coefficient: plain weight of its path. advantage: of policy-gradient training, else None.
    """

    tokens: Segment
    coefficient: float = 1.0
    advantage: float | None = None

    def __post_init__(self) -> None:
        if not self.tokens.is_supervised:
            raise ValueError("a label's segment must be supervised")


@dataclass(frozen=True, slots=True, eq=False)
class StepTokens:
    """The tokens of one step: the frame as current observation (`full`) and as history (`pooled`),
    the executed action, and what is taught there: any number of labels, each a path of its own."""

    full: Segment
    pooled: Segment
    executed: Segment
    labels: tuple[Label, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Branch:
    """A sampled continuation that replaces its parent from step `step` on.

    Its first step is step number `step` (the same state as the parent's, or its own frame);
    `branches` of its own count steps in the same way, from the episode's beginning. Summaries of
    the parent up to `step` hold here too, later ones are the branch's own.
    """

    step: int
    steps: tuple[StepTokens, ...]
    branches: tuple[Branch, ...] = ()
    summaries: Mapping[int, Segment] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeTokens:
    """The tokens of one episode: the root (begin, robot, cameras), instructions, steps, branches.

    Every instruction is taught every label. summaries: step s -> the tokens that may stand for
    steps 0 .. s-1 (used by history `summary` alone).
    """

    root: Segment
    instructions: tuple[Segment, ...]
    steps: tuple[StepTokens, ...]
    branches: tuple[Branch, ...] = ()
    summaries: Mapping[int, Segment] = field(default_factory=dict)
