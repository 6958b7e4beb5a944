"""Pixels of a recorded data set by frame key: `FrameSource` over parquet and mp4.

    key -> (episode, step, camera)      one sorted table of 16-byte keys, built without any pixels
        -> PNG in row `r` of a data file, through a small cache of row groups
        -> or frame number `n` of the camera's own video file

A video's file and start are read from that video's own columns: data and video files are cut at
different episodes, and so are the videos of two cameras.
"""

from __future__ import annotations

import bisect
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vla_nav.episodes import lerobot_layout as layout
from vla_nav.episodes.frames import decode_png
from vla_nav.episodes.lerobot_layout import Conventions, image_key
from vla_nav.episodes.video import VideoFrames
from vla_nav.errors import UserError

_CACHED_GROUPS = 16
_OPEN_FILES = 8


class FrameIndex(NamedTuple):
    """All frame keys of a data set, sorted, and where they are. F frames.

    keys: (F, 2) uint64, the key's two big-endian halves, in ascending order.
    episode, step: (F,) int32. name: (F,) int16, number in `names`.
    """

    keys: np.ndarray
    episode: np.ndarray
    step: np.ndarray
    name: np.ndarray
    names: list[str]

    @staticmethod
    def build(table: pa.Table) -> FrameIndex:
        """table: columns nav/step_frames, nav/frame_camera and nav/frame_key of every episode."""
        keys = table.column("nav/frame_key").combine_chunks()
        raw = keys.flatten()
        start = raw.offset * 16
        halves = np.frombuffer(raw.buffers()[1], ">u8", len(raw) * 2, start).astype(np.uint64)
        halves = halves.reshape(-1, 2)
        encoded = table.column("nav/frame_camera").combine_chunks().flatten().dictionary_encode()
        counts = table.column("nav/step_frames").combine_chunks()
        steps_of = counts.value_lengths().to_numpy()
        per_step = counts.flatten().to_numpy()
        step = np.arange(len(per_step)) - np.repeat(np.cumsum(steps_of) - steps_of, steps_of)
        episode = np.repeat(np.arange(len(steps_of)), steps_of)
        order = np.lexsort((halves[:, 1], halves[:, 0]))
        return FrameIndex(
            keys=halves[order],
            episode=np.repeat(episode, per_step)[order].astype(np.int32),
            step=np.repeat(step, per_step)[order].astype(np.int32),
            name=encoded.indices.to_numpy()[order].astype(np.int16),
            names=encoded.dictionary.to_pylist(),
        )

    def find(self, frame_key: str) -> tuple[int, int, str] | None:
        """(episode, step, frame name) of a key, or None."""
        try:
            value = int(frame_key, 16)
        except ValueError:
            return None
        high, low = np.uint64(value >> 64 & (2**64 - 1)), np.uint64(value & (2**64 - 1))
        at = int(np.searchsorted(self.keys[:, 0], high))
        while at < len(self.keys) and self.keys[at, 0] == high:
            if self.keys[at, 1] == low:
                return int(self.episode[at]), int(self.step[at]), self.names[self.name[at]]
            at += 1
        return None


