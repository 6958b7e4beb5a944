"""Frames for the tests of vision: seeded pictures under their content keys, in memory."""

from __future__ import annotations

import numpy as np

from vla_nav.episodes.frames import frame_key
from vla_nav.errors import UserError


class PaintedFrames:
    """A `FrameSource` of `num_frames` random RGB pictures; `keys` lists them in order."""

    def __init__(self, num_frames: int, *, size: tuple[int, int] = (20, 24), seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        pictures = rng.integers(0, 256, (num_frames, *size, 3), dtype=np.uint8)
        self.pictures = {frame_key(picture): picture for picture in pictures}
        self.keys = list(self.pictures)
        self.num_reads = 0

    def read(self, key: str) -> np.ndarray:
        self.num_reads += 1
        if key not in self.pictures:
            raise UserError(f"painted frames: holds no frame {key}")
        return self.pictures[key]

    def stack(self, keys: list[str]) -> np.ndarray:
        return np.stack([self.pictures[key] for key in keys])
