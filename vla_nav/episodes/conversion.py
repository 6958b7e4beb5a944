"""Episodes of any source as episodes of a recorded data set: the same, with frames by content.

    source   Step(pose, {front: "rgb/007.jpg"}, ...)      a key of the format
    ours     Step(pose, {front: "9f0c...32 digits"}, ...)  a key of the pixels, written beside it

Nothing else of an episode changes. `plan` reads a source once, without pixels, and tells before any
work what there is, what cannot be written and why, and how much room it takes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import xxhash

from vla_nav.episodes.episode_rows import episode_name, to_row
from vla_nav.episodes.frames import frame_key, stored_frame
from vla_nav.episodes.types import Episode, FrameSource
from vla_nav.errors import UserError

EpisodeKey = tuple[str, str, str, str]

_KEPT_BYTES = 128 * 2**20  # of an episode's decoded frames; the rest is read twice
_MOST_DECISIONS = 4096  # distinct decisions that are remembered to tell the decision rule


@dataclass(frozen=True)
class Plan:
    """What a source holds.

    order: keys of the episodes that can be written. skipped: why not the others. num_steps,
    num_frames, row_bytes: of those in `order` that are still to be written. has_frames: whether any
    step names one. decisions: the distinct executed decisions. digest: of all of it, in order.
    """

    order: tuple[EpisodeKey, ...]
    skipped: tuple[tuple[EpisodeKey, str], ...]
    num_steps: int
    num_frames: int
    row_bytes: int
    num_stepless: int
    has_frames: bool
    scenes: tuple[str, ...]
    decisions: frozenset[tuple[int, ...]]
    digest: str


class Converted(NamedTuple):
    """An episode whose frames are named by their pixels, and those pixels."""

    episode: Episode
    frames: Mapping[str, np.ndarray]


def plan(episodes: Iterable[Episode], *, done: Collection[EpisodeKey] = ()) -> Plan:
    """Read the episodes once. done: keys of what is written already."""
    order: dict[EpisodeKey, None] = {}
    skipped: list[tuple[EpisodeKey, str]] = []
    scenes: dict[str, None] = {}
    decisions: set[tuple[int, ...]] = set()
    digest = xxhash.xxh3_128()
    num_steps = num_frames = row_bytes = num_stepless = 0
    has_frames = False
    for episode in episodes:
        bare = replace(episode, steps=tuple(replace(step, frames={}) for step in episode.steps))
        names = [sorted(step.frames.items()) for step in episode.steps]
        try:
            row = to_row(bare)
        except UserError as error:
            skipped.append((episode.key, str(error)))
            digest.update(f"unwritable {episode.key}".encode())
            continue
        digest.update(f"{row['nav/digest']}{names}".encode())
        if episode.key in order:
            skipped.append((episode.key, f"{episode_name(episode)}: its key is there twice"))
            continue
        order[episode.key] = None
        scenes[episode.scene_id] = None
        num_stepless += not episode.steps
        has_frames = has_frames or any(names)
        if len(decisions) < _MOST_DECISIONS:
            decisions.update(step.executed for step in episode.steps)
        if episode.key not in done:
            num_steps += len(episode.steps)
            num_frames += sum(map(len, names))
            row_bytes += sum(
                value.nbytes if isinstance(value, np.ndarray) else len(value or ())
                for value in row.values()
            )
    return Plan(
        tuple(order),
        tuple(skipped),
        num_steps,
        num_frames,
        row_bytes,
        num_stepless,
        has_frames,
        tuple(scenes),
        frozenset(decisions),
        digest.hexdigest(),
    )


def convert_episode(episode: Episode, source: FrameSource | None) -> Converted:
    """The episode as it is written. source: of its pixels; None drops the frames it names.

    Raises `UserError` naming the episode, the step and the frame that cannot be read.
    """
    if source is None:
        steps = tuple(replace(step, frames={}) for step in episode.steps)
        return Converted(replace(episode, steps=steps), {})
    frames = _Frames(source)
    steps = []
    for number, step in enumerate(episode.steps):
        keys = {}
        for name, there in step.frames.items():
            try:
                keys[name] = frames.take(there)
            except UserError as error:
                raise UserError(
                    f"{episode_name(episode)}: step {number}, frame '{name}': {error}"
                ) from None
        steps.append(replace(step, frames=keys))
    return Converted(replace(episode, steps=tuple(steps)), frames)


class _Frames(Mapping[str, np.ndarray]):
    """An episode's frames by content: some in memory, the others read again."""

    def __init__(self, source: FrameSource) -> None:
        self._source = source
        self._there: dict[str, str] = {}  # content key -> the source's key
        self._known: dict[str, str] = {}  # and back
        self._kept: OrderedDict[str, np.ndarray] = OrderedDict()
        self._num_bytes = 0

    def take(self, there: str) -> str:
        """The content key of the frame that the source calls `there`."""
        if there not in self._known:
            frame = stored_frame(self._source.read(there))
            key = self._known[there] = frame_key(frame)
            self._there.setdefault(key, there)
            self._keep(key, frame)
        return self._known[there]

    def __getitem__(self, key: str) -> np.ndarray:
        there = self._there[key]
        frame = self._kept.get(key)
        if frame is None:
            frame = stored_frame(self._source.read(there))
            self._keep(key, frame)
        return frame

    def __iter__(self) -> Iterator[str]:
        return iter(self._there)

    def __len__(self) -> int:
        return len(self._there)

    def __contains__(self, key: object) -> bool:
        return key in self._there

    def _keep(self, key: str, frame: np.ndarray) -> None:
        if key in self._kept:
            return
        self._kept[key] = frame
        self._num_bytes += frame.nbytes
        while self._num_bytes > _KEPT_BYTES and len(self._kept) > 1:
            self._num_bytes -= self._kept.popitem(last=False)[1].nbytes