class RecordedFrames:
    """The `FrameSource` of a recorded data set; safe to hand to worker processes."""

    def __init__(
        self,
        root: Path,
        conventions: Conventions,
        places: Mapping[str, np.ndarray],
        load_index: Callable[[], FrameIndex],
        check: Callable[[str], None],
    ) -> None:
        """places: the offset and file columns of meta/episodes, one value per episode.

        check: called with a file's relative path before it is first read.
        """
        self._root, self._conventions, self._places = root, conventions, places
        self._load_index, self._check = load_index, check
        self._index: FrameIndex | None = None
        self._videos = set(layout.video_names(conventions))
        self._reset()

    def read(self, frame_key: str) -> np.ndarray:
        """RGB (H, W, 3) uint8, or depth (H, W) float32 metres.

        With storage "video" RGB is what the video holds, close to what was recorded but not equal.
        """
        if self._index is None:
            self._index = self._load_index()
        found = self._index.find(frame_key)
        if found is None:
            raise UserError(f"{self._root}: holds no frame {frame_key}")
        episode, step, name = found
        if name in self._videos:
            return self._read_video(episode, step, name)
        return self._read_image(episode, step, name)

    def _read_image(self, episode: int, step: int, name: str) -> np.ndarray:
        path = layout.DATA_PATH.format(
            chunk_index=self._places["data/chunk_index"][episode],
            file_index=self._places["data/file_index"][episode],
        )
        row = int(self._places["dataset_from_index"][episode]) + step
        file = self._open_data(path)
        group = bisect.bisect_right(file.starts, row) - 1
        column = self._group(path, file, group, image_key(name))
        data = column[row - file.starts[group]]["bytes"]
        if not data.is_valid:
            raise UserError(f"{self._root / path}: row {row} has no image '{name}'")
        try:
            return decode_png(data.as_buffer().to_pybytes())
        except UserError as error:
            raise UserError(f"{self._root / path}: row {row}, image '{name}': {error}") from None

    def _read_video(self, episode: int, step: int, name: str) -> np.ndarray:
        key, fps = image_key(name), self._conventions.fps
        path = layout.VIDEO_PATH.format(
            video_key=key,
            chunk_index=self._places[f"videos/{key}/chunk_index"][episode],
            file_index=self._places[f"videos/{key}/file_index"][episode],
        )
        first = round(float(self._places[f"videos/{key}/from_timestamp"][episode]) * fps)
        video = self._open_videos.get(path)
        if video is None:
            self._check(path)
            video = VideoFrames(self._root / path, fps=fps)
            self._open_videos[path] = video
            if len(self._open_videos) > _OPEN_FILES:
                self._open_videos.popitem(last=False)[1].close()
        self._open_videos.move_to_end(path)
        return video.read(first + step)

    def _open_data(self, path: str) -> _DataFile:
        file = self._open_files.get(path)
        if file is None:
            self._check(path)
            first = self._first_row(path)
            file = self._open_files[path] = _DataFile.open(self._root / path, first)
            if len(self._open_files) > _OPEN_FILES:
                self._open_files.popitem(last=False)
        self._open_files.move_to_end(path)
        return file

    def _first_row(self, path: str) -> int:
        if self._file_starts is None:
            files = zip(
                self._places["data/chunk_index"].tolist(),
                self._places["data/file_index"].tolist(),
                self._places["dataset_from_index"].tolist(),
                strict=True,
            )
            self._file_starts = {}
            for chunk, number, row in files:
                name = layout.DATA_PATH.format(chunk_index=chunk, file_index=number)
                self._file_starts.setdefault(name, row)
        return self._file_starts[path]

    def _group(self, path: str, file: _DataFile, group: int, column: str) -> pa.Array:
        slot = (path, group, column)
        rows = self._groups.get(slot)
        if rows is None:
            rows = file.read(group, column)
            self._groups[slot] = rows
            if len(self._groups) > _CACHED_GROUPS:
                self._groups.popitem(last=False)
        self._groups.move_to_end(slot)
        return rows

    def _reset(self) -> None:
        self._open_files: OrderedDict[str, _DataFile] = OrderedDict()
        self._open_videos: OrderedDict[str, VideoFrames] = OrderedDict()
        self._groups: OrderedDict[tuple[str, int, str], pa.Array] = OrderedDict()
        self._file_starts: dict[str, int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Without open files: every process opens its own."""
        opened = ("_open_files", "_open_videos", "_groups", "_file_starts")
        return {name: value for name, value in self.__dict__.items() if name not in opened}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()


class _DataFile(NamedTuple):
    """One open data parquet. starts: index in the data set of every row group's first row."""

    path: Path
    file: pq.ParquetFile
    starts: list[int]

    @staticmethod
    def open(path: Path, first_row: int) -> _DataFile:
        try:
            file = pq.ParquetFile(path, memory_map=True)
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"{path}: not a readable parquet file ({error})") from None
        meta = file.metadata
        counts = [meta.row_group(group).num_rows for group in range(meta.num_row_groups)]
        starts = first_row + np.cumsum([0, *counts[:-1]])
        return _DataFile(path, file, starts.tolist())

    def read(self, group: int, column: str) -> pa.Array:
        try:
            return self.file.read_row_group(group, [column]).column(0).combine_chunks()
        except (pa.ArrowException, OSError) as error:
            raise UserError(
                f"{self.path}: row group {group} is damaged ({error}); record the data set again"
            ) from None
