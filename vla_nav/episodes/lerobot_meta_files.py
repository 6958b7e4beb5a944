"""The `meta/` text files of LeRobot sets that others wrote, read within bounds.

    meta/info.json        codebase_version, fps, chunks_size, splits, path templates, features
    meta/episodes.jsonl   v2: {"episode_index", "tasks", "length"} a line
    meta/tasks.jsonl      v2: {"task_index", "task"} a line

Paths come from templates in `info.json`. They are filled in by a small grammar of our own, not by
`str.format`, which would follow attributes and allocate any width that a file asks for.
Layout: huggingface/lerobot at 7427f31, src/lerobot/datasets/utils.py.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple

from vla_nav.episodes.parquet_columns import one_line
from vla_nav.errors import UserError
from vla_nav.files import require_regular

INFO = "meta/info.json"
_INFO_BYTES = 32 * 2**20
_LINE_BYTES = 32 * 2**20
_FIELD = re.compile(r"\{([a-z_]+)(?::0?(\d{1,2})d?)?\}")


@dataclass(frozen=True)
class ForeignInfo:
    """`meta/info.json` of a set. features: column or camera -> {"dtype", "shape", "names", ...}."""

    root: Path
    version: str
    fps: float
    chunks_size: int
    splits: Mapping[str, str]
    data_path: str
    video_path: str | None
    features: Mapping[str, Mapping[str, Any]]
    raw: Mapping[str, Any]

    @property
    def path(self) -> Path:
        """The file itself, for messages."""
        return self.root / INFO

    def cameras(self, dtype: str) -> list[str]:
        """The features of a dtype, "video" or "image"."""
        return [key for key, feature in self.features.items() if feature.get("dtype") == dtype]

    def episode_range(self, split: str) -> tuple[int, int | None]:
        """First episode of `split` and the one after its last; None: all there are.

        `UserError` where the set names its splits and this is none of them.
        """
        if not self.splits:
            return 0, None
        text = self.splits.get(split)
        if text is None:
            raise UserError(
                f"{self.path}: has no split '{split}'; allowed as data.split: "
                f"{one_line(', '.join(sorted(self.splits)))}"
            )
        found = re.fullmatch(r"\s*(\d{1,12})\s*:\s*(\d{1,12})?\s*", text)
        if found is None:
            raise UserError(
                f"{self.path}: splits.{split} is '{one_line(text, 40)}'; expected FIRST:STOP, "
                "such as 0:100"
            )
        return int(found[1]), int(found[2]) if found[2] else None


def find_root(path: Path, split: str) -> Path | None:
    """The folder with `meta/info.json`: `path`, or `path/<split>`."""
    for root in (path / split, path):
        if (root / INFO).is_file():
            return root
    return None


def require_root(path: Path, split: str) -> Path:
    """As `find_root`; `UserError` where there is none."""
    root = find_root(path, split)
    if root is None:
        raise UserError(
            f"{path}: no LeRobot data set of split '{split}' (neither {INFO} nor {split}/{INFO}); "
            "correct data.path"
        )
    return root


def read_info(root: Path) -> ForeignInfo:
    """Read and check `meta/info.json`; every fault is a `UserError` that names file and key."""
    path = root / INFO
    raw = _json_file(path)
    if not isinstance(raw, dict):
        raise UserError(f"{path}: is a {type(raw).__name__}; expected an object")
    features = raw.get("features", {})
    if not isinstance(features, dict) or not all(isinstance(f, dict) for f in features.values()):
        raise UserError(f"{path}: features is no table of features; copy the data set again")
    odd = [key for key in features if not key.isprintable()]
    if odd:
        raise UserError(f"{path}: features has a name {odd[0][:80]!r}; expected a printable text")
    fps = raw.get("fps")
    if isinstance(fps, bool) or not isinstance(fps, int | float) or not 0 < fps <= 1e4:
        raise UserError(f"{path}: fps is {str(fps)[:40]!r}; expected a number above 0")
    size = raw.get("chunks_size", 1000)
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise UserError(f"{path}: chunks_size is {str(size)[:40]!r}; expected a whole number >= 1")
    splits = raw.get("splits") or {}
    if not isinstance(splits, dict):
        raise UserError(f"{path}: splits is {str(splits)[:40]!r}; expected an object")
    for key in ("data_path", "video_path"):
        if not isinstance(raw.get(key), str | None):
            raise UserError(f"{path}: {key} is {str(raw[key])[:40]!r}; expected a text")
    version = one_line(raw.get("codebase_version", ""), 20)
    is_v3 = version.startswith("v3")
    data = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
    video = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
    if not is_v3:
        data = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
        video = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
    return ForeignInfo(
        root=root,
        version=version,
        fps=float(fps),
        chunks_size=size,
        splits={str(name): str(span) for name, span in splits.items()},
        data_path=raw.get("data_path") or data,
        video_path=raw.get("video_path") or video,
        features=features,
        raw=raw,
    )


def fill(template: str, source: Path, **values: int | str) -> str:
    """A path from a template of `info.json`, relative and inside the set.

    >>> fill("data/chunk-{c:03d}/e_{i:06d}.parquet", Path("info.json"), c=1, i=20)
    'data/chunk-001/e_000020.parquet'
    """

    def value(found: re.Match[str]) -> str:
        name, width = found[1], int(found[2] or 0)
        if name not in values:
            raise UserError(
                f"{source}: path template '{one_line(template, 80)}' asks for {{{name}}}; "
                f"allowed: {', '.join(values)}"
            )
        given = values[name]
        return given if isinstance(given, str) else str(given).zfill(width)

    text = _FIELD.sub(value, template)
    if "{" in text or "}" in text:
        raise UserError(f"{source}: path template '{one_line(template, 80)}' is not understood")
    check_relative(text, source)
    return text


def check_relative(path: str, source: Path) -> None:
    """Raise `UserError` unless `path` stays inside the folder it is relative to."""
    parts = PurePosixPath(path)
    if parts.is_absolute() or ".." in parts.parts or not path.isprintable() or not path:
        raise UserError(
            f"{source}: '{one_line(path, 80)}' leaves the data set; expected a path inside it"
        )


class Line(NamedTuple):
    """One object of a `.jsonl` file: its line (from 1), where that begins, and the object."""

    number: int
    offset: int
    value: dict[str, Any]


def json_lines(path: Path) -> Iterator[Line]:
    """The objects of a `.jsonl` file, one line in memory at a time."""
    with _opened(path) as handle:
        number = offset = 0
        while line := handle.readline(_LINE_BYTES):
            number += 1
            if line.strip():
                yield Line(number, offset, _object(line, path, number))
            offset += len(line)


def json_lines_at(path: Path, offsets: Iterable[int]) -> Iterator[dict[str, Any]]:
    """The objects of the lines that begin at `offsets`."""
    with _opened(path) as handle:
        for offset in offsets:
            handle.seek(offset)
            yield _object(handle.readline(_LINE_BYTES), path, None)


def whole(value: Any, where: str, *, least: int = 0, most: int = 10**12) -> int:
    """A whole number out of JSON; `UserError` beginning with `where` for anything else."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise UserError(f"{where} is {str(value)[:40]!r}; expected a whole number >= {least}")
    return value


def number(value: Any, where: str) -> float:
    """A finite number out of JSON; `UserError` beginning with `where` for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UserError(f"{where} is {str(value)[:40]!r}; expected a finite number")
    return float(value)


def _opened(path: Path) -> BinaryIO:
    try:
        require_regular(path)
        return open(path, "rb")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); restore the file") from None


def _object(line: bytes, path: Path, number: int | None) -> dict[str, Any]:
    where = f"{path}: line {number}" if number else f"{path}: a line"
    if len(line) >= _LINE_BYTES:
        raise UserError(f"{where} has {_LINE_BYTES} bytes or more; that is no list of episodes")
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{where} is not valid JSON ({one_line(error)}); the file is damaged or cut short: "
            "copy it again"
        ) from None
    if not isinstance(value, dict):
        raise UserError(f"{where} is a {type(value).__name__}; expected an object")
    return value


def _json_file(path: Path) -> Any:
    with _opened(path) as handle:
        data = handle.read(_INFO_BYTES + 1)
    if len(data) > _INFO_BYTES:
        raise UserError(f"{path}: has more than {_INFO_BYTES} bytes; that is no info.json")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{path}: not valid JSON ({one_line(error)}); the file is damaged: copy it again"
        ) from None
