"""LeRobot v3 data sets of others: many episodes a file, and each camera cut into files of its own.

    episode                0    1    2    3            meta/episodes, one row an episode
    data  chunk, file      0,0  0,0  0,0  0,0          data/chunk_index, data/file_index
    front chunk, file      0,0  0,0  0,1  0,2          videos/<front>/chunk_index, file_index,
          from_timestamp   0    1.5  0    0            from_timestamp, to_timestamp

A camera's file and first frame come from the camera's own columns; a public trainer that took the
data's file number for them read frames of other episodes. The first frame's number is
from_timestamp * fps, and the two time stamps must span as many frames as the episode has rows.
Rows are found by their `episode_index`, not by counting.

Source: huggingface/lerobot at 7427f31, src/lerobot/datasets/{dataset_metadata,dataset_reader,
utils}.py and src/lerobot/scripts/convert_dataset_v21_to_v30.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from vla_nav.episodes.annotations import ResumedEpisodes
from vla_nav.episodes.lerobot_data_rows import DataRows
from vla_nav.episodes.lerobot_frames import LeRobotFrames
from vla_nav.episodes.lerobot_meta_files import (
    ForeignInfo,
    fill,
    find_root,
    number,
    read_info,
    require_root,
    whole,
)
from vla_nav.episodes.lerobot_rows import EpisodeRows, Shown, dataset_name, each_or_error
from vla_nav.episodes.parquet_columns import ParquetColumns
from vla_nav.episodes.source import SourceFacts
from vla_nav.episodes.types import Episode
from vla_nav.episodes.video_index import stated_frames
from vla_nav.episodes.video_spans import VideoSpan
from vla_nav.errors import UserError

EPISODES, TASKS = "meta/episodes", "meta/tasks.parquet"
_OWN = ("episode_index", "tasks", "length", "dataset_from_index", "dataset_to_index")
_PREFIXES = ("data/", "videos/", "stats/", "meta/episodes/")
_SLACK = 0.26  # of a frame: how far a time stamp may lie from a frame's


def detect(path: Path, split: str) -> bool:
    """Whether `path` or `path/<split>` is a v3 set that we did not record."""
    root = find_root(path, split)
    if root is None or not (root / EPISODES).is_dir():
        return False
    info = read_info(root)
    return info.version.startswith("v3") and not isinstance(info.raw.get("vla_nav"), dict)


def open_source(path: Path, *, split: str, role: str = "") -> LeRobotV3Source:
    """The set; `UserError` where it is none, or another version."""
    root = require_root(Path(path), split)
    info = read_info(root)
    if not info.version.startswith("v3"):
        raise UserError(f"{info.path}: codebase_version is '{info.version}'; lerobot_v3 reads v3.0")
    return LeRobotV3Source(info, split, role)


class LeRobotV3Source:
    """Episodes of a v3 set, row group by row group of `meta/episodes`."""

    def __init__(self, info: ForeignInfo, split: str, role: str) -> None:
        self.root, self.split = info.root, split
        self._info = info
        self._rows = EpisodeRows(
            info, dataset=dataset_name(info.root, split), split=split, role=role
        )
        self._range = info.episode_range(split)
        self.facts: SourceFacts = self._rows.facts("lerobot_v3")
        self.frames = LeRobotFrames(info.root)
        self._texts: dict[int, str] | None = None

    def __iter__(self) -> Iterator[Episode]:
        data = DataRows(self.root)
        counts: dict[str, int] = {}  # frames of the video read last, of each camera

        def read(row: Mapping[str, Any]) -> Episode:
            return self._episode(row, data, counts)

        return ResumedEpisodes(each_or_error(self._entries(), read))

    def video_spans(self) -> Iterator[VideoSpan]:
        """Where every episode's frames are said to be, without opening a video.

        Rows that name no place are passed over: reading their episodes says why.
        """
        for row in self._entries():
            with suppress(UserError):
                yield from self._spans(row).values()

    def _entries(self) -> Iterator[dict[str, Any]]:
        """Rows of `meta/episodes` of the split."""
        first, stop = self._range
        last, found = -1, 0
        for path in sorted((self.root / EPISODES).glob("*/*.parquet")):
            file = ParquetColumns(path)
            columns = [name for name in file.names if not name.startswith(("stats/", "meta/"))]
            for group in range(len(file.groups)):
                for index, row in _numbered_rows(file, group, columns):
                    if index <= last:
                        raise UserError(
                            f"{path}: episode_index {index} comes after {last}; expected ascending "
                            "numbers: the file is damaged, or episodes are there twice"
                        )
                    last = index
                    if first <= index and (stop is None or index < stop):
                        found += 1
                        yield row
        if stop is not None and found != stop - first:
            raise UserError(
                f"{self.root / EPISODES}: has {found} of the {stop - first} episodes {first}:{stop}"
                " of the split in meta/info.json; copy the folder again"
            )

    def _episode(
        self,
        row: Mapping[str, Any],
        data: DataRows,
        counts: dict[str, int],
    ) -> Episode:
        index = row["episode_index"]
        where = f"{self.root / EPISODES}: episode {index}"
        path = fill(self._info.data_path, self._info.path, **_place(row, "data", where))
        source = data.open(path)
        columns = self._rows.columns(source)
        first_row, stop_row = data.span(path, index)
        length = whole(row.get("length"), f"{where}: length")
        if stop_row - first_row != length:
            raise UserError(
                f"{where}: length is {length}, {path} has {stop_row - first_row} rows of it; the "
                "file is cut short, or meta/ belongs to another version of the set"
            )
        rows = data.read(path, first_row, stop_row, columns)
        spans = self._spans(row)
        for span in spans.values():
            if span.stop - span.first != length:
                raise UserError(
                    f"{where}: {span.key} spans {span.stop - span.first} frames of {span.video}, "
                    f"length is {length}; its time stamps or its fps are wrong"
                )
            self._check_video(span, where, counts)
        tasks = row.get("tasks")
        if not tasks:
            tasks = [self._text(n) for n in source.integers(rows, "task_index")[:1].tolist()]
        return self._rows.episode(
            index,
            rows,
            source,
            first_row=first_row,
            tasks=tasks if isinstance(tasks, list) else [tasks],
            shown={span.key: Shown(span.video, span.first) for span in spans.values()},
            metadata={
                key: value
                for key, value in row.items()
                if key not in _OWN and not key.startswith(_PREFIXES)
            },
        )

    def _spans(self, row: Mapping[str, Any]) -> dict[str, VideoSpan]:
        spans = {}
        index = row["episode_index"]
        where = f"{self.root / EPISODES}: episode {index}"
        for key in self._info.cameras("video"):
            place = _place(row, f"videos/{key}", where)
            video = fill(self._info.video_path or "", self._info.path, video_key=key, **place)
            ends = []
            for name in ("from_timestamp", "to_timestamp"):
                column = f"videos/{key}/{name}"
                frame = number(row.get(column), f"{where}: {column}") * self._fps(key)
                if not 0 <= frame < 1e12 or abs(frame - round(frame)) > _SLACK:
                    raise UserError(
                        f"{where}: {column} is {row[column]}, frame {frame:.3f} at "
                        f"{self._fps(key):g} fps; expected the time of a frame"
                    )
                ends.append(round(frame))
            spans[key] = VideoSpan(index, key, video, *ends)
        return spans

    def _fps(self, key: str) -> float:
        info = self._info.features[key].get("info")
        stated = info.get("video.fps") if isinstance(info, dict) else None
        return float(stated) if isinstance(stated, int | float) and stated > 0 else self._info.fps

    def _check_video(self, span: VideoSpan, where: str, counts: dict[str, int]) -> None:
        slot = f"{span.key}\n{span.video}"
        if slot not in counts:
            for other in [name for name in counts if name.startswith(f"{span.key}\n")]:
                del counts[other]
            counts[slot] = stated_frames(self.root / span.video)
        if span.stop > counts[slot]:
            raise UserError(
                f"{where}: {span.key} is frames {span.first} to {span.stop - 1} of {span.video}, "
                f"which has {counts[slot]}; the video is cut short, or is another version"
            )

    def _text(self, task: int) -> str:
        if self._texts is None:
            file = ParquetColumns(self.root / TASKS)
            texts = [n for n in file.names if n != "task_index"]
            if "task_index" not in file.names or not texts:
                raise UserError(f"{file.path}: has columns {file.names}; expected task_index, task")
            name = "task" if "task" in texts else texts[0]
            table = file.read_all(["task_index", name])
            numbers = file.integers(table, "task_index").tolist()
            self._texts = dict(zip(numbers, file.values(table.column(name)), strict=True))
        text = self._texts.get(task)
        if not isinstance(text, str):
            raise UserError(f"{self.root / TASKS}: has no text for task_index {task}")
        return text


def _place(row: Mapping[str, Any], prefix: str, where: str) -> dict[str, int]:
    """chunk_index and file_index of the data, or of one camera's video."""
    names = ("chunk_index", "file_index")
    return {
        name: whole(row.get(f"{prefix}/{name}"), f"{where}: {prefix}/{name}", most=10**9)
        for name in names
    }


def _numbered_rows(
    file: ParquetColumns, group: int, columns: Sequence[str]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(episode_index, row) of a row group of `meta/episodes`, some in memory at a time."""
    for table in file.batches(group, columns):
        indices = file.integers(table, "episode_index").tolist()
        for at in range(0, len(indices), 256):
            yield from zip(indices[at : at + 256], file.values(table.slice(at, 256)), strict=True)
