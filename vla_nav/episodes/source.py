"""What every reader gives: the episodes of one split, one after another, and where their frames are.

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

        Raises `UserError` naming file, episode and key where one cannot be read.
        """
        ...

    @property
    def frames(self) -> FrameSource | None:
        """The recorded pixels, or None where the data has poses or actions only."""
        ...
