"""The `meta/` folder of a LeRobot v3 data set: episodes, tasks, statistics, checksums, info.json.

`meta/episodes` has LeRobot's own columns (offsets, files, tasks, length) and ours (`nav/*`, see
`episode_rows`), so everything of an episode except pixels is read from there. `info.json` comes
last: a folder without it is not a data set.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from vla_nav.episodes import lerobot_layout as layout
from vla_nav.episodes.episode_rows import EPISODE_FIELDS
from vla_nav.episodes.lerobot_data import Place
from vla_nav.episodes.lerobot_layout import Conventions, chunk_and_file, image_key
from vla_nav.files import atomic_path, file_digest, write_json

_GROUP_EPISODES, _FILE_EPISODES = 256, 51_200  # in a row group and in a file of meta/episodes
_QUIET = ("nav/frame_key", "nav/digest")  # random bytes: no dictionary for them


def write_meta(
    root: Path,
    conventions: Conventions,
    places: Sequence[Place],
    tasks: Sequence[str],
    task_index: Sequence[int],
    columns: dict[str, list[Any]],
    written: Sequence[str],
) -> None:
    """Write `meta/`, `info.json` last.

    tasks: the distinct instructions, task_index: one per episode. columns: where each episode lies
    (from `write_data` and `write_videos`). written: the files there are already, for checksums.
    """
    files = [*written, *_write_episodes(root, places, tasks, task_index, columns)]
    with atomic_path(root / layout.TASKS) as path:
        pq.write_table(_tasks_table(tasks), path)
    write_json(root / layout.STATS, _stats(conventions, places, columns))
    files += [layout.TASKS, layout.STATS]
    sums = {
        path: {"xxh3": file_digest(root / path), "bytes": (root / path).stat().st_size}
        for path in sorted(files)
    }
    write_json(root / layout.CHECKSUMS, sums)
    stated = conventions.to_json()
    fingerprint = xxhash.xxh3_128(json.dumps(stated, sort_keys=True).encode())
    for part, row in places:
        fingerprint.update(part.episodes.column("nav/digest")[row].as_py().encode())
    total = columns["dataset_to_index"][-1]
    info = {
        "codebase_version": layout.CODEBASE_VERSION,
        "robot_type": "vla_nav",
        "total_episodes": len(places),
        "total_frames": total,
        "total_tasks": len(tasks),
        "chunks_size": layout.CHUNK_FILES,
        "data_files_size_in_mb": layout.DATA_FILE_BYTES // 2**20,
        "video_files_size_in_mb": layout.VIDEO_FILE_BYTES // 2**20,
        "fps": conventions.fps,
        "splits": {conventions.split: f"0:{len(places)}"},
        "data_path": layout.DATA_PATH,
        "video_path": layout.VIDEO_PATH if layout.video_names(conventions) else None,
        "features": layout.features(conventions),
        "vla_nav": stated
        | {
            "fingerprint": fingerprint.hexdigest(),
            "checksums": file_digest(root / layout.CHECKSUMS),
        },
    }
    write_json(root / layout.INFO, info)


def _write_episodes(
    root: Path,
    places: Sequence[Place],
    tasks: Sequence[str],
    task_index: Sequence[int],
    columns: dict[str, list[Any]],
) -> list[str]:
    parts = list({id(place.part): place.part for place in places}.values())
    first_row = dict(
        zip(map(id, parts), np.cumsum([0, *(p.episodes.num_rows for p in parts)]), strict=False)
    )
    rows = [int(first_row[id(part)]) + row for part, row in places]
    everything = pa.concat_tables([part.episodes for part in parts]).combine_chunks()
    paths = []
    for number, start in enumerate(range(0, len(places), _FILE_EPISODES)):
        chunk, file = chunk_and_file(number)
        own = slice(start, start + _FILE_EPISODES)
        count = len(rows[own])
        lerobot = {
            "episode_index": list(range(start, start + count)),
            "tasks": [[tasks[index]] for index in task_index[own]],
            **{name: values[own] for name, values in columns.items()},
            "meta/episodes/chunk_index": [chunk] * count,
            "meta/episodes/file_index": [file] * count,
        }
        ours = everything.take(pa.array(rows[own]))
        table = pa.table(
            lerobot | {name: ours.column(name).combine_chunks() for name in EPISODE_FIELDS}
        )
        paths.append(layout.EPISODES_PATH.format(chunk_index=chunk, file_index=file))
        with atomic_path(root / paths[-1]) as path:
            pq.write_table(
                table,
                path,
                compression="zstd",
                row_group_size=_GROUP_EPISODES,
                write_statistics=False,
                use_dictionary=_dictionary_columns(table.schema),
            )
    return paths


def _dictionary_columns(schema: pa.Schema) -> list[str]:
    return [
        f"{f.name}.list.element" if pa.types.is_list(f.type) else f.name
        for f in schema
        if f.name not in _QUIET
    ]


def _tasks_table(tasks: Sequence[str]) -> pa.Table:
    """LeRobot reads this file with pandas and expects the instruction as the index."""
    columns = [
        {"name": "task_index", "field_name": "task_index", "pandas_type": "int64"}
        | {"numpy_type": "int64", "metadata": None},
        {"name": "task", "field_name": "task", "pandas_type": "unicode"}
        | {"numpy_type": "object", "metadata": None},
    ]
    pandas = {"index_columns": ["task"], "column_indexes": [], "columns": columns}
    table = pa.table({"task_index": pa.array(range(len(tasks)), pa.int64()), "task": list(tasks)})
    return table.replace_schema_metadata({"pandas": json.dumps(pandas)})


def _stats(
    conventions: Conventions, places: Sequence[Place], columns: dict[str, list[Any]]
) -> dict[str, Any]:
    """Minimum, maximum, mean, standard deviation and count of every numeric and image feature.

    Images count with the first frame of every episode, RGB in [0, 1], depth in millimetres.
    """
    stats: dict[str, Any] = {}
    for name in ("observation.state", "action"):
        values = np.concatenate(
            [
                place.part.steps.column(name)
                .slice(place.span[0], place.span[1] - place.span[0])
                .combine_chunks()
                .flatten()
                .to_numpy()
                for place in places
            ]
        ).astype(np.float64)
        width = layout.NUMBER_COLUMNS[name].list_size
        stats[name] = _summary(values.reshape(-1, width))
    sums = np.array([part.sums[row].as_py() for part, row in places], np.int64)  # (E, all sums)
    at = 0
    for name in layout.frame_names(conventions.embodiment):
        channels = 1 if name.endswith(".depth") else 3
        own = sums[:, at : at + 5 * channels].reshape(len(places), 5, channels)
        at += 5 * channels
        own = own[own[:, 0, 0] > 0]
        if len(own):
            stats[image_key(name)] = _image_summary(own, 255.0 if channels == 3 else 1.0)
    return stats


def _summary(values: np.ndarray) -> dict[str, list[float]]:
    """values: (steps, width) float64."""
    if not len(values):
        return {"count": [0]}
    return {
        "min": values.min(0).tolist(),
        "max": values.max(0).tolist(),
        "mean": values.mean(0).tolist(),
        "std": values.std(0).tolist(),
        "count": [len(values)],
    }


def _image_summary(sums: np.ndarray, scale: float) -> dict[str, list[Any]]:
    """sums: (frames, 5, C) of `image_sums`; values are shaped (C, 1, 1) as LeRobot has them."""
    count = sums[:, 0].sum(0)
    mean = sums[:, 3].sum(0) / count
    variance = sums[:, 4].sum(0) / count - mean**2
    values = {
        "min": sums[:, 1].min(0) / scale,
        "max": sums[:, 2].max(0) / scale,
        "mean": mean / scale,
        "std": np.sqrt(np.maximum(variance, 0)) / scale,
    }
    shaped = {name: value.reshape(-1, 1, 1).tolist() for name, value in values.items()}
    return shaped | {"count": [len(sums)]}
