"""LeRobot v2.0 and v2.1 data sets of others: one parquet file and one video a camera and episode.

    meta/{info.json, episodes.jsonl, tasks.jsonl}
    data/chunk-000/episode_000000.parquet
    videos/chunk-000/<video key>/episode_000000.mp4

Source: huggingface/lerobot, src/lerobot/scripts/convert_dataset_v21_to_v30.py at 7427f31 (the "old"
side). Lines of episodes.jsonl come in any order; episodes are given by their index.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from vla_nav.episodes.annotations import ResumedEpisodes
from vla_nav.episodes.lerobot_frames import LeRobotFrames
from vla_nav.episodes.lerobot_meta_files import (
    ForeignInfo,
    fill,
    find_root,
    json_lines,
    json_lines_at,
    read_info,
    require_root,
    whole,
)
from vla_nav.episodes.lerobot_rows import (
    EpisodeRows,
    Shown,
    check_file,
    dataset_name,
    each_or_error,
)
from vla_nav.episodes.parquet_columns import ParquetColumns
from vla_nav.episodes.source import SourceFacts
from vla_nav.episodes.types import Episode
from vla_nav.errors import UserError

EPISODES, TASKS = "meta/episodes.jsonl", "meta/tasks.jsonl"


def detect(path: Path, split: str) -> bool:
    """Whether `path` or `path/<split>` is a v2 set without InternData-N1's columns."""
    root = find_root(path, split)
    return root is not None and is_v2(root) and not has_interndata_columns(read_info(root))


def open_source(path: Path, *, split: str, role: str = "") -> LeRobotV2Source:
    """The set; `UserError` where it is none, or another version."""
    root = require_root(Path(path), split)
    info = read_info(root)
    if not info.version.startswith("v2"):
        raise UserError(
            f"{info.path}: codebase_version is '{info.version}'; lerobot_v2 reads v2.0 and v2.1"
        )
    return LeRobotV2Source(info, split, role)


class LeRobotV2Source:
    """Episodes of a v2 set, one file after another."""

    def __init__(self, info: ForeignInfo, split: str, role: str) -> None:
        self.root, self.split = info.root, split
        self._info = info
        self._rows = EpisodeRows(
            info, dataset=dataset_name(info.root, split), split=split, role=role
        )
        self._range = info.episode_range(split)
        self.facts: SourceFacts = self._rows.facts("lerobot_v2")
        self.frames = LeRobotFrames(info.root)
        self._tasks: dict[int, str] | None = None

    def __iter__(self) -> Iterator[Episode]:
        lines = episode_lines(self.root / EPISODES, *self._range)
        return ResumedEpisodes(each_or_error(lines, self._episode))

    def _episode(self, line: dict[str, Any]) -> Episode:
        info, index = self._info, line["episode_index"]
        where = f"{self.root / EPISODES}: episode {index}"
        values = {"episode_chunk": index // info.chunks_size, "episode_index": index}
        path = fill(info.data_path, info.path, **values)
        file = ParquetColumns(self.root / path)
        columns = self._rows.columns(file)
        stated = whole(line.get("length", file.num_rows), f"{where}: length")
        if file.num_rows != stated:
            raise UserError(
                f"{where}: length is {stated}, {path} has {file.num_rows} rows; the file is cut "
                "short, or meta/ belongs to another version of the set"
            )
        rows = file.read_all(columns)
        shown = {}
        for key in info.cameras("video"):
            video = fill(info.video_path or "", info.path, video_key=key, **values)
            check_file(self.root, video, f"episode {index}")
            shown[key] = Shown(video, 0)
        tasks = line.get("tasks")
        if not tasks:
            tasks = [self._task(n) for n in file.integers(rows, "task_index")[:1].tolist()]
        if not isinstance(tasks, list):
            raise UserError(f"{where}: tasks is {str(tasks)[:40]!r}; expected a list of texts")
        known = ("episode_index", "length", "tasks")
        return self._rows.episode(
            index,
            rows,
            file,
            first_row=0,
            tasks=tasks,
            shown=shown,
            metadata={key: value for key, value in line.items() if key not in known},
        )

    def _task(self, number: int) -> str:
        if self._tasks is None:
            self._tasks = {
                line.value.get("task_index"): line.value.get("task")
                for line in json_lines(self.root / TASKS)
            }
        text = self._tasks.get(number)
        if not isinstance(text, str):
            raise UserError(f"{self.root / TASKS}: has no text for task_index {number}")
        return text


def is_v2(root: Path) -> bool:
    """Whether the set's version is 2.x and its list of episodes is there."""
    return (root / EPISODES).is_file() and read_info(root).version.startswith("v2")


def has_interndata_columns(info: ForeignInfo) -> bool:
    """Whether the features are those of InternData-N1: `pose.*`, or 4x4 actions and extrinsics."""
    poses = any(key.startswith("pose.") for key in info.features)
    action = info.features.get("action", {})
    return poses or (
        "observation.camera_extrinsic" in info.features and action.get("shape") == [4, 4]
    )


def episode_lines(path: Path, first: int, stop: int | None) -> Iterator[dict[str, Any]]:
    """Lines of `episodes.jsonl` by episode_index, those in [first, stop).

    Sixteen bytes an episode are held: its index and where its line begins.
    """
    indices, offsets = array("q"), array("q")
    for line in json_lines(path):
        where = f"{path}: line {line.number}: episode_index"
        index = whole(line.value.get("episode_index"), where)
        if first <= index and (stop is None or index < stop):
            indices.append(index)
            offsets.append(line.offset)
    order = np.argsort(np.array(indices, np.int64), kind="stable")
    ordered = np.array(indices, np.int64)[order]
    twice = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(twice):
        raise UserError(f"{path}: episode_index {ordered[twice[0]]} is there twice; remove one")
    if stop is not None and len(ordered) != stop - first:
        raise UserError(
            f"{path}: has {len(ordered)} of the {stop - first} episodes {first}:{stop} of the "
            "split in meta/info.json; copy the file again"
        )
    yield from json_lines_at(path, np.array(offsets, np.int64)[order].tolist())
