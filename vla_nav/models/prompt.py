"""The prompt: an episode's instruction, robot, frames and actions as token segments.

    root     <begin> [bos] [facts]
    instr    the instruction's text [<act> where the layout puts it last]
    full_t   [pose_t: x y yaw] <camera> * num_full (per camera, per depth image) ... [<act>]
    pooled_t [pose_t: x y yaw] <camera> * num_pooled ...
    sum_s    the text of a given summary of steps 0 .. s-1
    exec_t   the action tokens of what was done        label_t  those of what is taught

Which of them a step sees, and in which order: `vla_nav.tree.contexts`. One builder serves training
(`episode`) and the policy (`root`, `instruction`, `observation`, `action`, `summary`), so the two
cannot drift apart. The model predicts an action from the last token before it: the last vision
token of the frame (of the instruction where that is last), or `<act>` where `separator` is set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

import numpy as np

from vla_nav.actions.types import Action, ActionSpace
from vla_nav.episodes.types import Embodiment, Episode, Pose, Step
from vla_nav.errors import UserError, unknown_name
from vla_nav.models.prompt_config import PoseTokens, PromptConfig, facts_of, streams_of
from vla_nav.models.summaries import summaries_of
from vla_nav.models.tokenizer import Tokenizer
from vla_nav.models.vocabulary import Vocabulary
from vla_nav.tree import EpisodeTokens, Label, Layout, Path, Segment, StepTokens, paths_of
from vla_nav.tree.types import concatenate, frame_segment, text_segment

__all__ = ["Frames", "Layout", "PoseTokens", "PromptBuilder", "PromptConfig", "frame_array"]

_BEGIN, _ACT = "<begin>", "<act>"
_EMPTY = text_segment(())


class Frames(NamedTuple):
    """One step's frame as the current observation (`full`) and as history (`pooled`)."""

    full: Segment
    pooled: Segment


@dataclass
class _FrameTable:
    """Rows of (stream, frame key), in order of first use, and the segments made of them."""

    rows: dict[tuple[str, str], int] = field(default_factory=dict)
    seen: dict[tuple[tuple[int, ...], tuple[Pose, ...]], Frames] = field(default_factory=dict)


