"""Where NaVILA's pictures are: folders of jpg files, or videos of the same pictures.

    "914/frame_7.jpg"   ->   train/914/frame_7.jpg, else videos/914.mp4#7

Human's pictures (0001.jpg ..., one a second of a video) have no number of a video's frame.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from vla_nav.episodes.frame_folders import MAX_FRAMES, SUFFIXES, inside
from vla_nav.episodes.video_index import stated_frames
from vla_nav.errors import UserError
from vla_nav.files import require_regular

_PICTURE_FOLDERS = ("train", "raw_frames", "images", "videos", "")
_VIDEO_FOLDERS = ("videos", "")
_NUMBERED = re.compile(r"frame_([0-9]{1,9})\.[a-z]+")


class Pictures:
    """Finds pictures and videos below `root`, whose folders are looked for once."""

    def __init__(self, root: Path, split: str) -> None:
        self._root = root
        self._folders = [split, *(name for name in _PICTURE_FOLDERS if name != split)]

    def of(self, frames: Sequence[str]) -> dict[str, str]:
        """Name in the annotations -> frame key, of the pictures that are there."""
        keys: dict[str, str] = {}
        for video in dict.fromkeys(name.rpartition("/")[0] for name in frames):
            keys |= self._of_video(video, [f for f in frames if f.rpartition("/")[0] == video])
        return keys

    def video(self, name: str) -> str | None:
        """The key of a video file, None where it is missing. Raises `UserError` for a pipe."""
        for folder in _VIDEO_FOLDERS:
            relative = str(PurePosixPath(folder, name))
            path = inside(self._root, relative, what="video")
            if path.exists():
                require_regular(path)
                return relative
        return None

    def _of_video(self, video: str, frames: Sequence[str]) -> dict[str, str]:
        for folder in self._folders:
            path = inside(self._root, str(PurePosixPath(folder, video)), what="video")
            if path.is_dir():
                there = {name for name in _names(path) if name.lower().endswith(SUFFIXES)}
                before = f"{folder}/" if folder else ""
                return {
                    name: f"{before}{name}" for name in frames if name.rpartition("/")[2] in there
                }
        key = self.video(f"{video}.mp4")
        numbers = {name: _NUMBERED.fullmatch(name.rpartition("/")[2]) for name in frames}
        return {n: f"{key}#{int(at[1])}" for n, at in numbers.items() if key and at}


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError as error:
        raise UserError(f"{folder}: cannot be read ({error.strerror}); copy it again") from None


def num_video_frames(path: Path) -> int:
    """The number of pictures of a video, as it states; nothing is decoded."""
    count = stated_frames(path)
    if count > MAX_FRAMES:
        raise UserError(f"{path}: {count} frames; an episode has at most {MAX_FRAMES}")
    return count
