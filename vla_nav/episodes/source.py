"""What every reader gives: the episodes of one split, one by one, and where their frames are.

source = open_source("data/r2r_ce", split="val_unseen")       # formats.py: detected, or named
for episode in source: ...                                     # streamed; may be iterated again
source.frames.read(episode.steps[0].frames["front"])           # None where there are no pixels
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from vla_nav.episodes.types import Embodiment, Episode, FrameSource
from vla_nav.errors import UserError


class EpisodeError(UserError):
    """One episode cannot be read, those after it can: the iterator that raised it goes on.

    episode_id: as far as it is known. key: of the file, such as "start_rotation", "goals[0].radius"
    or "ground_truth".
    """

    def __init__(self, message: str, episode_id: str = "", key: str = "") -> None:
        super().__init__(message)
        self.episode_id, self.key = episode_id, key


@dataclass(frozen=True)
class SourceFacts:
    """What a data set, or the definition of its format, says about itself.

    None is "not stated": it may be inferred from the episodes, never assumed. expert: who walked
    ("shortest path follower", "human", ...), "" where nobody says. is_pose_measured: poses come
    from the data; else they are dead-reckoned from the actions. notes: one sentence each.
    """

    format: str
    turn_deg: float | None = None
    step_m: float | None = None
    embodiment: Embodiment | None = None
    expert: str = ""
    is_pose_measured: bool = True
    notes: tuple[str, ...] = ()


class EpisodeSource(Protocol):
    """The episodes of one split of a data set, in a fixed order."""

    root: Path
    split: str
    facts: SourceFacts

    def __iter__(self) -> Iterator[Episode]:
        """The episodes, in bounded memory whatever their number; may be called again.

        Raises `UserError` naming file, episode and key where one cannot be read; a reader that can
        go on after it raises `EpisodeError`.
        """
        ...

    @property
    def frames(self) -> FrameSource | None:
        """The recorded pixels, or None where the data has poses or actions only."""
        ...


def episodes_and_errors(source: EpisodeSource) -> Iterator[Episode | EpisodeError]:
    """Every episode of `source`, and in the place of one that cannot be read, why.

    A `UserError` that is no `EpisodeError` (a damaged file) is raised: nothing follows it.
    """
    episodes = iter(source)
    while True:
        try:
            yield next(episodes)
        except StopIteration:
            return
        except EpisodeError as error:
            yield error
