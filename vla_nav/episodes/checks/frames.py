"""Checks of frames and cameras: D501 to D508. No pixel is read except of a few sampled episodes.

    video frames taken by episodes, in order     [0, 12) [12, 30) [30, 41)      right
                                                 [0, 12) [10, 30)               overlap, D503
                                                 [0, 12) [30, 41) [12, 30)      out of order, D504

A source that states its offsets (`StatesVideoSpans`) is asked for them, others give the frames of
their steps. Ranges that touch are joined, so that a video of any number of episodes is one entry in
memory. The sampled episodes are the first, second, third, fifth, ninth, ...: 20 of a million.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from vla_nav.episodes.checks.findings import Tally
from vla_nav.episodes.source import EpisodeSource
from vla_nav.episodes.types import Camera, Embodiment, Episode
from vla_nav.episodes.video_spans import StatesVideoSpans
from vla_nav.errors import UserError

MIN_HFOV_DEG, MAX_HFOV_DEG = 1.0, 179.0  # a pinhole camera sees less than 180 degrees
_MAX_BODIES = 1000  # distinct embodiments looked at
_MAX_RANGES = 200_000  # of video frames kept apart
_MAX_EXACT = 1_000_000  # ranges remembered to know a second instruction of one trajectory


class _Fault(NamedTuple):
    code: str
    text: str


class FrameCheck:
    """Frames against steps, video offsets, cameras, and the pixels of a sample."""

    def __init__(self, tally: Tally, source: EpisodeSource) -> None:
        self._tally, self._source = tally, source
        self._stated = source if isinstance(source, StatesVideoSpans) else None
        self._bodies: set[Embodiment] = set()
        self._videos = VideoRanges()
        self._num_episodes = self._num_frames = self._num_read = 0
        self._next_sample = 0
        if source.facts.embodiment is not None:
            for camera in source.facts.embodiment.cameras:
                if fault := camera_fault(camera):
                    tally.add_whole("D506", f"camera {camera.name}", fault)
            self._bodies.add(source.facts.embodiment)

    def see(self, episode: Episode) -> None:
        """Look at one episode."""
        self._cameras(episode)
        if episode.steps:
            self._frames(episode)
            self._offsets(episode)
        if self._num_episodes == self._next_sample:
            self._read(episode)
            self._next_sample = max(self._next_sample + 1, 2 * self._next_sample - 1)
        self._num_episodes += 1

    def close(self) -> dict[str, Any]:
        """Facts for the report."""
        if self._stated is not None:
            with suppress(UserError):  # a damaged table: reading the episodes met it, as D001
                self._stated_offsets(self._stated)
        return {"frames": self._num_frames, "frames_read": self._num_read}

    def _cameras(self, episode: Episode) -> None:
        body = episode.embodiment
        if body is None or (body in self._bodies):
            return
        for camera in body.cameras:
            if fault := camera_fault(camera):
                self._tally.add("D506", episode, f"camera {camera.name}", fault)
                return
        if len(self._bodies) < _MAX_BODIES:
            self._bodies.add(body)

    def _frames(self, episode: Episode) -> None:
        for key in ("surplus_frames", "picture_gaps", "missing_video"):
            if value := episode.metadata.get(key):
                self._tally.add("D501", episode, f"metadata.{key}", value)
        names = {name for step in episode.steps for name in step.frames}
        self._num_frames += sum(len(step.frames) for step in episode.steps)
        if self._source.frames is None and not names:
            return
        if episode.embodiment is not None:
            names |= set(frame_names(episode.embodiment))
        if not names:
            self._tally.add("D501", episode, "steps", f"no frames of {len(episode.steps)} steps")
            return
        for number, step in enumerate(episode.steps):
            missing = sorted(names - step.frames.keys())
            if missing:
                text = f"no frame of {missing}, step {number} of {len(episode.steps)}"
                self._tally.add("D501", episode, f"steps[{number}].frames", text)
                return

    def _offsets(self, episode: Episode) -> None:
        for file, numbers in video_frames(episode):
            back = next((i for i, (a, b) in enumerate(pairwise(numbers)) if b < a), None)
            if back is not None:
                text = f"frame {numbers[back + 1]} comes after frame {numbers[back]}"
                self._tally.add("D505", episode, f"step {back + 1}", text, file=file)
            if self._stated is not None:
                continue
            if found := self._taken(file, min(numbers), max(numbers) + 1):
                self._tally.add(found.code, episode, "steps.frames", found.text, file=file)

    def _stated_offsets(self, source: StatesVideoSpans) -> None:
        """The offsets of all episodes, of those too that cannot be read. An episode counts once
        per code."""
        last = -1
        seen: set[str] = set()
        for span in source.video_spans():
            if span.episode != last:
                last, seen = span.episode, set()
            if span.first >= span.stop:
                continue  # reading the episode says so
            found = self._taken(span.video, span.first, span.stop)
            if found is not None and found.code not in seen:
                seen.add(found.code)
                name, key = str(span.episode), f"videos/{span.key}"
                self._tally.add_unread(found.code, name, key, found.text, file=span.video)

    def _taken(self, file: str, begin: int, end: int) -> _Fault | None:
        fault = self._videos.add(file, begin, end)
        if not fault:
            return None
        return _Fault(
            "D503" if "taken" in fault else "D504", f"frames {begin} to {end - 1} {fault}"
        )

    def _read(self, episode: Episode) -> None:
        frames = self._source.frames
        if frames is None or not episode.steps:
            return
        cameras = {c.name: c for c in episode.embodiment.cameras} if episode.embodiment else {}
        for number in sorted({0, len(episode.steps) - 1}):
            for name, key in episode.steps[number].frames.items():
                where = f"steps[{number}].frames[{name}]"
                try:
                    pixels = frames.read(key)
                except UserError as error:
                    self._tally.add("D502", episode, where, str(error))
                    continue
                self._num_read += 1
                camera = cameras.get(name.removesuffix(".depth"))
                size = pixels.shape[1], pixels.shape[0]
                if camera is not None and size != (camera.width_px, camera.height_px):
                    text = f"{size[0]}x{size[1]}, stated {camera.width_px}x{camera.height_px}"
                    self._tally.add("D507", episode, where, text)
                if pixels.size and np.ptp(pixels.reshape(-1, *pixels.shape[2:]), axis=0).max() == 0:
                    self._tally.add("D508", episode, where, f"all pixels are {pixels[0, 0]}")


class VideoRanges:
    """Which frames of which video are taken: sorted, joined ranges per file."""

    def __init__(self) -> None:
        self._ranges: dict[str, list[list[int]]] = {}
        self._num_ranges = 0
        self._exact: set[int] = set()  # several instructions of one trajectory take equal ranges

    def add(self, file: str, begin: int, end: int) -> str:
        """Take frames [begin, end); return what is wrong with that, or ""."""
        exact = hash((file, begin, end))
        if exact in self._exact:
            return ""
        if len(self._exact) < _MAX_EXACT:
            self._exact.add(exact)
        ranges = self._ranges.setdefault(file, [])
        at = bisect_left(ranges, [begin])
        before = ranges[at - 1] if at else None
        after = ranges[at] if at < len(ranges) else None
        if (before and before[1] > begin) or (after and after[0] < end):
            return "are taken by another episode too"
        touches_before = before is not None and before[1] == begin
        touches_after = after is not None and after[0] == end
        if touches_before and touches_after:
            before[1] = after[1]
            del ranges[at]
        elif touches_before:
            before[1] = end
        elif touches_after:
            after[0] = begin
        elif self._num_ranges < _MAX_RANGES:
            ranges.insert(at, [begin, end])
            self._num_ranges += 1
        return "come before those of an earlier episode" if after else ""


def camera_fault(camera: Camera) -> str:
    """What makes a camera impossible, or ""."""
    if not MIN_HFOV_DEG <= camera.hfov_deg <= MAX_HFOV_DEG:
        return f"hfov_deg {camera.hfov_deg:g}, allowed [{MIN_HFOV_DEG:g}, {MAX_HFOV_DEG:g}]"
    if camera.width_px < 1 or camera.height_px < 1:
        return f"size {camera.width_px}x{camera.height_px} pixels"
    return ""


def frame_names(body: Embodiment) -> Iterator[str]:
    """`front`, `front.depth`, ...: what a step of this body shows."""
    for camera in body.cameras:
        yield camera.name
        if camera.has_depth:
            yield f"{camera.name}.depth"


def video_frames(episode: Episode) -> Iterator[tuple[str, list[int]]]:
    """(video, frame numbers in the order of the steps) per camera with keys `<video>#<number>`.

    Frames of one camera in several videos give one entry a video.
    """
    numbers: dict[tuple[str, str], list[int]] = {}
    for step in episode.steps:
        for camera, key in step.frames.items():
            file, mark, number = key.rpartition("#")
            if mark and number.isascii() and number.isdigit():
                numbers.setdefault((camera, file), []).append(int(number))
    return ((file, taken) for (_, file), taken in numbers.items())
