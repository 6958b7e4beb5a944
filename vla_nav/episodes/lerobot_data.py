"""Step rows of recorded parts -> the data parquet files and the videos of a LeRobot v3 data set.

                     part 1          part 2
    episodes      [a   b   c]     [d   e]            order: d a e ...
    steps         |..|...|.|      |....|..|
                                                      d    a   e
    file-000.parquet   row groups of whole episodes  |....|..|..| ...

Row groups hold whole episodes, so reading an episode touches one small group. What a group gets is
first copied into one contiguous block: the bytes written do not depend on how parts were cut.
Images are moved as arrow buffers, never decoded; video clips are joined packet by packet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vla_nav.episodes import lerobot_layout as layout
from vla_nav.episodes.episode_rows import EPISODE_FIELDS
from vla_nav.episodes.lerobot_layout import Conventions, chunk_and_file, image_key
from vla_nav.episodes.step_columns import STEP_COLUMNS
from vla_nav.episodes.video import join_clips
from vla_nav.files import atomic_path

_GROUP_STEPS, _GROUP_BYTES = 128, 4 * 2**20  # a row group is closed at the first of the two
_NUMBER_BYTES = 200  # of one step beside its images, for file sizes


@dataclass(frozen=True)
class Part:
    """One part: its episode rows, and its steps as one table with offsets."""

    episodes: pa.Table
    steps: pa.Table
    offsets: np.ndarray  # (E + 1,) first step of every episode
    image_bytes: np.ndarray  # (steps + 1,) bytes of encoded images before every step
    clips: pa.Array
    sums: pa.Array

    @staticmethod
    def of(table: pa.Table, conventions: Conventions) -> Part:
        """Split a part file's table; nothing is copied but offsets."""
        names = [image_key(name) for name in layout.image_names(conventions)]
        lists = {name: table.column(name).combine_chunks() for name in (*names, *STEP_COLUMNS)}
        offsets = lists["observation.state"].offsets.to_numpy()
        first, num_steps = int(offsets[0]), int(offsets[-1] - offsets[0])
        steps = {name: column.values.slice(first, num_steps) for name, column in lists.items()}
        image_bytes = np.zeros(num_steps + 1, np.int64)
        for name in names:
            data = steps[name].field("bytes")
            if len(data):
                ends = np.frombuffer(data.buffers()[1], np.int32)[data.offset :][: len(data) + 1]
                image_bytes += ends - ends[0]
        return Part(
            episodes=table.select(list(EPISODE_FIELDS)),
            steps=pa.table(steps),
            offsets=offsets - first,
            image_bytes=image_bytes,
            clips=table.column("clips").combine_chunks(),
            sums=table.column("image_sums").combine_chunks(),
        )


class Place(NamedTuple):
    """An episode's part and its row there."""

    part: Part
    row: int

    @property
    def span(self) -> tuple[int, int]:
        """First step and the one after the last, in the part's steps."""
        return int(self.part.offsets[self.row]), int(self.part.offsets[self.row + 1])

    @property
    def num_bytes(self) -> int:
        """About how much the episode takes in a data file."""
        start, stop = self.span
        images = self.part.image_bytes[stop] - self.part.image_bytes[start]
        return int(images) + _NUMBER_BYTES * (stop - start)


def write_data(
    root: Path,
    conventions: Conventions,
    places: Sequence[Place],
    task_index: Sequence[int],
    *,
    file_bytes: int,
) -> tuple[list[str], dict[str, list[Any]]]:
    """Write `data/`. Returns its paths, and the columns of meta/episodes that point there."""
    lengths = [stop - start for start, stop in (place.span for place in places)]
    ends = np.cumsum([0, *lengths])
    columns: dict[str, list[Any]] = {
        "length": lengths,
        "data/chunk_index": [],
        "data/file_index": [],
        "dataset_from_index": ends[:-1].tolist(),
        "dataset_to_index": ends[1:].tolist(),
    }
    schema = layout.data_schema(conventions)
    paths: list[str] = []
    sizes = [place.num_bytes for place in places]
    for number, episodes in enumerate(_files(sizes, file_bytes)):
        chunk, file = chunk_and_file(number)
        paths.append(layout.DATA_PATH.format(chunk_index=chunk, file_index=file))
        with _data_writer(root / paths[-1], schema) as writer:
            for group in _groups(episodes, lengths, sizes):
                rows = [
                    _numbered(places[i], schema, i, int(ends[i]), task_index[i], conventions.fps)
                    for i in group
                ]
                table = pa.concat_tables(rows).combine_chunks()
                writer.write_table(table, row_group_size=max(1, table.num_rows))
        columns["data/chunk_index"] += [chunk] * len(episodes)
        columns["data/file_index"] += [file] * len(episodes)
    return paths, columns


