"""Reading a JSON file piece by piece: a window of text moves over a gzip, zstd or plain file.

    with JsonFile("train.json.gz") as file:       {"episodes": [{...}, {...}, ...], "vocab": ...}
        for key in file.members():                              ^ window ^
            if key == "episodes":
                for raw in file.elements(): ...   one episode decoded at a time
            else:
                shared[key] = file.value()        decoded whole

What is not asked for is checked and skipped. Memory: one value (at most `MAX_VALUE_CHARS`) and one
block. A file that expands to more than `MAX_EXPANSION` times its size is refused. Values are
decoded by the standard library, so they are what `json.loads` gives.
"""

from __future__ import annotations

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from vla_nav.errors import UserError
from vla_nav.files import require_regular

MAX_VALUE_CHARS = 2**24  # of one episode or one shared entry; an episode of R2R-CE has about 2,000
MAX_EXPANSION = 200  # of a compressed file, beyond its first 64 MiB; episode files expand tenfold
_FREE_BYTES = 2**26
_BLOCK_BYTES = 2**20
_NEAR_END = 32  # a literal or escape that the window cuts has its error this near to the end
_CUT_NUMBER = 3  # "1e+" cut from "1e+5" decodes as 1 with this much left over
_SPACE = re.compile(r"[ \t\n\r]*")
_GZIP_MAGIC, _ZSTD_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_DAMAGE = (EOFError, zlib.error, OSError, pa.ArrowException)  # BadGzipFile is an OSError


class JsonFile:
    """A file of one JSON value, read from its beginning to its end; a context manager.

    `UserError` names the file where it is missing, damaged, cut short, not JSON, or holds a value
    that is too large.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        block_bytes: int = _BLOCK_BYTES,
        max_value_chars: int = MAX_VALUE_CHARS,
    ) -> None:
        self.path = Path(path)
        self._block_bytes, self._max_chars = block_bytes, max_value_chars
        self._raw = _open(self.path)
        try:
            self._bytes = _decompressed(self._raw)
        except _DAMAGE as error:
            self._raw.close()
            raise UserError(f"{self.path}: cannot be read ({error})") from None
        self._utf8 = codecs.getincrementaldecoder("utf-8-sig")()
        self._scan = json.JSONDecoder().raw_decode
        self._text, self._at, self._passed = "", 0, 0  # window, place in it, characters before it
        self._left_bytes = max(_FREE_BYTES, MAX_EXPANSION * self.path.stat().st_size)
        self._is_end = False
        self._is_due = False  # the value after a key was announced and not yet taken

    def __enter__(self) -> JsonFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._bytes.close()
        self._raw.close()

    def opening(self) -> str:
        """The first character of the next value: "{", "[", ... or "" at the end of the file."""
        blank = 0
        while True:
            end = _SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]
            blank, self._at = blank + end - self._at, end
            if end < len(self._text):
                return self._text[end]
            if blank > self._max_chars:
                raise self._error(f"has more than {self._max_chars} blanks in a row")
            if not self._more():
                return ""

    def members(self) -> Iterator[str]:
        """The keys of the object that is next; take its value, or it is skipped.

        Run it to its end: the rest of the file is read, so damage anywhere is found.
        """
        self._take("{")
        if self.opening() == "}":
            self._at += 1
        else:
            while True:
                if self.opening() != '"':
                    raise self._error("not valid JSON (expected a key in quotes)")
                key = self._decoded()[0]
                self._take(":")
                self._is_due = True
                yield key
                if self._is_due:
                    self._skip()
                if self._has_ended("}"):
                    break
        self._is_due = False

    def elements(self) -> Iterator[Any]:
        """The decoded elements of the list that is next."""
        self._is_due = False
        self._take("[")
        if self.opening() == "]":
            self._at += 1
            return
        while True:
            yield self._decoded()[0]
            if self._has_ended("]"):
                return

    def value(self) -> Any:
        """The next value, decoded whole."""
        self._is_due = False
        return self._decoded()[0]

    def text(self) -> str:
        """The next value as JSON text, checked."""
        self._is_due = False
        return self._decoded()[1]

    def finish(self) -> None:
        """Raise `UserError` unless nothing is left."""
        if self.opening():
            raise self._error("not valid JSON (something follows its end)")

    def _skip(self) -> None:
        if self.opening() == "[":
            for _ in self.elements():
                pass
        elif self.opening() == "{":
            for _ in self.members():
                self.value()
        else:
            self._decoded()

    def _decoded(self) -> tuple[Any, str]:
        """The next value and its text; the window grows until it holds all of it."""
        self.opening()
        while True:
            try:
                value, end = self._scan(self._text, self._at)
                if len(self._text) - end > _CUT_NUMBER or self._is_end:
                    text, self._at = self._text[self._at : end], end
                    return value, text
            except json.JSONDecodeError as error:
                is_cut = error.msg.startswith("Unterminated") or (
                    error.pos > len(self._text) - _NEAR_END
                )
                if self._is_end or not is_cut:
                    raise self._error(f"not valid JSON ({error.msg})", error.pos) from None
            except (RecursionError, ValueError) as error:  # nested too deep; digits without end
                raise self._error(f"not valid JSON ({error})") from None
            if len(self._text) - self._at >= self._max_chars:
                raise self._error(f"a value has more than {self._max_chars} characters")
            self._more()

    def _take(self, sign: str) -> None:
        if self.opening() != sign:
            raise self._error(f"not valid JSON (expected '{sign}')")
        self._at += 1

    def _has_ended(self, closing: str) -> bool:
        """Whether the container ends here; else a comma is taken."""
        sign = self.opening()
        if sign not in (closing, ",") or not sign:
            raise self._error(f"not valid JSON (expected ',' or '{closing}')")
        self._at += 1
        return sign == closing

    def _more(self) -> bool:
        """Move the window on by a block, or to four times its length (so that a long value is not
        decoded again and again): False at the end."""
        if self._is_end:
            return False
        left = self._text[self._at :]
        size = max(self._block_bytes, min(3 * len(left), self._max_chars - len(left)))
        try:
            data = self._bytes.read(size)
            added = self._utf8.decode(data, final=not data)
        except UnicodeDecodeError as error:
            raise self._error(f"not valid JSON ({error})") from None
        except _DAMAGE as error:
            raise UserError(
                f"{self.path}: damaged or cut short ({error}); copy or download it again"
            ) from None
        self._left_bytes -= len(data)
        if self._left_bytes < 0:
            raise UserError(
                f"{self.path}: expands to more than {MAX_EXPANSION} times its size; no episode "
                "file does: download it again, or unpack it first if it is right"
            )
        self._passed += self._at
        self._text, self._at, self._is_end = left + added, 0, not data
        return True

    def _error(self, fault: str, place: int | None = None) -> UserError:
        place = self._passed + (self._at if place is None else place)
        cut = "; it may be cut short" if self._is_end else ""
        return UserError(
            f"{self.path}: {fault} at character {place}{cut}; copy or download it again"
        )


def _open(path: Path) -> BinaryIO:
    try:
        require_regular(path)
        return open(path, "rb")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; see data/README.md on how to obtain it") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None


def _decompressed(raw: BinaryIO) -> BinaryIO:
    """A stream whose reads give at most what they are asked for, whatever the file claims."""
    magic = raw.read(4)
    raw.seek(0)
    if magic.startswith(_GZIP_MAGIC):
        return gzip.GzipFile(fileobj=raw)  # type: ignore[return-value]
    if magic == _ZSTD_MAGIC:
        return pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd")
    return raw
