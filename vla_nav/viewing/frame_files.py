"""The frames of a page as image files, each written once.

    key of a frame --digest--> frames/ab/ab12...png (up to 96 px wide: exact) or .jpg (larger)

Episodes that share a frame share its file. A frame that cannot be read does not stop the page: it
is listed with the reason, and shown as missing.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import xxhash
from PIL import Image

from vla_nav.episodes.types import FrameSource
from vla_nav.errors import UserError

FOLDER = "data/frames"
_EXACT_PX = 96
_QUALITY = 90
_DEPTH_M = 10.0  # shown as white


class FrameFiles:
    """Writes pixels under `root`. missing: reason of every frame that could not be read."""

    def __init__(self, root: Path, *, max_side_px: int) -> None:
        self._root, self._max_side_px = root, max_side_px
        self.missing: dict[str, str] = {}

    def from_source(self, source: FrameSource, data_root: Path, key: str) -> str:
        """The file of a data set's frame, relative to `root`; `!` and the reason where it cannot
        be read."""
        name = self._name(f"{key}|{_stamp(data_root, key)}")
        if (found := self._existing(name)) is not None:
            return found
        try:
            return self._write(name, source.read(key))
        except UserError as error:
            self.missing[key] = str(error)
            return f"!{error}"

    def from_pixels(self, name: str, pixels: np.ndarray) -> str:
        """The file of an image that was rendered; name: unique for what it shows."""
        digest = self._name(name)
        return self._existing(digest) or self._write(digest, pixels)

    def existing(self, name: str) -> str | None:
        """The file of `from_pixels(name, ...)` if it is there already."""
        return self._existing(self._name(name))

    def _name(self, text: str) -> str:
        return xxhash.xxh3_128_hexdigest(f"{text}|{self._max_side_px}".encode())

    def _existing(self, name: str) -> str | None:
        for ending in (".png", ".jpg"):
            file = f"{FOLDER}/{name[:2]}/{name}{ending}"
            with suppress(OSError):
                if (self._root / file).stat().st_size:
                    return file
        return None

    def _write(self, name: str, pixels: np.ndarray) -> str:
        image = Image.fromarray(shown(pixels))
        side = max(image.size)
        if side > self._max_side_px:
            scale = self._max_side_px / side
            size = tuple(max(1, round(length * scale)) for length in image.size)
            image = image.resize(size, Image.Resampling.LANCZOS)
        is_exact = max(image.size) <= _EXACT_PX
        file = f"{FOLDER}/{name[:2]}/{name}{'.png' if is_exact else '.jpg'}"
        target = self._root / file
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f"{target.name}.tmp-{os.getpid()}")
        try:  # whole or absent; a page can be written again, so nothing waits for the disk
            if is_exact:
                image.save(temporary, format="PNG")
            else:
                image.save(temporary, format="JPEG", quality=_QUALITY, subsampling=0)
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
        return file


def shown(pixels: np.ndarray) -> np.ndarray:
    """RGB as it is; depth (H, W) metres as grey, black at 0 or nothing, white from 10 m on."""
    if pixels.dtype == np.uint8:
        return pixels
    depth = np.nan_to_num(np.asarray(pixels, np.float32), nan=0.0, posinf=_DEPTH_M, neginf=0.0)
    return (np.clip(depth / _DEPTH_M, 0, 1) * 255).round().astype(np.uint8)


def _stamp(root: Path, key: str) -> str:
    """Size and time of the file that a key names, where it names one: another file, another
    picture. Recorded keys are digests of the pixels and need none."""
    try:
        found = os.stat(root / key.partition("#")[0])
    except (OSError, ValueError):
        return ""
    return f"{found.st_size}-{found.st_mtime_ns}"
