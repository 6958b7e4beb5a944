"""Columns of parquet files that others wrote, with every size checked before it is allocated.

A footer states how many rows and bytes a row group holds; both are compared with limits and with
the file before a column is read. Bytes alone bound nothing: a constant takes some bytes for any
number of rows, so files of many episodes are read in batches. What arrow cannot read is a
`UserError` that names the file.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vla_nav.errors import UserError
from vla_nav.files import require_regular

MAX_ROWS_HELD = 1_000_000  # of one episode, or of a table held whole: a day at 10 frames a second

_ROWS, _BYTES = 20_000_000, 1 << 30  # of one row group's columns, uncompressed
_TEXT_BYTES, _ENTRIES = 64 * 2**20, 2_000_000  # of a footer
_BATCH_ROWS = 1 << 16
_FAULTS = (pa.ArrowException, OSError, MemoryError, OverflowError, ValueError)


class ParquetColumns:
    """One open parquet file. names: its columns. groups: rows of each row group."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            require_regular(path)
            self._file = pq.ParquetFile(
                path,
                thrift_string_size_limit=_TEXT_BYTES,
                thrift_container_size_limit=_ENTRIES,
                page_checksum_verification=True,
                pre_buffer=False,
            )
            meta = self._file.metadata
            self.schema: pa.Schema = self._file.schema_arrow
            self.groups = [meta.row_group(g).num_rows for g in range(meta.num_row_groups)]
        except FileNotFoundError:
            raise UserError(
                f"{path}: no such file; copy the data set again, it is incomplete"
            ) from None
        except _FAULTS as error:
            if isinstance(error, UserError):
                raise
            raise UserError(_damaged(path, error)) from None
        self.names = list(self.schema.names)
        (twice, times), *_ = Counter(self.names).most_common(1) or [("", 0)]
        if times > 1:
            raise UserError(
                f"{path}: column '{one_line(twice)}' is there {times} times; remove all but one"
            )
        if any(not 0 <= rows <= _ROWS for rows in self.groups):
            raise UserError(
                f"{path}: a row group states {max(self.groups)} rows; at most {_ROWS} are read"
            )
        if meta.num_rows != self.num_rows:
            raise UserError(
                f"{path}: its footer states {meta.num_rows} rows, its row groups {self.num_rows}; "
                "the file is damaged: copy it again"
            )

    @property
    def num_rows(self) -> int:
        return sum(self.groups)

    def read(self, group: int, columns: Sequence[str]) -> pa.Table:
        """The named columns of one row group, each as one chunk."""
        self._check(group, columns)
        try:
            table = self._file.read_row_group(group, list(columns), use_threads=False)
            table.validate(full=True)
            table = table.combine_chunks()
        except _FAULTS as error:
            raise UserError(_damaged(self.path, error)) from None
        self._check_count(group, table.num_rows)
        return table

    def batches(self, group: int, columns: Sequence[str]) -> Iterator[pa.Table]:
        """As `read`, some rows at a time; run it to its end, or rows may be missing."""
        self._check(group, columns)
        count = 0
        try:
            for batch in self._file.iter_batches(
                _BATCH_ROWS, row_groups=[group], columns=list(columns), use_threads=False
            ):
                batch.validate(full=True)
                count += batch.num_rows
                if count > self.groups[group]:
                    break
                if batch.num_rows:
                    yield pa.Table.from_batches([batch])
        except _FAULTS as error:
            if isinstance(error, UserError):
                raise
            raise UserError(_damaged(self.path, error)) from None
        self._check_count(group, count)

    def values(self, column: pa.ChunkedArray | pa.Table) -> list[Any]:
        """Python's values of a column, or rows of a table; `UserError` where it has none for one,
        such as a date after the year 9999."""
        try:
            return column.to_pylist()
        except _FAULTS as error:
            raise UserError(_damaged(self.path, error)) from None

    def _check(self, group: int, columns: Sequence[str]) -> None:
        """Raise `UserError` unless the columns are there and not too large."""
        missing = [name for name in columns if name not in self.names]
        if missing:
            raise UserError(
                f"{self.path}: has no column '{one_line(missing[0])}'; it has "
                f"{one_line(', '.join(self.names), 200)}"
            )
        try:
            size = self._stated_bytes(group, columns)
        except _FAULTS as error:
            raise UserError(_damaged(self.path, error)) from None
        if size > _BYTES:
            raise UserError(
                f"{self.path}: row group {group} states {size} bytes for "
                f"{one_line(', '.join(columns), 80)}; at most {_BYTES} are read: write it in "
                "smaller row groups"
            )

    def _check_count(self, group: int, count: int) -> None:
        if count != self.groups[group]:
            raise UserError(
                f"{self.path}: row group {group} has {count} rows, its footer states "
                f"{self.groups[group]}; the file is damaged: copy it again"
            )

    def read_all(self, columns: Sequence[str]) -> pa.Table:
        """The named columns of a file that holds one episode, or a table of texts."""
        if self.num_rows > MAX_ROWS_HELD:
            raise UserError(
                f"{self.path}: states {self.num_rows} rows; at most {MAX_ROWS_HELD} are read: cut "
                "it into several"
            )
        tables = [self.read(group, columns) for group in range(len(self.groups))]
        if not tables:
            return self.schema.empty_table().select(list(columns))
        return pa.concat_tables(tables).combine_chunks()

    def integers(self, table: pa.Table, name: str) -> np.ndarray:
        """(rows,) int64 of a column of whole numbers (a list of one number counts)."""
        column = table.column(name)
        kind = column.type
        if _is_list(kind) and len(column):
            values = pa.concat_arrays([chunk.flatten() for chunk in column.chunks])
            if len(values) != len(column):
                raise UserError(
                    f"{self.path}: column '{name}' is {kind} with several numbers a row; "
                    "expected one"
                )
            column, kind = pa.chunked_array([values]), kind.value_type
        if not pa.types.is_integer(kind) and not (pa.types.is_list(kind) and not len(column)):
            raise UserError(f"{self.path}: column '{name}' is {kind}; expected whole numbers")
        if column.null_count:
            raise UserError(f"{self.path}: column '{name}' has {column.null_count} empty values")
        try:
            return column.cast(pa.int64()).to_numpy() if len(column) else np.zeros(0, np.int64)
        except pa.ArrowException as error:
            raise UserError(f"{self.path}: column '{name}': {one_line(error)}") from None

    def floats(self, table: pa.Table, name: str, *, size: int) -> np.ndarray:
        """(rows, size) float64 of a column of numbers or of (nested) lists of them."""
        values: pa.Array = table.column(name).combine_chunks()
        while _is_list(values.type):
            values = values.flatten()
        is_number = pa.types.is_floating(values.type) or pa.types.is_integer(values.type)
        if not is_number or len(values) != table.num_rows * size or values.null_count:
            raise UserError(
                f"{self.path}: column '{name}' is {table.schema.field(name).type} with "
                f"{len(values)} values in {table.num_rows} rows; expected {size} numbers a row"
            )
        return values.cast(pa.float64()).to_numpy(zero_copy_only=False).reshape(-1, size)

    def _stated_bytes(self, group: int, columns: Sequence[str]) -> int:
        meta = self._file.metadata.row_group(group)
        size = 0
        for index in range(meta.num_columns):
            column = meta.column(index)
            path = column.path_in_schema
            if any(path == name or path.startswith(f"{name}.") for name in columns):
                size += max(0, column.total_uncompressed_size)
        return size