class PromptBuilder:
    """Builds the token segments of episodes and of live observations.

    num_full, num_pooled: tokens of one image from the encoder; num_pooled may be 0 where the
    layout never asks for pooled frames.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        action_space: ActionSpace,
        embodiment: Embodiment,
        config: PromptConfig,
        layout: Layout,
        *,
        num_full: int,
        num_pooled: int,
        num_text: int | None = None,
    ) -> None:
        self.tokenizer, self.action_space, self.embodiment = tokenizer, action_space, embodiment
        self.config, self.layout = config, layout
        self.num_full, self.num_pooled = num_full, num_pooled
        if layout.history == "pooled" and num_pooled == 0:
            raise UserError("tree.history=pooled needs vision.num_pooled >= 1, got 0")
        self.streams = streams_of(embodiment, config)
        for name in getattr(action_space, "cameras", ()):
            if name not in (cameras := [camera.name for camera in embodiment.cameras]):
                raise unknown_name("actions.cameras", name, cameras)
        num_pose = config.pose.num_tokens if config.pose is not None else 0
        specials = (_BEGIN, _ACT, *(f"<{stream}>" for stream in self.streams))
        num_text = tokenizer.num_tokens if num_text is None else num_text
        self.vocabulary = Vocabulary(action_space.num_tokens, specials, num_pose, num_text)
        self._facts = facts_of(embodiment, self.streams, config.facts)
        self._placeholders = [self.vocabulary.special(f"<{stream}>") for stream in self.streams]
        self._labels: dict[tuple[tuple[int, ...], bool], Segment] = {}

    def root(self) -> Segment:
        """The tokens that every episode begins with; never empty."""
        bos = () if self.tokenizer.bos_id is None else (self.tokenizer.bos_id,)
        ids = self.vocabulary.text((*bos, *self._encode(self._facts)))
        return text_segment((self.vocabulary.special(_BEGIN), *ids))

    def instruction(self, text: str) -> Segment:
        """The tokens of an instruction; may be empty."""
        ids = self.vocabulary.text(self._encode(text.strip()))
        if self.config.separator and self.layout.instruction == "last":
            ids = (*ids, self.vocabulary.special(_ACT))
        return text_segment(ids)

    def summary(self, text: str) -> Segment:
        """The tokens of a summary of earlier steps; may be empty."""
        return text_segment(self.vocabulary.text(self._encode(text.strip())))

    def observation(self, rows: Sequence[int], pose: Pose, start: Pose) -> Frames:
        """The tokens of one step's images; `rows` are their frame rows in order of `streams`."""
        assert len(rows) == len(self.streams), (rows, self.streams)
        parts: list[Segment] = []
        if self.config.pose is not None:
            indices = self.config.pose.indices(start, pose)
            parts.append(text_segment([self.vocabulary.pose(index) for index in indices]))
        full, pooled = list(parts), list(parts)
        for placeholder, row in zip(self._placeholders, rows, strict=True):
            full.append(frame_segment(placeholder, row, self.num_full))
            if self.num_pooled:
                pooled.append(frame_segment(placeholder, row, self.num_pooled, first=self.num_full))
        if self.config.separator and self.layout.instruction == "first":
            full.append(text_segment([self.vocabulary.special(_ACT)]))
        whole = concatenate(*full)
        if not self.num_pooled:
            return Frames(whole, _EMPTY)
        return Frames(whole, concatenate(*pooled))

    def action(self, action: Action, *, is_supervised: bool) -> Segment:
        """The tokens of an action; equal ones are the same object."""
        key = self.action_space.encode(action), is_supervised
        segment = self._labels.get(key)
        if segment is None:
            segment = self._labels[key] = text_segment(key[0], is_supervised=is_supervised)
        return segment

    def episode(self, episode: Episode) -> tuple[EpisodeTokens, tuple[str, ...]]:
        """All segments of an episode, and the frame keys in the order of its frame rows."""
        (tokens,), keys = self.episodes((episode,))
        return tokens, keys

    def episodes(
        self, group: Sequence[Episode]
    ) -> tuple[tuple[EpisodeTokens, ...], tuple[str, ...]]:
        """All segments of some episodes over one frame table, and its frame keys in row order.

        A frame that occurs twice in one stream is one row, so episodes that saw the same share it.
        Raises `UserError` for a missing camera and for missing or unreadable summaries.
        """
        table = _FrameTable()
        tokens = []
        for episode in group:
            steps = tuple(self._step(step, episode, table) for step in episode.steps)
            instructions = (self.instruction(episode.instruction),)
            summaries = {
                step: self.summary(text)
                for step, text in summaries_of(episode, self.layout).items()
            }
            tokens.append(EpisodeTokens(self.root(), instructions, steps, (), summaries))
        return tuple(tokens), tuple(key for _, key in table.rows)

    def paths(
        self, *group: Episode, supervise: str = "own"
    ) -> tuple[tuple[Path, ...], tuple[str, ...]]:
        """The paths of an episode (or of several, over one frame table), and the frame keys."""
        tokens, keys = self.episodes(group)
        paths = [paths_of(part, self.layout, supervise=supervise) for part in tokens]
        return tuple(chain.from_iterable(paths)), keys

    def _step(self, step: Step, episode: Episode, table: _FrameTable) -> StepTokens:
        """All segments of a recorded step."""
        rows = []
        for stream in self.streams:
            if not step.frames:
                raise UserError(
                    f"episode {'/'.join(episode.key)}: its steps have no frames; render them "
                    "(vla-nav convert convert.render=true), or count and draw the episode file"
                )
            if stream not in step.frames:
                raise UserError(
                    f"episode {'/'.join(episode.key)}: no frame of camera '{stream}'; it has "
                    f"{sorted(step.frames)}; set models.prompt.cameras"
                )
            rows.append(table.rows.setdefault((stream, step.frames[stream]), len(table.rows)))
        poses = () if self.config.pose is None else (episode.start_pose, step.pose)
        place = (tuple(rows), poses)
        if place not in table.seen:
            table.seen[place] = self.observation(rows, step.pose, episode.start_pose)
        labels = tuple(
            Label(self.action(self.action_space.label(step.pose, label), is_supervised=True))
            for label in step.labels
        )
        executed = _EMPTY  # hidden actions are never context
        if self.layout.actions == "visible":
            executed = self.action(self.action_space.executed(step), is_supervised=False)
        return StepTokens(*table.seen[place], executed, labels)

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text)) if text else ()


def frame_array(
    observation_rgb: Mapping[str, np.ndarray], depth: Mapping[str, np.ndarray], stream: str
) -> np.ndarray:
    """The image of a stream of a live observation: RGB, or depth for `<camera>.depth`."""
    name, _, kind = stream.rpartition(".")
    return depth[name] if kind == "depth" and name else observation_rgb[stream]
