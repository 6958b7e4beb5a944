"""One episode in progress: what the policy sees at each step, and what the cache already holds.

The context of step t is `context_of` (vla_nav.tree.contexts), as in training. The row of the cache
holds an older context and the action tokens decoded behind it. One rule serves every layout: keep
the longest common prefix, compute the rest. A window of 2, actions visible, at t = 2:

    held      root instr full_0 exec_0 full_1 act_1       act_1: what was decoded, without its last
    context   root instr full_1 exec_1 full_2             token, which nobody has read yet
              '- kept -' '---- appended ----'

With full history the rest is full_2 and what act_1 lacks of exec_1; pooled, it is pool_1, exec_1
and full_2. Frame features live as long as a later context may embed their frame anew.

Axes: F frames, P tokens of a frame, D_v feature size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vla_nav.episodes.types import Pose
from vla_nav.models.incremental import NewTokens
from vla_nav.tree import Layout, Segment, StepTokens, context_of
from vla_nav.tree.contexts import seen_steps, summary_step


@dataclass
class Slot:
    """An episode in progress.

    steps: of every decision so far; stream i of step t is frame t * num_streams + i. held: what
    the cache's row holds. features: step -> (num_streams, P, D_v), of the frames still needed.
    """

    row: int
    root: Segment
    instruction: Segment
    rng: np.random.Generator
    start: Pose | None = None
    steps: list[StepTokens] = field(default_factory=list)
    poses: list[Pose] = field(default_factory=list)
    summaries: dict[int, Segment] = field(default_factory=dict)
    is_summarised: bool = False  # whether anything was said about summaries, if only "none yet"
    held: tuple[Segment, ...] = ()
    features: dict[int, Tensor] = field(default_factory=dict)

    def context(self, layout: Layout, current: StepTokens) -> tuple[Segment, ...]:
        """What the policy sees at the next step, whose frame is `current`."""
        steps = (*self.steps, current)
        return context_of(
            self.root, self.instruction, steps, layout, len(self.steps), self.summaries
        )

    def add(self, step: StepTokens, pose: Pose, features: Tensor) -> None:
        """One more decision."""
        self.start = self.start or pose
        self.features[len(self.steps)] = features
        self.steps.append(step)
        self.poses.append(pose)

    def note_executed(self, executed: Segment) -> None:
        """What was executed at the last step, as context of later ones."""
        self.steps[-1] = replace(self.steps[-1], executed=executed)

    def drop_features(self, layout: Layout) -> None:
        """Forget the features that no context after the last step embeds anew."""
        first = first_needed(layout, len(self.steps) - 1, self.summaries)
        self.features = {t: seen for t, seen in self.features.items() if t >= first}


class Rest(NamedTuple):
    """What a context adds behind the first `num_kept` held tokens; at least one token."""

    num_kept: int
    tokens: NewTokens


def rest_of(context: Sequence[Segment], held: Sequence[Segment]) -> Rest:
    """The tokens of `context` behind its longest common prefix with `held`, token by token.

    held   a b | c d e | x         context   a b | c d f | g    ->   4 kept, rest  f g
    """
    num_equal = 0  # whole segments: equal ones are mostly the same object
    for segment, known in zip(context, held, strict=False):
        if segment is not known:
            break
        num_equal += 1
    new = context[num_equal:]
    keys, held_keys = _keys(new), _keys(held[num_equal:])
    common = min(len(keys), len(held_keys))
    differs = keys[:common] != held_keys[:common]
    num_skipped = int(differs.argmax()) if differs.any() else common
    assert num_skipped < len(keys), "the current frame is always new"
    arrays = (
        np.concatenate([getattr(segment, name) for segment in new])[num_skipped:]
        for name in NewTokens._fields
    )
    num_kept = sum(len(segment) for segment in context[:num_equal]) + num_skipped
    return Rest(num_kept, NewTokens(*arrays))


def shown(slots: Sequence[Slot], rests: Sequence[Rest]) -> tuple[list[NewTokens], Tensor]:
    """What each slot appends, its frame indices now rows of one table, and that table (F, P, D_v).

    one stream    slot 0 needs frames 7         slot 1 needs frames 2 3
    table rows                        0                             1 2
    """
    tables: list[Tensor] = []
    new = []
    for slot, (_, tokens) in zip(slots, rests, strict=True):
        num_streams = len(slot.features[len(slot.steps) - 1])
        frame = tokens.frame_index
        steps = np.unique(frame[frame >= 0] // num_streams)
        place = len(tables) + np.searchsorted(steps, frame // num_streams)
        row = np.where(frame < 0, -1, place * num_streams + frame % num_streams)
        tables.extend(slot.features[step] for step in steps.tolist())
        new.append(tokens._replace(frame_index=row))
    return new, torch.cat(tables)


def first_needed(layout: Layout, t: int, summaries: Mapping[int, Segment]) -> int:
    """The earliest step whose frame a context after step `t` may embed anew.

    What stays a prefix is never embedded again, so this is not the earliest step in sight:

        full      t + 1      no older frame              pooled   t      as history, once
        window 3  t - 1      the next window's first     summary  where the newest summary in use
        uniform   the second frame at t + 1 (frame 0              ends, or 0: a later one may begin
                  stays a prefix); it never moves back            anywhere behind it
    """
    if layout.history == "full":
        return t + 1
    if layout.history == "pooled":
        return t
    if layout.history == "summary":
        return summary_step(layout, t, summaries) or 0
    if layout.history == "window":
        return seen_steps(layout, t + 1)[0]
    return seen_steps(layout, max(t + 1, layout.uniform))[1]


def _keys(segments: Sequence[Segment]) -> np.ndarray:
    return np.concatenate([np.empty(0, np.int64), *(segment.keys for segment in segments)])
