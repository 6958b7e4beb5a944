"""Reading a recorded LeRobot v3 data set: episodes from `meta/`, pixels on demand.

    data = LeRobotDataset("demo/data/recorded/train")
    episode = data[0]                                  # no pixels are touched
    pixels = data.frames.read(episode.steps[0].frames["front"])

Opening reads offsets and keys only. A file's checksum is compared before the file is first read;
nothing on disk is ever changed.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vla_nav.episodes import lerobot_layout as layout
from vla_nav.episodes.episode_rows import (
    EPISODE_FIELDS,
    FRAME_COLUMNS,
    KEY_COLUMNS,
    EpisodeColumns,
)
from vla_nav.episodes.lerobot_layout import Conventions, image_key
from vla_nav.episodes.recorded_frames import FrameIndex, RecordedFrames
from vla_nav.episodes.types import Embodiment, Episode
from vla_nav.errors import UserError
from vla_nav.files import file_digest, read_json

_CACHED_GROUPS = 4  # row groups of meta/episodes (256 episodes each) kept decoded
_OFFSETS = ("length", "dataset_from_index", "dataset_to_index", "data/chunk_index")
_VIDEO_FIELDS = ("chunk_index", "file_index", "from_timestamp")


class LeRobotDataset:
    """A sequence of recorded episodes, and the source of their frames."""

    def __init__(self, root: str | Path, *, cached_groups: int = _CACHED_GROUPS) -> None:
        """cached_groups: row groups (256 episodes each) that stay decoded; give many for random
        access. Raises `UserError` where `root` is not a whole data set of this version."""
        self.root = Path(root)
        self._cached_groups = cached_groups
        self.info: dict[str, Any] = _read_info(self.root)
        self.conventions = Conventions.from_json(self.info["vla_nav"], self.root / layout.INFO)
        self._sums: dict[str, Any] = _read_checksums(self.root, self.info)
        self._verified: set[str] = set()
        self._check_sizes()
        self._files = sorted(path for path in self._sums if path.startswith("meta/episodes/"))
        offsets = [*_OFFSETS, "data/file_index"]
        for name in layout.video_names(self.conventions):
            offsets += [f"videos/{image_key(name)}/{field}" for field in _VIDEO_FIELDS]
        table = self._read_episodes([*offsets, *KEY_COLUMNS])
        if len(table) != self.info["total_episodes"]:
            raise UserError(
                f"{self.root / layout.INFO}: total_episodes is {self.info['total_episodes']}, "
                f"meta/episodes has {len(table)}; record the data set again"
            )
        self._places = {name: table.column(name).to_numpy() for name in offsets}
        self._keys = table.select(list(KEY_COLUMNS))
        self._group_ends = self._count_groups()
        self._groups: OrderedDict[int, EpisodeColumns] = OrderedDict()
        self.frames = RecordedFrames(
            self.root, self.conventions, self._places, self._frame_index, self.check
        )

    def __len__(self) -> int:
        return len(self._places["length"])

    def __getitem__(self, index: int) -> Episode:
        """Episode `index`, everything but pixels."""
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(f"episode {index} of {len(self)}")
        group = int(np.searchsorted(self._group_ends, index, side="right"))
        first = int(self._group_ends[group - 1]) if group else 0
        return self._group(group).episode(index - first)

    def __iter__(self) -> Iterator[Episode]:
        return (self[index] for index in range(len(self)))

    @property
    def embodiment(self) -> Embodiment:
        """The nominal embodiment; an episode's own may differ in camera height and pitch."""
        return self.conventions.embodiment

    @property
    def num_steps(self) -> np.ndarray:
        """(episodes,) int64: steps of every episode, without reading the episodes."""
        return self._places["length"]

    def keys(self) -> list[tuple[str, str, str, str]]:
        """(dataset, split, role, episode_id) of every episode, in order."""
        return list(
            zip(*(self._keys.column(name).to_pylist() for name in KEY_COLUMNS), strict=True)
        )

    def instructions(self) -> list[str]:
        """The instruction of every episode, without reading the episodes."""
        return self._read_episodes(["nav/instruction"]).column(0).to_pylist()

    def scene_ids(self) -> list[str]:
        """The scene of every episode, without reading the episodes."""
        return self._read_episodes(["nav/scene_id"]).column(0).to_pylist()

    def num_labels(self) -> list[list[int]]:
        """Expert labels of every step of every episode, without reading the episodes."""
        return self._read_episodes(["nav/step_labels"]).column(0).to_pylist()

    def metadata(self, name: str) -> list[Any]:
        """Every episode's metadata entry `name` (None where it has none), without the episodes."""
        texts = self._read_episodes(["nav/metadata"]).column(0).to_pylist()
        return [json.loads(text or "{}").get(name) for text in texts]

    def fingerprint(self) -> str:
        """32 hexadecimal digits that change with any episode, frame, their order or conventions."""
        return self.info["vla_nav"]["fingerprint"]

    def check(self, path: str) -> None:
        """Compare a file with its checksum, once. path: relative to the root.

        Raises `UserError` naming the file where it is missing, cut short or changed.
        """
        if path in self._verified:
            return
        if path not in self._sums:
            raise UserError(f"{self.root / path}: not in {layout.CHECKSUMS}; record it again")
        digest = file_digest(self.root / path)
        if digest != self._sums[path]["xxh3"]:
            raise UserError(
                f"{self.root / path}: damaged, its checksum is {digest} and {layout.CHECKSUMS} "
                f"has {self._sums[path]['xxh3']}; copy it again or record the data set again"
            )
        self._verified.add(path)

    def verify(self) -> None:
        """Check every file of the data set."""
        for path in self._sums:
            self.check(path)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_groups": OrderedDict()}

    def _group(self, group: int) -> EpisodeColumns:
        columns = self._groups.get(group)
        if columns is None:
            file, local = self._group_files[group]
            table = self._open(file).read_row_group(local, list(EPISODE_FIELDS))
            columns = self._groups[group] = EpisodeColumns(table)
            if len(self._groups) > self._cached_groups:
                self._groups.popitem(last=False)
        self._groups.move_to_end(group)
        return columns

    def _count_groups(self) -> np.ndarray:
        """Index of the episode after each row group; remembers the file of each."""
        self._group_files: list[tuple[str, int]] = []
        counts = []
        for path in self._files:
            meta = self._open(path).metadata
            for group in range(meta.num_row_groups):
                self._group_files.append((path, group))
                counts.append(meta.row_group(group).num_rows)
        return np.cumsum(counts)

    def _open(self, path: str) -> pq.ParquetFile:
        self.check(path)
        try:
            return pq.ParquetFile(self.root / path, memory_map=True)
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"{self.root / path}: not a readable parquet file ({error})") from None

    def _read_episodes(self, columns: list[str]) -> pa.Table:
        try:
            tables = [self._open(path).read(columns) for path in self._files]
            return pa.concat_tables(tables).combine_chunks()
        except pa.ArrowException as error:
            raise UserError(f"{self.root}/meta/episodes: columns are missing ({error})") from None

    def _frame_index(self) -> FrameIndex:
        return FrameIndex.build(self._read_episodes(list(FRAME_COLUMNS)))

    def _check_sizes(self) -> None:
        for path, entry in self._sums.items():
            file = self.root / path
            if not file.exists():
                raise UserError(f"{file}: missing; copy the data set again or record it again")
            if file.stat().st_size != entry["bytes"]:
                raise UserError(
                    f"{file}: has {file.stat().st_size} bytes, {entry['bytes']} were written; "
                    "it is cut short or changed: copy it again or record the data set again"
                )


def _read_info(root: Path) -> dict[str, Any]:
    path = root / layout.INFO
    if not path.exists():
        parts = root / layout.PARTS
        remedy = (
            "recording there is not finished: run `vla-nav record` again to finish it"
            if parts.exists()
            else "record a data set there with `vla-nav record`, or correct the path"
        )
        raise UserError(f"{root}: no recorded data set (no {layout.INFO}); {remedy}")
    info = read_json(path)
    version = info.get("codebase_version") if isinstance(info, dict) else None
    if version != layout.CODEBASE_VERSION:
        raise UserError(
            f"{path}: codebase_version is {version}; this program reads {layout.CODEBASE_VERSION}"
        )
    if not isinstance(info.get("vla_nav"), dict):
        raise UserError(
            f"{path}: key vla_nav is missing: it was not recorded by vla-nav and "
            "does not say its turn angle, cameras and frame; record with `vla-nav record`"
        )
    return info


def _read_checksums(root: Path, info: dict[str, Any]) -> dict[str, Any]:
    path = root / layout.CHECKSUMS
    sums = read_json(path)
    if file_digest(path) != info["vla_nav"].get("checksums"):
        raise UserError(
            f"{path}: does not belong to {layout.INFO} beside it; copy the data set again"
        )
    return sums