class ParquetCache:
    """Files opened last and row groups read last, a few of each."""

    def __init__(self, root: Path, *, files: int = 8, groups: int = 8) -> None:
        self._root, self._most = root, (files, groups)
        self._files: OrderedDict[str, ParquetColumns] = OrderedDict()
        self._groups: OrderedDict[tuple[str, int, tuple[str, ...]], pa.Table] = OrderedDict()

    def open(self, path: str) -> ParquetColumns:
        """The file at `path`, relative to the root."""
        file = self._files.pop(path, None) or ParquetColumns(self._root / path)
        self._files[path] = file
        if len(self._files) > self._most[0]:
            self._files.popitem(last=False)
        return file

    def read(self, path: str, group: int, columns: Sequence[str]) -> pa.Table:
        """As `ParquetColumns.read`."""
        slot = (path, group, tuple(columns))
        table = self._groups.pop(slot, None)
        if table is None:
            table = self.open(path).read(group, columns)
        self._groups[slot] = table
        if len(self._groups) > self._most[1]:
            self._groups.popitem(last=False)
        return table


def _is_list(kind: pa.DataType) -> bool:
    return (
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def _damaged(path: Path, error: BaseException) -> str:
    return f"{path}: not a readable parquet file ({one_line(error)}); it is damaged: copy it again"


def one_line(value: object, most: int = 120) -> str:
    """A text out of a file or a library, for a message: its first line, printable, and short."""
    line = (str(value).splitlines() or [type(value).__name__])[0][:most]
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
