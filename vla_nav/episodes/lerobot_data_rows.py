"""Rows of one episode in a LeRobot v3 data file, which holds many.

    episode_index   0 0 0 0 0 1 1 1 2 2 2 2 ...      read once, in batches, kept as runs
    runs            (0, row 0) (1, row 5) (2, row 8)
    rows of 1       5, 6, 7                           read in batches, forwards, and only these

However many rows the file has or claims, held are its runs, one batch, and one episode.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from vla_nav.episodes.parquet_columns import MAX_ROWS_HELD, ParquetColumns
from vla_nav.errors import UserError

_MAX_RUNS = 4_000_000  # episodes of one file, 16 bytes each


class DataRows:
    """Rows of the data file asked for last."""

    def __init__(self, root: Path) -> None:
        self._root, self._path = root, ""

    def open(self, path: str) -> ParquetColumns:
        """The file at `path`, relative to the set."""
        if path != self._path:
            self._path = ""
            file = ParquetColumns(self._root / path)
            self._runs = _runs_of(file)
            self._order = np.argsort(self._runs.episodes, kind="stable")
            self._sorted = self._runs.episodes[self._order]
            self._rows = _ForwardRows(file)
            self._file, self._path = file, path
        return self._file

    def span(self, path: str, episode: int) -> tuple[int, int]:
        """First row of an episode in the file, and the one after its last."""
        file = self.open(path)
        low, high = np.searchsorted(self._sorted, [episode, episode + 1])
        if low == high:
            raise UserError(
                f"{file.path}: has no rows of episode {episode}, which meta/episodes places there; "
                "copy the data set again"
            )
        if high - low > 1:
            raise UserError(
                f"{file.path}: rows of episode {episode} do not follow each other; copy the data "
                "set again, or sort its rows by episode_index"
            )
        run = int(self._order[low])
        return int(self._runs.starts[run]), int(self._runs.starts[run + 1])

    def read(self, path: str, first: int, stop: int, columns: Sequence[str]) -> pa.Table:
        """The named columns of rows [first, stop), each as one chunk."""
        self.open(path)
        return self._rows.read(first, stop, tuple(columns))


class _Runs(NamedTuple):
    """episodes: (runs,) int64. starts: (runs + 1,) int64, the first row of each; the end."""

    episodes: np.ndarray
    starts: np.ndarray


def _runs_of(file: ParquetColumns) -> _Runs:
    episodes, starts = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    count, row, last = 0, 0, None
    for group in range(len(file.groups)):
        for table in file.batches(group, ["episode_index"]):
            values = file.integers(table, "episode_index")
            begins = np.flatnonzero(values[1:] != values[:-1]) + 1
            if last is None or values[0] != last:
                begins = np.concatenate([[0], begins])
            count += len(begins)
            if count > _MAX_RUNS:
                raise UserError(
                    f"{file.path}: column 'episode_index' changes more than {_MAX_RUNS} times; "
                    "cut the file into smaller ones, with rows of an episode together"
                )
            episodes.append(values[begins])
            starts.append(begins + row)
            row, last = row + len(values), values[-1]
    return _Runs(np.concatenate(episodes), np.concatenate([*starts, [row]]))


class _ForwardRows:
    """Rows of a file in batches. What comes after the rows read last is not searched for again."""

    def __init__(self, file: ParquetColumns) -> None:
        self._file = file
        self._firsts = np.cumsum([0, *file.groups])  # of each group; the end
        self._restart(0, ())

    def read(self, first: int, stop: int, columns: tuple[str, ...]) -> pa.Table:
        if stop - first > MAX_ROWS_HELD:
            raise UserError(
                f"{self._file.path}: an episode has {stop - first} rows; at most {MAX_ROWS_HELD} "
                "are read: cut it into several"
            )
        group = int(np.searchsorted(self._firsts, first, side="right")) - 1
        if columns != self._columns or first < self._start or self._firsts[group] > self._stop:
            self._restart(group, columns)
        pieces, at = [], first
        try:
            while at < stop:
                while at >= self._stop:
                    self._start, self._batch = self._stop, next(self._batches)
                    self._stop = self._start + self._batch.num_rows
                end = min(stop, self._stop)
                pieces.append(self._batch.slice(at - self._start, end - at))
                at = end
        except UserError:
            self._restart(0, ())
            raise
        return pa.concat_tables(pieces).combine_chunks()

    def _restart(self, group: int, columns: tuple[str, ...]) -> None:
        self._columns = columns
        self._start = self._stop = int(self._firsts[group])
        self._batches = self._from(group, columns)

    def _from(self, group: int, columns: tuple[str, ...]) -> Iterator[pa.Table]:
        for number in range(group, len(self._file.groups)):
            yield from self._file.batches(number, columns)
