"""Frames of any mp4 by number: the n-th shown, whatever its time stamps say.

    packets in the file    I0 P3 B1 B2 I4 P6 B5        decoding order
    shown                  0  1  2  3  4  5  6         the number of a frame

Files of other writers start at any time, hold frames out of order and round their time stamps.
So the file's packets are listed once (nothing is decoded), sorted by when they are shown, and a
frame is decoded from the key frame before it. Decoding is bounded: no more packets than lie
between the two and a decoder's delay. Files are opened as mp4 whatever they hold, so that nothing
in them (a playlist, a script) can name another file.
"""

from __future__ import annotations

import bisect
from collections import OrderedDict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vla_nav.episodes.parquet_columns import one_line
from vla_nav.errors import UserError
from vla_nav.files import require_regular

MAX_FRAMES = 20_000_000  # in one file
MAX_PIXELS = 64 * 2**20  # in one frame
_DELAY = 64  # frames that a decoder may hold back


class VideoIndex(NamedTuple):
    """When each frame is shown (time stamps, ascending) and the numbers of the key frames."""

    shown: list[int]
    keys: list[int]

    @staticmethod
    def of(container: Any, stream: Any, path: Path) -> VideoIndex:
        """List the packets of an open file."""
        stamps: list[int] = []
        keys: list[int] = []
        for packet in container.demux(stream):
            if packet.size == 0 or packet.is_discard:
                continue
            if packet.pts is None:
                raise UserError(f"{path}: a frame has no time stamp; encode the video again")
            stamps.append(packet.pts)
            if packet.is_keyframe:
                keys.append(packet.pts)
            if len(stamps) > MAX_FRAMES:
                raise UserError(f"{path}: has more than {MAX_FRAMES} frames; split the file")
        stamps.sort()
        if any(a == b for a, b in pairwise(stamps)):
            raise UserError(f"{path}: two frames are shown at the same time; encode it again")
        return VideoIndex(stamps, sorted(bisect.bisect_left(stamps, key) for key in keys))


class VideoByNumber:
    """One open mp4. Reading forwards decodes each frame once."""

    def __init__(self, path: Path, index: VideoIndex | None = None) -> None:
        """index: of the same file, if it was listed before."""
        self._path = path
        _require_file(path)
        self._av = require_av()
        try:
            self._container = self._av.open(str(path), "r", format="mp4", metadata_errors="replace")
        except (self._av.error.FFmpegError, ValueError, OSError, MemoryError) as error:
            raise UserError(f"{path}: not a readable video ({one_line(error)})") from None
        try:
            self._stream = self._first_stream()
            self.index = index or VideoIndex.of(self._container, self._stream, path)
        except (self._av.error.FFmpegError, ValueError, OSError, MemoryError) as error:
            self.close()
            if isinstance(error, UserError):
                raise
            raise UserError(f"{path}: damaged ({one_line(error)}); copy it again") from None
        self._frames: Iterator[Any] = iter(())
        self._last: int | None = None  # number of the frame decoded last

    def __len__(self) -> int:
        return len(self.index.shown)

    def read(self, number: int) -> np.ndarray:
        """Frame `number` as RGB (H, W, 3) uint8."""
        if not 0 <= number < len(self):
            raise UserError(
                f"{self._path}: has {len(self)} frames, asked for number {number}; the file is cut "
                "short, or meta/ belongs to another version of it"
            )
        try:
            return self._read(number)
        except (self._av.error.FFmpegError, ValueError, OSError, MemoryError) as error:
            self._last = None
            if isinstance(error, UserError):
                raise
            raise UserError(
                f"{self._path}: damaged at frame {number} ({one_line(error)}); copy it again"
            ) from None

    def close(self) -> None:
        """Release the file."""
        self._container.close()

    def _read(self, number: int) -> np.ndarray:
        keys = self.index.keys
        at = bisect.bisect_right(keys, number) - 1
        key = keys[at] if at >= 0 else 0
        if self._last is None or not key <= self._last < number:
            self._container.seek(self.index.shown[key], stream=self._stream, backward=True)
            self._frames = self._container.decode(self._stream)
            self._last = key
        wanted = self.index.shown[number]
        for _ in range(number - key + _DELAY):
            frame = next(self._frames, None)
            if frame is None or frame.pts is None:
                break
            if frame.pts < wanted:
                continue
            if frame.pts == wanted:
                if frame.is_corrupt:
                    break
                if frame.width * frame.height > MAX_PIXELS:
                    raise UserError(f"{self._path}: frames of {frame.width}x{frame.height} pixels")
                self._last = number
                return frame.to_ndarray(format="rgb24")
            break
        self._last = None
        raise UserError(f"{self._path}: frame {number} cannot be decoded; the file is damaged")

    def _first_stream(self) -> Any:
        videos = self._container.streams.video
        if not videos:
            raise UserError(f"{self._path}: holds no video")
        stream = videos[0]
        context = stream.codec_context
        if context is None:
            raise UserError(f"{self._path}: its video codec is not supported here")
        if context.width * context.height > MAX_PIXELS:
            raise UserError(
                f"{self._path}: states frames of {context.width}x{context.height}; "
                f"at most {MAX_PIXELS} pixels are read"
            )
        stream.thread_type = "NONE"
        return stream


def stated_frames(path: Path) -> int:
    """How many frames a file's header states; where it states none, they are listed."""
    _require_file(path)
    av = require_av()
    try:
        with av.open(str(path), "r", format="mp4", metadata_errors="replace") as container:
            count = container.streams.video[0].frames if container.streams.video else 0
    except (av.error.FFmpegError, ValueError, OSError, MemoryError) as error:
        raise UserError(f"{path}: not a readable video ({one_line(error)})") from None
    if count <= 0:
        video = VideoByNumber(path)
        count = len(video)
        video.close()
    return count


class VideoCache:
    """A few open files, and the indices of more."""

    def __init__(self, root: Path, *, files: int = 8, indices: int = 256) -> None:
        self._root, self._most = root, (files, indices)
        self._open: OrderedDict[str, VideoByNumber] = OrderedDict()
        self._indices: OrderedDict[str, VideoIndex] = OrderedDict()

    def open(self, path: str) -> VideoByNumber:
        """The video at `path`, relative to the root."""
        video = self._open.pop(path, None)
        if video is None:
            video = VideoByNumber(self._root / path, self._indices.pop(path, None))
            self._indices[path] = video.index
            if len(self._indices) > self._most[1]:
                self._indices.popitem(last=False)
        self._open[path] = video
        if len(self._open) > self._most[0]:
            self._open.popitem(last=False)[1].close()
        return video

    def __getstate__(self) -> dict[str, Any]:
        """Without open files: every process opens its own."""
        return {"_root": self._root, "_most": self._most}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._root, self._most = state["_root"], state["_most"]
        self._open, self._indices = OrderedDict(), OrderedDict()


def _require_file(path: Path) -> None:
    try:
        require_regular(path)
    except FileNotFoundError:
        raise UserError(
            f"{path}: no such file; copy the data set again, it is incomplete"
        ) from None
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read ({error.strerror}); copy the data set again"
        ) from None


def require_av() -> Any:
    """The package av, imported when a video is first touched; `UserError` where it is missing."""
    try:
        import av
    except ImportError as error:
        raise UserError(
            f"videos need the package av ({error}); install it with `pip install av`"
        ) from None
    return av
