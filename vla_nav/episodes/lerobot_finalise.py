"""Assemble recorded parts into the final LeRobot v3 data set.

    parts/*.arrow --check, order--> data/ videos/ --> meta/{episodes,tasks,stats,checksums}
                                                  --> meta/info.json --> parts/ removed

Every final file is a function of the episodes and their order alone. A process killed in between
leaves the parts as they were; the next call starts over from them.
"""

from __future__ import annotations

import errno
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from vla_nav.episodes import lerobot_layout as layout
from vla_nav.episodes.episode_rows import KEY_COLUMNS
from vla_nav.episodes.lerobot_data import Part, Place, write_data, write_videos
from vla_nav.episodes.lerobot_layout import Conventions
from vla_nav.episodes.lerobot_meta import write_meta
from vla_nav.errors import UserError
from vla_nav.files import read_json, remove_leftovers, require_free_space

_FULL_DISK = (errno.ENOSPC, errno.EDQUOT)


class DiskFullError(UserError):
    """The disk is full: nothing is wrong with the episode that was being written."""


def finalise(
    root: str | Path,
    order: Sequence[tuple[str, str, str, str]] | None = None,
    *,
    data_file_bytes: int = layout.DATA_FILE_BYTES,
    video_file_bytes: int = layout.VIDEO_FILE_BYTES,
) -> None:
    """Turn the parts under `root` into a LeRobot v3 data set and remove them.

    order: the episode keys in their final order, each recorded once; by default all that were
    recorded, sorted by key. Does nothing where the data set is finished already. Raises `UserError`
    for missing, unexpected or contradictory episodes, damaged parts, or too little disk space; the
    parts stay as they were then.
    """
    root = Path(root)
    parts_folder = root / layout.PARTS
    if not (root / layout.INFO).exists():
        stated = root / layout.CONVENTIONS
        conventions = Conventions.from_json(read_json(stated), stated)
        paths = sorted(parts_folder.glob("part-*.arrow"))
        if not paths:
            raise UserError(f"{parts_folder}: holds no recorded episodes; record some first")
        num_bytes = sum(path.stat().st_size for path in paths)
        require_free_space(root, num_bytes, what="the final data set")
        parts = [Part.of(open_part(path), conventions) for path in paths]
        places = _places(parts, order, root)
        remove_leftovers(root)
        for folder in ("data", "videos", "meta"):
            shutil.rmtree(root / folder, ignore_errors=True)
        with disk_space_errors(root):
            _write(root, conventions, places, data_file_bytes, video_file_bytes)
    shutil.rmtree(parts_folder, ignore_errors=True)


def open_part(path: Path) -> pa.Table:
    """A part file, memory-mapped. Raises `UserError` where it is damaged."""
    try:
        with pa.memory_map(str(path)) as source:
            return pa.ipc.open_file(source).read_all()
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(
            f"{path}: damaged part ({error}); delete it and record again, "
            "only its own episodes are recorded anew"
        ) from None


@contextmanager
def disk_space_errors(target: Path) -> Iterator[None]:
    """Turn a full disk into a `DiskFullError` that names the file."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL_DISK:
            raise
        raise DiskFullError(
            f"{target}: the disk is full; free some space and start again, what was written stays"
        ) from None


def _write(
    root: Path,
    conventions: Conventions,
    places: list[Place],
    data_file_bytes: int,
    video_file_bytes: int,
) -> None:
    tasks: dict[str, int] = {}
    task_index = []
    for part, row in places:
        task = part.episodes.column("nav/instruction")[row].as_py()
        task_index.append(tasks.setdefault(task, len(tasks)))
    data, columns = write_data(root, conventions, places, task_index, file_bytes=data_file_bytes)
    videos, video_columns = write_videos(root, conventions, places, file_bytes=video_file_bytes)
    write_meta(
        root, conventions, places, list(tasks), task_index, columns | video_columns, data + videos
    )


def _places(
    parts: list[Part], order: Sequence[tuple[str, str, str, str]] | None, root: Path
) -> list[Place]:
    """Where every episode lies, in final order."""
    found: dict[tuple[str, ...], Place] = {}
    digests: dict[tuple[str, ...], str] = {}
    for part in parts:
        columns = [part.episodes.column(name).to_pylist() for name in (*KEY_COLUMNS, "nav/digest")]
        for row, (*key_parts, digest) in enumerate(zip(*columns, strict=True)):
            key = tuple(key_parts)
            if digests.setdefault(key, digest) != digest:
                raise UserError(
                    f"{root / layout.PARTS}: episode {'/'.join(key)} was recorded twice with "
                    "different content; delete the folder and record again"
                )
            found.setdefault(key, Place(part, row))
    wanted = sorted(found) if order is None else [tuple(key) for key in order]
    for kind, keys in (
        ("listed twice", {key for key, count in Counter(wanted).items() if count > 1}),
        ("not recorded", set(wanted) - set(found)),
        ("recorded but not listed", set(found) - set(wanted)),
    ):
        if keys:
            raise UserError(
                f"{root}: {len(keys)} episodes are {kind}, e.g. {'/'.join(min(keys))}; "
                "nothing was finalised"
            )
    return [found[key] for key in wanted]
