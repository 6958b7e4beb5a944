"""Texts by key for one join, in bounded memory: a private sqlite file that vanishes when closed.

A ground-truth file need not have the order of its episodes (that of R2R-CE has not), so its
entries wait here until their episode comes:

    gt file   632 310 229 ... 1   -> store ->   episodes   1 2 3 ... 632

sqlite keeps `_CACHE_KIB` in memory and the rest in a nameless temporary file.
"""

from __future__ import annotations

import sqlite3
import tempfile
from pathlib import Path

from vla_nav.episodes.json_stream import JsonFile
from vla_nav.errors import UserError

_CACHE_KIB = 64 * 1024


class EntryStore:
    """What was added last under a key is what `get` returns."""

    def __init__(self) -> None:
        self._base = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._base.execute("PRAGMA journal_mode = OFF")
        self._base.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        self._base.execute("CREATE TABLE entry (key TEXT PRIMARY KEY, text TEXT) WITHOUT ROWID")
        self._base.execute("BEGIN")  # one transaction: a statement each would sync each

    @classmethod
    def of_file(cls, path: str | Path, *, what: str) -> EntryStore:
        """The entries of a file that is one JSON object. what: names it in an error."""
        store = cls()
        with JsonFile(path) as file:
            if file.opening() != "{":
                file.value()
                raise UserError(f"{path}: not a table of episodes; is it a {what} file?")
            for key in file.members():
                store.add(key, file.text())
            file.finish()
        return store

    def add(self, key: str, text: str) -> None:
        """Raises `UserError` where the temporary file finds no room."""
        try:
            data = text.encode("utf-8", "surrogatepass")  # JSON may hold lone surrogates
            name = key.encode("utf-8", "surrogatepass")
            self._base.execute("INSERT OR REPLACE INTO entry VALUES (?, ?)", (name, data))
        except sqlite3.OperationalError as error:
            raise UserError(
                f"{tempfile.gettempdir()}: no room for a temporary file ({error}); free some space "
                "or set TMPDIR to another folder"
            ) from None

    def get(self, key: str) -> str | None:
        name = key.encode("utf-8", "surrogatepass")
        row = self._base.execute("SELECT text FROM entry WHERE key = ?", (name,)).fetchone()
        return row[0].decode("utf-8", "surrogatepass") if row else None

    def close(self) -> None:
        self._base.close()
