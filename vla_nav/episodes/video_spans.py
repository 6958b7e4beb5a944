"""Where the frames of episodes are said to be, before any of them is read.

episode 0   front   file-000.mp4   [0, 12)        what a row of LeRobot v3's meta/episodes says
episode 1   front   file-000.mp4   [12, 30)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol, runtime_checkable


class VideoSpan(NamedTuple):
    """Frames [first, stop) of a video belong to an episode. key: of the camera."""

    episode: int
    key: str
    video: str
    first: int
    stop: int


@runtime_checkable
class StatesVideoSpans(Protocol):
    """A source that knows every episode's places in the videos from its tables alone."""

    def video_spans(self) -> Iterator[VideoSpan]:
        """The spans of one episode after another, those of its cameras together."""
        ...