def write_videos(
    root: Path, conventions: Conventions, places: Sequence[Place], *, file_bytes: int
) -> tuple[list[str], dict[str, list[Any]]]:
    """Write `videos/`. Returns the paths and, per video key, where each episode lies in them."""
    paths: list[str] = []
    columns: dict[str, list[Any]] = {}
    lengths = [stop - start for start, stop in (place.span for place in places)]
    for index, name in enumerate(layout.video_names(conventions)):
        key = image_key(name)
        clips = [place.part.clips[place.row][index] for place in places]
        own = {
            field: [] for field in ("chunk_index", "file_index", "from_timestamp", "to_timestamp")
        }
        sizes = [clip.as_buffer().size for clip in clips]
        for number, episodes in enumerate(_files(sizes, file_bytes)):
            chunk, file = chunk_and_file(number)
            path = layout.VIDEO_PATH.format(video_key=key, chunk_index=chunk, file_index=file)
            paths.append(path)
            ends = np.cumsum([0, *(lengths[i] for i in episodes)]) / conventions.fps
            own["chunk_index"] += [chunk] * len(episodes)
            own["file_index"] += [file] * len(episodes)
            own["from_timestamp"] += ends[:-1].tolist()
            own["to_timestamp"] += ends[1:].tolist()
            with atomic_path(root / path) as temporary:
                pairs = ((clips[i].as_py(), lengths[i]) for i in episodes if lengths[i])
                join_clips(temporary, pairs, fps=conventions.fps)
        columns |= {f"videos/{key}/{field}": values for field, values in own.items()}
    return paths, columns


def _files(sizes: Sequence[int], file_bytes: int) -> Iterator[list[int]]:
    """Cut 0, 1, 2, ... into runs of at most `file_bytes` (at least one episode each)."""
    run: list[int] = []
    total = 0
    for number, size in enumerate(sizes):
        if run and total + size > file_bytes:
            yield run
            run, total = [], 0
        run.append(number)
        total += size
    if run:
        yield run


def _groups(
    episodes: Sequence[int], lengths: Sequence[int], sizes: Sequence[int]
) -> Iterator[list[int]]:
    """Cut a file's episodes into row groups."""
    run: list[int] = []
    steps = size = 0
    for number in episodes:
        run.append(number)
        steps += lengths[number]
        size += sizes[number]
        if steps >= _GROUP_STEPS or size >= _GROUP_BYTES:
            yield run
            run, steps, size = [], 0, 0
    if run:
        yield run


@contextmanager
def _data_writer(path: Path, schema: pa.Schema) -> Iterator[pq.ParquetWriter]:
    """A parquet writer whose file appears under its name when it is closed without error."""
    images = {f.name for f in schema if f.type == layout.IMAGE_TYPE}
    numbers = [name for name in schema.names if name not in images]
    compression = {f"{name}.{child}": "NONE" for name in images for child in ("bytes", "path")}
    with (
        atomic_path(path) as temporary,
        pq.ParquetWriter(
            temporary,
            schema,
            compression=compression | {_column_path(schema, name): "ZSTD" for name in numbers},
            use_dictionary=[_column_path(schema, name) for name in numbers],
            write_statistics=[_column_path(schema, name) for name in numbers],
        ) as writer,
    ):
        yield writer


def _column_path(schema: pa.Schema, name: str) -> str:
    """How parquet names the column's values."""
    is_list = pa.types.is_fixed_size_list(schema.field(name).type)
    return f"{name}.list.element" if is_list else name


def _numbered(
    place: Place, schema: pa.Schema, episode: int, index: int, task: int, fps: int
) -> pa.Table:
    """The episode's rows of the data parquet: its steps and their numbers."""
    start, stop = place.span
    steps = place.part.steps.slice(start, stop - start)
    frame = np.arange(stop - start)
    numbers = {
        "next.done": frame == stop - start - 1,
        "timestamp": (frame / fps).astype(np.float32),
        "frame_index": frame,
        "episode_index": np.full(len(frame), episode),
        "index": frame + index,
        "task_index": np.full(len(frame), task),
    }
    columns = [
        pa.array(numbers[f.name], f.type) if f.name in numbers else steps.column(f.name)
        for f in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)
