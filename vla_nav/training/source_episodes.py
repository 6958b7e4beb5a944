"""The episodes of any source with steps, read like a recorded split, without holding them all.

Episodes are read forwards: `episodes[0], episodes[1], ...` is one pass over the source, and going
back begins another. Frames are names only, which is enough for counting.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from vla_nav.actions.decisions import DecisionRule, stated_rule
from vla_nav.actions.types import ActionSpace
from vla_nav.episodes.lerobot_layout import Conventions, frame_names
from vla_nav.episodes.source import EpisodeSource
from vla_nav.episodes.types import Camera, Embodiment, Episode
from vla_nav.errors import UserError
from vla_nav.models.prompt import PromptConfig


class SourceEpisodes:
    """turn_deg: for sources that state none. Raises `UserError` for one without steps."""

    def __init__(
        self,
        source: EpisodeSource,
        *,
        action_space: ActionSpace,
        prompt: PromptConfig,
        turn_deg: float,
    ) -> None:
        self.root = Path(source.root)
        self._source, facts = source, source.facts
        turn_deg = turn_deg if facts.turn_deg is None else facts.turn_deg
        self.embodiment = counted_body(action_space, prompt, turn_deg, facts.step_m or 0.25)
        self._keys: list[tuple[str, str, str, str]] = []
        self._scenes: list[str] = []
        self._walks: list[Any] = []
        digest, steps = xxhash.xxh3_128(), []
        decisions: set[tuple[int, ...]] = set()
        for episode in source:
            executed = [step.executed for step in episode.steps]
            self._keys.append(episode.key)
            self._scenes.append(episode.scene_id)
            self._walks.append(episode.metadata.get("trajectory_id"))
            steps.append(len(executed))
            decisions.update(executed)
            digest.update(repr((episode.key, episode.instruction, executed)).encode())
        if not any(steps):
            raise UserError(
                f"{source.root}: its episodes have no steps; a tree needs actions: take a split "
                "with ground truth, or record it (vla-nav record)"
            )
        self.num_steps = np.array(steps, dtype=np.int64)
        self._digest = digest.hexdigest()
        rule = stated_rule(decisions) or DecisionRule.parse(action_space.decision)
        self.conventions = Conventions(facts.format, source.split, self.embodiment, str(rule))
        self._pass: Iterator[Episode] = iter(())
        self._next = len(steps)  # the episode that the pass gives next
        self._last: Episode | None = None

    def __len__(self) -> int:
        return len(self.num_steps)

    def __getitem__(self, index: int) -> Episode:
        """Episode `index`; quick for the one that was read last and for those behind it."""
        if not 0 <= index < len(self):
            raise IndexError(f"episode {index} of {len(self)}")
        if self._last is None or index < self._next - 1:
            self._pass, self._next = iter(self._source), 0
        while self._next <= index:
            self._last = next(self._pass)
            self._next += 1
        assert self._last is not None
        return with_frame_names(self._last, self.embodiment)

    def __iter__(self) -> Iterator[Episode]:
        return (self[index] for index in range(len(self)))

    def keys(self) -> list[tuple[str, str, str, str]]:
        """(dataset, split, role, episode_id) of every episode, in order."""
        return list(self._keys)

    def scene_ids(self) -> list[str]:
        """The scene of every episode."""
        return list(self._scenes)

    def metadata(self, key: str) -> list[Any]:
        """What every episode's metadata has under `key`; None where it has nothing."""
        if key == "trajectory_id":
            return list(self._walks)
        return [episode.metadata.get(key) for episode in self._source]

    def fingerprint(self) -> str:
        """Changes with any episode, its instruction or its actions."""
        return self._digest


def counted_body(
    action_space: ActionSpace, prompt: PromptConfig, turn_deg: float, step_m: float
) -> Embodiment:
    """A body whose cameras have the names that the prompt asks for; nothing is seen by them."""
    names = prompt.cameras or tuple(getattr(action_space, "cameras", ())) or ("front",)
    cameras = tuple(Camera(name, 224, 224, 90.0, 1.25, 0.0, prompt.depth) for name in names)
    return Embodiment(cameras, 0.1, 1.5, turn_deg, step_m, is_sliding=True)


def with_frame_names(episode: Episode, body: Embodiment) -> Episode:
    """The episode with a name for every frame of `body`'s cameras: of which trajectory, after how
    many actions. Episodes of one trajectory share their frames."""
    walk = episode.metadata.get("trajectory_id", episode.episode_id)
    steps, place = [], 0
    for number, step in enumerate(episode.steps):
        at = f"{episode.scene_id}/{walk}/{number}/{place}"
        frames = {stream: f"{at}/{stream}" for stream in frame_names(body)}
        steps.append(replace(step, frames=frames))
        place += len(step.executed)
    return replace(episode, embodiment=body, steps=tuple(steps))
