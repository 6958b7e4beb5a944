"""Frames in folders of jpg and png files, and in mp4 files, below one root.

key   images/17DRP5sb8fy_r2r_000577/rgb/001.jpg       a picture, path relative to the root
      videos/12.mp4#40                                 frame 40 (from 0) of a video

A picture is opened only if its file and the size that its header states are within limits, and
only as JPEG or PNG. A key never leads out of the root (links made by the owner are followed). RGB
comes as (H, W, 3) uint8; a one-channel 16-bit PNG as depth, millimetres read as metres.
"""

from __future__ import annotations

import os
import re
import struct
import warnings
import zlib
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image, UnidentifiedImageError

from vla_nav.episodes.frames import millimetres_to_depth
from vla_nav.episodes.video_index import VideoCache
from vla_nav.errors import UserError
from vla_nav.files import require_regular

MAX_FILE_BYTES = 64 * 2**20
MAX_PIXELS = 32_000_000  # 8 K video; the largest picture of public data is 0.3 million
MAX_FRAMES = 100_000  # of one folder; the longest public episode has 501
MAX_NAME_BYTES, MAX_PATH_BYTES = 255, 4095  # Linux has no longer ones
SUFFIXES = (".jpg", ".jpeg", ".png")


class FolderFrames:
    """A `FrameSource` over the files below `root`. Can be sent to worker processes."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self._videos = VideoCache(self.root)

    def read(self, frame_key: str) -> np.ndarray:
        """RGB (H, W, 3) uint8, or depth (H, W) float32 metres. Raises `UserError` naming it."""
        name, is_video, number = frame_key.partition("#")
        path = inside(self.root, name, what="frame")
        if not is_video:
            return read_picture(path)
        if not re.fullmatch(r"[0-9]{1,9}", number):
            raise UserError(
                f"{path}: frame number '{number}' of key '{frame_key}'; allowed: a number from 0"
            )
        return self._videos.open(name).read(int(number))


def inside(root: Path, name: str, *, what: str) -> Path:
    """`root / name`. Raises `UserError` for a name that is absolute or leads upwards, and for one
    that no file can have."""
    relative = PurePosixPath(name)
    is_inside = name and not relative.is_absolute() and ".." not in relative.parts
    if not is_inside or not _is_possible(relative) or not _is_short(root / relative):
        shown = name if len(name) <= 100 else f"{name[:100]}..."
        raise UserError(
            f"{root}: {what} '{shown}'; allowed: a path inside this folder of at most "
            f"{MAX_PATH_BYTES} bytes, {MAX_NAME_BYTES} a name; correct the file that names it"
        )
    return root / relative


def is_name(text: str) -> bool:
    """Whether a text from data can be the name of one file or folder."""
    is_plain = text not in ("", ".", "..") and not set(text) & {"/", "\\"}
    return is_plain and _is_possible(PurePosixPath(text))


def read_picture(path: Path) -> np.ndarray:
    """The pixels of a JPEG or PNG file: RGB (H, W, 3) uint8 or depth (H, W) float32 metres."""
    try:
        with _opened(path) as image:
            if image.mode.startswith("I"):
                return millimetres_to_depth(np.asarray(image).astype(np.uint16))
            return np.array(image.convert("RGB"))
    except UserError:
        raise
    except _FAULTS as error:
        raise UserError(f"{path}: damaged or cut short ({error}); copy it again") from None


def picture_size(path: Path) -> tuple[int, int]:
    """(width, height) in pixels as the header states; nothing is decoded."""
    try:
        with _opened(path) as image:
            return image.size
    except UserError:
        raise
    except _FAULTS as error:
        raise UserError(f"{path}: damaged or cut short ({error}); copy it again") from None


def numbered_pictures(folder: Path) -> dict[int, str]:
    """Number in the name -> file name of the pictures in a folder, by number; {} if it is missing.

    frame_9.jpg -> 9, 010.jpg -> 10, step_0003_TURN_LEFT.png -> 3. Files without a number are no
    frames. Raises `UserError` for two pictures of one number, and for more than `MAX_FRAMES`.
    """
    names: dict[int, str] = {}
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                stem, suffix = os.path.splitext(entry.name)
                number = re.search(r"(?<![0-9])[0-9]{1,9}(?![0-9])", stem)
                if suffix.lower() not in SUFFIXES or number is None:
                    continue
                at = int(number[0])
                if at in names:
                    raise UserError(
                        f"{folder}: {names[at]} and {entry.name} are both frame {at}; remove one"
                    )
                names[at] = entry.name
                if len(names) > MAX_FRAMES:
                    raise UserError(f"{folder}: more than {MAX_FRAMES} pictures in one episode")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise UserError(f"{folder}: cannot be read ({error.strerror}); copy it again") from None
    return dict(sorted(names.items()))


_FAULTS = (OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error)


def _is_possible(relative: PurePosixPath) -> bool:
    """Whether the system can have such names: encodable, without NUL, not too long."""
    try:
        parts = [os.fsencode(part) for part in relative.parts]
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return all(len(part) <= MAX_NAME_BYTES and b"\0" not in part for part in parts)


def _is_short(path: Path) -> bool:
    return len(os.fsencode(path)) <= MAX_PATH_BYTES


def _opened(path: Path) -> Image.Image:
    """The picture with its header read, within the limits; nothing is decoded yet."""
    try:
        num_bytes = require_regular(path).st_size
    except OSError:
        raise UserError(
            f"{path}: no such frame; copy the data set's pictures there, or correct data.path"
        ) from None
    if num_bytes > MAX_FILE_BYTES:
        raise UserError(f"{path}: {num_bytes} bytes; a picture has at most {MAX_FILE_BYTES}")
    try:
        with warnings.catch_warnings():  # Pillow's own size warning: the limit below is ours
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(path, formats=("JPEG", "PNG"))
    except UnidentifiedImageError:
        raise UserError(f"{path}: not a JPEG or PNG picture") from None
    except Image.DecompressionBombError as error:
        raise UserError(f"{path}: {error}; a picture has at most {MAX_PIXELS} pixels") from None
    width, height = image.size
    if width * height > MAX_PIXELS:
        image.close()
        raise UserError(f"{path}: {width}x{height}; a picture has at most {MAX_PIXELS} pixels")
    return image
