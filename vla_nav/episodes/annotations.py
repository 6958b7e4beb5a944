"""`annotations.json`: one array of records (or one record a line), read one record at a time.

[{"id": 7, ...},                     StreamVLN: a record is a trajectory
 {"id": 8, ...}]                     NaVILA: a record is a decision of some video
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vla_nav.episodes.json_stream import MAX_VALUE_CHARS, JsonFile
from vla_nav.episodes.source import EpisodeError
from vla_nav.episodes.types import Episode
from vla_nav.errors import UserError

FILE_NAMES = ("annotations.json", "annotations.json.gz", "annotations.json.zst")
_MAX_FIRST_CHARS = (
    2**20
)  # of the record that tells the format; 500 paths of pictures take some 20,000


def annotations_file(path: Path, split: str) -> Path | None:
    """The annotations of `split`: `path` itself, `path/<split>/`, or `path/annotations.json`."""
    if path.is_file():
        return path if ".json" in path.suffixes else None
    for folder in (path / split, path):
        for name in FILE_NAMES:
            if os.path.lexists(folder / name):  # what is no file is refused when it is opened
                return folder / name
    return None


def found_annotations(path: Path, split: str) -> Path:
    """The same. Raises `UserError` where there are none."""
    file = annotations_file(path, split)
    if file is None:
        raise UserError(
            f"{path}: no {FILE_NAMES[0]}, nor {split}/{FILE_NAMES[0]}; correct data.path"
        )
    return file


def first_record(file: Path) -> dict[str, Any]:
    """The first record; {} where the file has none, it is too long or it cannot be read."""
    try:
        return next(read_records(file, max_chars=_MAX_FIRST_CHARS), {})
    except UserError:
        return {}


def read_records(file: Path, *, max_chars: int = MAX_VALUE_CHARS) -> Iterator[dict[str, Any]]:
    """The records of a file in its order, each of at most `max_chars` characters.

    Raises `UserError` where the file is damaged.
    """
    with JsonFile(file, max_value_chars=max_chars) as json_file:
        is_array = json_file.opening() == "["
        values = json_file.elements() if is_array else _values(json_file)
        number = -1
        for number, record in enumerate(values):
            if not isinstance(record, dict):
                shown = repr(record)[:60]
                raise UserError(f"{file}: record number {number} is {shown}; allowed: an object")
            yield record
        json_file.finish()
        if number < 0:
            raise UserError(f"{file}: has no record; allowed: an array of records")


def fault(file: Path, who: str, key: str, value: Any, allowed: str) -> EpisodeError:
    """The error for a key of one record. who: "episode 7", or "record number 3"."""
    shown = "missing" if value is None else repr(value)[:60]
    episode_id = who.removeprefix("episode ") if who.startswith("episode ") else ""
    return EpisodeError(f"{file}: {who}: key {key} is {shown}; allowed: {allowed}", episode_id, key)


def as_episode_error(error: UserError) -> EpisodeError:
    """The same fault, as one of a single episode."""
    return error if isinstance(error, EpisodeError) else EpisodeError(str(error))


class ResumedEpisodes(Iterator[Episode]):
    """Episodes in which an `EpisodeError` takes the place of one that cannot be read; it is
    raised, and the next call goes on after it."""

    def __init__(self, found: Iterator[Episode | EpisodeError]) -> None:
        self._found = found

    def __next__(self) -> Episode:
        value = next(self._found)
        if isinstance(value, EpisodeError):
            raise value
        return value


def _values(json_file: JsonFile) -> Iterator[Any]:
    while json_file.opening():
        yield json_file.value()
