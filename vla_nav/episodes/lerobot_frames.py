"""Pixels of foreign LeRobot sets by frame key.

    videos/front/chunk-000/file-000.mp4#17                   frame 17 of a video, counted as shown
    data/chunk-000/file-000.parquet#17/observation.images.x  image bytes in row 17 of a parquet file
    videos/chunk-000/rgb/episode_000000_17.jpg               a picture

Every path is relative to the set and stays inside it.
"""

from __future__ import annotations

import io
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vla_nav.episodes.frame_folders import MAX_FILE_BYTES, MAX_PIXELS, inside, read_picture
from vla_nav.episodes.frames import millimetres_to_depth
from vla_nav.episodes.parquet_columns import ParquetCache, one_line
from vla_nav.episodes.video_index import VideoCache
from vla_nav.errors import UserError

_FAULTS = (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError, MemoryError)


class LeRobotFrames:
    """A `FrameSource`. Can be sent to worker processes, which open files of their own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._open()

    def read(self, frame_key: str) -> np.ndarray:
        """RGB (H, W, 3) uint8, or depth (H, W) float32 metres for a 16-bit picture."""
        name, is_part, part = frame_key.partition("#")
        path = inside(self.root, name, what="frame")
        if not is_part:
            return read_picture(path)
        found = re.fullmatch(r"(\d{1,9})(?:/(.+))?", part)
        if found is None:
            raise UserError(f"{path}: key '{one_line(frame_key)}' names no frame; expected #NUMBER")
        if found[2] is None:
            return self._videos.open(name).read(int(found[1]))
        return self._image(name, int(found[1]), found[2])

    def _image(self, name: str, row: int, column: str) -> np.ndarray:
        where = f"{self.root / name}: row {row}, image '{column}'"
        file = self._tables.open(name)
        group = first = 0
        while group < len(file.groups) and row >= first + file.groups[group]:
            first += file.groups[group]
            group += 1
        if group == len(file.groups):
            raise UserError(f"{where}: the file has {first} rows; it is cut short, copy it again")
        cell = self._tables.read(name, group, [column]).column(0)[row - first].as_py()
        data = cell.get("bytes") if isinstance(cell, dict) else cell
        if isinstance(data, bytes):
            return decode_image(data, where)
        path = cell.get("path") if isinstance(cell, dict) else None
        if not isinstance(path, str):
            raise UserError(f"{where}: is empty; expected image bytes or a path")
        return read_picture(inside(self.root, path, what="frame"))

    def _open(self) -> None:
        self._videos = VideoCache(self.root)
        self._tables = ParquetCache(self.root, files=4, groups=2)

    def __getstate__(self) -> dict[str, Any]:
        return {"root": self.root}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.root = state["root"]
        self._open()


def decode_image(data: bytes, where: str) -> np.ndarray:
    """The pixels of JPEG or PNG bytes, within the limits of picture files."""
    if len(data) > MAX_FILE_BYTES:
        raise UserError(f"{where}: {len(data)} bytes; a picture has at most {MAX_FILE_BYTES}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(io.BytesIO(data), formats=("JPEG", "PNG"))
        if image.size[0] * image.size[1] > MAX_PIXELS:
            raise UserError(
                f"{where}: {image.size[0]}x{image.size[1]} pixels; at most {MAX_PIXELS}"
            )
        if image.mode.startswith("I"):
            return millimetres_to_depth(np.asarray(image).astype(np.uint16))
        return np.array(image.convert("RGB"))
    except UserError:
        raise
    except _FAULTS as error:
        raise UserError(f"{where}: not a readable JPEG or PNG ({one_line(error)})") from None
