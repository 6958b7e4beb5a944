"""`annotations.json`: one array of records (or one record a line), read one record at a time.

    [{"id": 7, ...},                     StreamVLN: a record is a trajectory
     {"id": 8, ...}]                     NaVILA: a record is a decision of some video

At most one record and one block of the file are in memory. NaVILA's R2R file is one
line of 317 MB.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vla_nav.errors import UserError

FILE_NAME = "annotations.json"
MAX_RECORD_CHARACTERS = 16 * 2**20  # the longest public record has about 12 thousand
_BLOCK_BYTES = 1 << 20
_BLANKS = " \t\r\n"


def annotations_file(path: Path, split: str) -> Path | None:
    """The annotations of `split`: `path` itself, `path/<split>/`, or `path/annotations.json`."""
    if path.is_file():
        return path if path.suffix == ".json" else None
    for folder in (path / split, path):
        if (folder / FILE_NAME).is_file():
            return folder / FILE_NAME
    return None


def first_keys(file: Path) -> frozenset[str]:
    """The keys of the first record; empty where the file has none or is none."""
    try:
        for record in read_records(file):
            return frozenset(record)
    except UserError:
        pass
    return frozenset()


def read_records(file: Path) -> Iterator[dict[str, Any]]:
    """The records of a file in its order. Raises `UserError` naming the record that is damaged."""
    text = _Text(file)
    is_array = text.take("[")
    number = 0
    while text.rest():
        if is_array and text.take("]"):
            if text.rest():
                raise UserError(f"{file}: text after the end of its array; download it again")
            return
        if number and is_array and not text.take(","):
            raise UserError(f"{file}: no ',' or ']' after record number {number - 1}; damaged")
        record = text.value(f"record number {number}")
        if not isinstance(record, dict):
            shown = repr(record)[:60]
            raise UserError(f"{file}: record number {number} is {shown}; allowed: an object")
        yield record
        number += 1
    if is_array:
        raise UserError(f"{file}: cut short after record number {number - 1}; download it again")
    if not number:
        raise UserError(f"{file}: empty; allowed: an array of records")


class _Text:
    """The characters of a file from a position on; what is behind it is let go."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._blocks = _blocks(file)
        self._buffer = ""
        self._at = 0
        self._decoder = json.JSONDecoder(parse_constant=_no_constant)

    def rest(self) -> bool:
        """Skip blanks; whether anything follows."""
        while True:
            while self._at < len(self._buffer) and self._buffer[self._at] in _BLANKS:
                self._at += 1
            if self._at < len(self._buffer):
                return True
            if not self._more(1):
                return False

    def take(self, mark: str) -> bool:
        """Skip blanks and, if it follows, `mark`; whether it did."""
        if self.rest() and self._buffer[self._at] == mark:
            self._at += 1
            return True
        return False

    def value(self, what: str) -> Any:
        """The JSON value that follows."""
        self.rest()
        while True:
            try:
                value, self._at = self._decoder.raw_decode(self._buffer, self._at)
                return value
            except json.JSONDecodeError as error:
                fault = error.msg
            except (ValueError, RecursionError) as error:
                raise UserError(f"{self._file}: {what} is damaged ({error})") from None
            size = len(self._buffer) - self._at
            if size > MAX_RECORD_CHARACTERS:
                raise UserError(
                    f"{self._file}: {what} is damaged ({fault}), or longer than "
                    f"{MAX_RECORD_CHARACTERS} characters"
                )
            if not self._more(size):  # doubling: every character is parsed a few times at most
                raise UserError(
                    f"{self._file}: {what} is damaged or cut short ({fault}); download it again"
                )

    def _more(self, num_characters: int) -> bool:
        parts = [self._buffer[self._at :]]
        self._at = 0
        size = 0
        for block in self._blocks:
            parts.append(block)
            size += len(block)
            if size >= num_characters:
                break
        self._buffer = "".join(parts)
        return size > 0


def _blocks(file: Path) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    try:
        with file.open("rb") as stream:
            while data := stream.read(_BLOCK_BYTES):
                yield decoder.decode(data)
        yield decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: not UTF-8 text ({error}); download it again") from None
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error})") from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")
