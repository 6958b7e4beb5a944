"""The folder of a page: index.html, which opens from anywhere, and data loaded on demand.

    index.html, page/*.{js,css}     the page itself
    data/index.js                   vlaNav.index({...}): facts, and one line per episode
    data/episodes/000012.js         vlaNav.episode(12, digest, line, {...})
    data/frames/, data/maps/        images
    view.json                       of which data this is the page

A browser that opens a file may load scripts and images beside it, and nothing else: so data are
scripts that call one function with JSON. Every file is whole or absent. An episode file names the
digest of what it was made from; a second start keeps those that still agree.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import xxhash

from vla_nav.errors import UserError
from vla_nav.files import atomic_path, read_json, write_json

EPISODES = "data/episodes"
_PAGE = Path(__file__).with_name("page")
_OWNER = "view.json"
_INDEX_EVERY_S = 5.0
_VERSION = 1  # of the files below data/
_END = b");\n"  # of an episode file


class Site:
    """Writes a page's folder. identity: which data it shows, refused if another is there."""

    def __init__(self, root: Path, identity: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        self.root = root
        self._facts = dict(facts)
        self._lines: list[Mapping[str, Any]] = []
        self._written_s = time.monotonic()
        self._claim({**identity, "version": _VERSION})
        copy_page(root)
        self._write_index(is_complete=False)

    def kept(self, number: int, digest: str) -> bool:
        """Whether the file of episode `number` was made from this; then it is listed as it is."""
        line = read_line(self.root / episode_file(number), digest)
        if line is None:
            return False
        self._list(line)
        return True

    def add(
        self, number: int, digest: str, line: Mapping[str, Any], content: Mapping[str, Any]
    ) -> None:
        """Write an episode and list it."""
        text = (
            f"vlaNav.episode({number},\n{script(digest)},\n{script(line)},\n{script(content)});\n"
        )
        with atomic_path(self.root / episode_file(number)) as temporary:
            temporary.write_text(text, encoding="utf-8")
        self._list(line)

    def finish(self, **facts: Any) -> Path:
        """Write the final index; the file to open."""
        self._facts.update(facts)
        self._write_index(is_complete=True)
        return self.root / "index.html"

    def _list(self, line: Mapping[str, Any]) -> None:
        self._lines.append(line)
        if time.monotonic() - self._written_s > _INDEX_EVERY_S:
            self._write_index(is_complete=False)

    def _write_index(self, *, is_complete: bool) -> None:
        index = {**self._facts, "is_complete": is_complete, "episodes": self._lines}
        with atomic_path(self.root / "data/index.js") as temporary:
            temporary.write_text(f"vlaNav.index({script(index)});\n", encoding="utf-8")
        self._written_s = time.monotonic()

    def _claim(self, identity: Mapping[str, Any]) -> None:
        file = self.root / _OWNER
        if file.exists():
            before = read_json(file)
            for name in sorted({*before, *identity}):
                if before.get(name) != identity.get(name):
                    raise UserError(
                        f"{file}: the page there is of another data set ({name} was "
                        f"{before.get(name)!r}, is now {identity.get(name)!r}); choose another "
                        "paths.output_dir or delete it"
                    )
        elif (self.root / "index.html").exists() or (self.root / "data").exists():
            raise UserError(
                f"{self.root}: holds other files (index.html or data/) and no {_OWNER}; "
                "choose another paths.output_dir"
            )
        write_json(file, dict(identity))


def copy_page(root: Path) -> None:
    """The page's own files: index.html, scripts, style."""
    for source in sorted(_PAGE.iterdir()):
        if source.suffix not in (".html", ".js", ".css"):
            continue
        target = root / (source.name if source.suffix == ".html" else f"page/{source.name}")
        with atomic_path(target) as temporary:
            shutil.copyfile(source, temporary)


def script(value: Any) -> str:
    """A value as JavaScript source in one line: JSON in ASCII, without `<`, `>` and `&`, so that
    no text in it can end a script or begin markup wherever it is put.

    >>> script({"a": "</script>"})
    '{"a":"\\\\u003c/script\\\\u003e"}'
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def digest_of(value: Any) -> str:
    """Of plain values: what an episode file is made from."""
    return xxhash.xxh3_128_hexdigest(json.dumps(value, sort_keys=True, default=str).encode())


def episode_file(number: int) -> str:
    """Relative path of an episode's file."""
    return f"{EPISODES}/{number:06d}.js"


def read_line(path: Path, digest: str) -> dict[str, Any] | None:
    """The listed line of an episode file made from `digest`; None for any other file."""
    try:
        with open(path, "rb") as file:
            file.readline()
            if file.readline().decode() != f"{script(digest)},\n":
                return None
            line = json.loads(file.readline().decode().removesuffix(",\n"))
            file.seek(-len(_END), os.SEEK_END)
            return line if file.read() == _END else None
    except (FileNotFoundError, UnicodeDecodeError, json.JSONDecodeError):
        return None
