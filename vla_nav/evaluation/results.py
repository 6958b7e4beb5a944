"""Results on disk: one JSON line per finished episode, safe against a kill at any byte.

    <folder>/run.json                   what was run; a second start must agree with it
    <folder>/results-<shard>-of-<n>.jsonl
        {"row": "policy", "dataset": ..., "split": ..., "role": ..., "episode_id": ..., ...}
    <folder>/replays-<shard>-of-<n>.jsonl    the same for episodes played again for a check

A line is one `write` in append mode. A kill can tear only the last line; it lacks its newline, is
cut off at the next start and that episode is played again.

No episode can be recorded twice: a start plays what no file of the folder holds, one process at a
time writes a shard, and all that write at a time cut the episodes into equally many shards. Locks
of the file system see to both, over all machines that share the folder:

    results-003-of-008.jsonl   exclusive, held by the shard's process
    .writers-of-008-<plan>     shared by all that play one of 8 shards of the same selection
    .run                       exclusive, while run.json is compared or a report is written
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from vla_nav.errors import UserError
from vla_nav.files import read_json, write_json

KEY_FIELDS = ("row", "dataset", "split", "role", "episode_id")
RESULTS, REPLAYS = "results", "replays"
Key = tuple[str, str, str, str, str]


def key_of(record: Mapping[str, Any]) -> Key:
    """(row, dataset, split, role, episode_id)."""
    return tuple(record[name] for name in KEY_FIELDS)


def claim_folder(folder: Path, identity: Mapping[str, Any]) -> None:
    """Write `run.json`, or check that the folder belongs to the same run.

    Raises `UserError` naming the first key that differs.
    """
    file = folder / "run.json"
    folder.mkdir(parents=True, exist_ok=True)
    with locked_run(folder):
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


@contextmanager
def locked_run(folder: Path) -> Iterator[None]:
    """Hold the files that belong to the whole run; waits for whoever holds them."""
    file = folder / ".run"
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _is_locked(descriptor, fcntl.LOCK_EX, file)
        yield
    finally:
        os.close(descriptor)


class ResultsFile:
    """One shard's records of a kind, open for appending (a context manager)."""

    def __init__(
        self,
        folder: Path,
        *,
        shard: int = 0,
        num_shards: int = 1,
        plan: str = "",
        kind: str = RESULTS,
    ) -> None:
        """plan: a digest of what all shards together play."""
        self.path = folder / f"{kind}-{shard:03d}-of-{num_shards:03d}.jsonl"
        folder.mkdir(parents=True, exist_ok=True)
        self._writers = _join_writers(folder, num_shards, plan)
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        if not _is_locked(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, self.path):
            os.close(self._descriptor)
            os.close(self._writers)
            raise UserError(
                f"{self.path}: another process is writing this shard; wait for it, or choose "
                "another evaluation.shard or paths.output_dir"
            )
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
        os.close(self._writers)

    def _cut_torn_line(self) -> None:
        data = self.path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.ftruncate(self._descriptor, whole)


def read_results(folder: Path, kind: str = RESULTS) -> dict[Key, dict[str, Any]]:
    """Every whole record of every shard in `folder`, by key.

    Raises `UserError` for a damaged line in mid-file and for a key that stands there twice.
    """
    records: dict[Key, dict[str, Any]] = {}
    for path in sorted(folder.glob(f"{kind}-*.jsonl")):
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


def _join_writers(folder: Path, num_shards: int, plan: str) -> int:
    """Hold the place of a process that plays one of `num_shards` shards: a descriptor to close."""
    own = folder / f".writers-of-{num_shards:03d}-{plan}"
    descriptor = os.open(own, os.O_RDWR | os.O_CREAT, 0o644)
    _is_locked(descriptor, fcntl.LOCK_SH, own)
    for other in sorted(folder.glob(".writers-of-*")):
        if other == own:
            continue
        probe = os.open(other, os.O_RDWR)
        is_free = _is_locked(probe, fcntl.LOCK_EX | fcntl.LOCK_NB, other)
        os.close(probe)
        if not is_free:
            os.close(descriptor)
            count = int(other.name.split("-")[2])
            raise UserError(
                f"{folder}: another process is playing one of {count} shards of a selection here, "
                f"and this one would play {num_shards} shards of the same or another; wait for it, "
                f"or give its evaluation.num_shards={count}, rows and num_episodes"
            )
    return descriptor


def _is_locked(descriptor: int, operation: int, file: Path) -> bool:
    """Take a lock; False where another process holds it. A file system without locks is refused:
    nothing else keeps two machines from recording one episode twice."""
    try:
        fcntl.flock(descriptor, operation)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise UserError(
            f"{file}: the file system there takes no locks ({error.strerror}); choose a "
            "paths.output_dir on one that does (a cluster may need the mount option 'flock')"
        ) from None
    return True
