"""Results on disk: one JSON line per finished episode, safe against a kill at any byte.

    <folder>/run.json                   what was run; a second start must agree with it
    <folder>/results-<shard>-of-<n>.jsonl
        {"row": "policy", "dataset": ..., "split": ..., "role": ..., "episode_id": ..., ...}

A line is one `write` in append mode. A kill can tear only the last line; it lacks its newline, is
cut off at the next start and that episode is played again. A lock keeps two processes from
writing the same shard.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from vla_nav.errors import UserError
from vla_nav.files import read_json, write_json

KEY_FIELDS = ("row", "dataset", "split", "role", "episode_id")
Key = tuple[str, str, str, str, str]


def key_of(record: Mapping[str, Any]) -> Key:
    """(row, dataset, split, role, episode_id)."""
    return tuple(record[name] for name in KEY_FIELDS)


def claim_folder(folder: Path, identity: Mapping[str, Any]) -> None:
    """Write `run.json`, or check that the folder belongs to the same run.

    Raises `UserError` naming the first key that differs.
    """
    file = folder / "run.json"
    if not file.exists():
        write_json(file, dict(identity))
        return
    before = read_json(file)
    for name in sorted({*before, *identity}):
        if before.get(name) != identity.get(name):
            raise UserError(
                f"{file}: the results there are of another run ({name} was {before.get(name)!r}, "
                f"is now {identity.get(name)!r}); choose another paths.output_dir or delete it"
            )


class ResultsFile:
    """The results of one shard, open for appending (a context manager)."""

    def __init__(self, folder: Path, *, shard: int = 0, num_shards: int = 1) -> None:
        self.path = folder / f"results-{shard:03d}-of-{num_shards:03d}.jsonl"
        folder.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._descriptor)
            raise UserError(
                f"{self.path}: another process is writing this shard; wait for it, or choose "
                "another evaluation.shard or paths.output_dir"
            ) from None
        self._cut_torn_line()

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one record: one write, so it is there whole or (after a kill) cut off later."""
        line = json.dumps(record, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        try:
            written = os.write(self._descriptor, line)
        except OSError as error:  # a write knows no file name
            error.filename = str(self.path)
            raise
        if written != len(line):
            raise UserError(f"{self.path}: the disk is full; free some space and start again")

    def __enter__(self) -> ResultsFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.fsync(self._descriptor)
        os.close(self._descriptor)

    def _cut_torn_line(self) -> None:
        data = self.path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.ftruncate(self._descriptor, whole)


def read_results(folder: Path) -> dict[Key, dict[str, Any]]:
    """Every whole record of every shard in `folder`, by key.

    Raises `UserError` for a damaged line in mid-file and for a key that stands there twice with
    different outcomes.
    """
    records: dict[Key, dict[str, Any]] = {}
    for path in sorted(folder.glob("results-*.jsonl")):
        lines = path.read_bytes().split(b"\n")[:-1]  # what follows the last newline is torn
        for number, line in enumerate(lines, start=1):
            try:
                record = json.loads(line)
                key = key_of(record)
            except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError):
                raise UserError(
                    f"{path}, line {number}: not a result; delete that line to play the episode "
                    "again"
                ) from None
            if key in records:
                raise UserError(f"{path}, line {number}: {key} was already recorded; delete one")
            records[key] = record
    return records


def missing(expected: Iterable[Key], records: Mapping[Key, Any]) -> list[Key]:
    """The expected keys without a record, in order."""
    return [key for key in expected if key not in records]
