"""Camera frames as mp4: one clip per episode, joined without re-encoding, read by frame number.

    clip of episode 0   clip of episode 1        file-000.mp4
    |0 1 2 3 4|       + |0 1 2|             ->   |0 1 2 3 4 5 6 7|     frame n is shown at n / fps

Every clip starts with a key frame and has no frames out of order, so clips are joined packet by
packet, and a frame is found by its number: seek to the key frame before it, decode up to it. The
number is read from the frame's own time stamp, never counted from where a seek happened to land.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from vla_nav.episodes.video_index import require_av
from vla_nav.errors import UserError

_KEY_FRAME_EVERY = 8
_TICKS = 12_800  # time stamps a second; a multiple of every usual frame rate
_OPTIONS = {"crf": "12", "preset": "veryfast", "bf": "0", "threads": "1", "sc_threshold": "0"}


def encode_clip(frames: Sequence[np.ndarray], *, fps: int) -> bytes:
    """An mp4 (H.264, yuv420p) of RGB frames (H, W, 3) uint8, all of one even height and width."""
    height, width = frames[0].shape[:2]
    if height % 2 or width % 2:
        raise UserError(
            f"video frames of {width}x{height}: both sides must be even; "
            "choose another camera size or storage=png"
        )
    av = require_av()
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=fps, options=_OPTIONS)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.codec_context.time_base = Fraction(1, fps)
        stream.codec_context.gop_size = _KEY_FRAME_EVERY
        for number, pixels in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, fps)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return buffer.getvalue()


def join_clips(target: Path, clips: Iterator[tuple[bytes, int]], *, fps: int) -> int:
    """Write clips one after another into the mp4 `target`; return the number of frames.

    clips: (bytes of `encode_clip`, number of its frames), all of one size. Nothing is re-encoded.
    """
    av = require_av()
    num_frames = 0
    with av.open(str(target), "w", format="mp4") as output:
        stream = None
        for data, num_clip_frames in clips:
            with av.open(io.BytesIO(data), "r", format="mp4") as clip:
                source = clip.streams.video[0]
                if stream is None:
                    stream = output.add_stream_from_template(source)
                    stream.time_base = Fraction(1, _TICKS)
                for packet in clip.demux(source):
                    if packet.size == 0:
                        continue  # the flush packet at the end
                    number = _frame_number(packet.pts, packet.time_base, fps) + num_frames
                    packet.stream = stream
                    packet.time_base = Fraction(1, fps)
                    packet.pts = packet.dts = number
                    packet.duration = 1
                    output.mux(packet)
            num_frames += num_clip_frames
    return num_frames


class VideoFrames:
    """The frames of one mp4 by number. Reading forwards decodes each frame once."""

    def __init__(self, path: Path, *, fps: int) -> None:
        self._path = path
        self._fps = fps
        self._av = av = require_av()
        try:
            self._container = av.open(str(path))
            self._stream = self._container.streams.video[0]
        except (av.error.FFmpegError, IndexError) as error:
            raise UserError(f"{path}: not a readable video ({error})") from None
        self._stream.thread_type = "NONE"
        self._frames: Iterator[Any] = iter(())
        self._last: int | None = None  # number of the frame decoded last

    def read(self, number: int) -> np.ndarray:
        """Frame `number` as RGB (H, W, 3) uint8."""
        try:
            if self._last is None or not 0 < number - self._last <= _KEY_FRAME_EVERY:
                self._seek(number)
            for frame in self._frames:
                self._last = _frame_number(frame.pts, frame.time_base, self._fps)
                if self._last == number:
                    return frame.to_ndarray(format="rgb24")
                if self._last > number:
                    break
        except self._av.error.FFmpegError as error:
            raise UserError(f"{self._path}: damaged at frame {number} ({error})") from None
        raise UserError(f"{self._path}: has no frame {number}; the file is damaged or cut short")

    def close(self) -> None:
        """Release the file."""
        self._container.close()

    def _seek(self, number: int) -> None:
        ticks = Fraction(number, self._fps) / self._stream.time_base
        self._container.seek(int(ticks), stream=self._stream, backward=True)
        self._frames = self._container.decode(self._stream)
        self._last = None


def _frame_number(pts: int, time_base: Fraction, fps: int) -> int:
    return round(pts * time_base * fps)
