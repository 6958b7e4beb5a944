"""Episode files of Habitat's JSON shape on disk: where they are, what they hold, one after another.

    <path>/<split>/<split>.json.gz               or .json, .json.zst; also <path>/episodes/<split>/
    <path>/<split>/<split>_guide.json.gz         a role
    <path>/<split>/<split>_gt.json.gz            ground truth of the file beside it
    <path>/<split>/content/<scene>.json.gz       episodes by scene; the file above may be empty

`<path>` may be the folder above the published one, the split's own folder, or the file itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vla_nav.episodes.json_stream import JsonFile
from vla_nav.episodes.source import EpisodeError, SourceFacts
from vla_nav.episodes.types import Episode
from vla_nav.errors import UserError

ENDINGS = (".json.gz", ".json", ".json.zst")
_PUBLISHED_FOLDERS = ("R2R_VLNCE_v1-3_preprocessed", "R2R_VLNCE_v1-3", "RxR_VLNCE_v0")
_CONTENT = re.compile(r"\{data_path\}/([A-Za-z0-9_-]+)/\{scene\}\.json\.gz")


@dataclass(frozen=True)
class EpisodeFile:
    """One file of episodes, the role asked of them, and its ground truth, if there is one."""

    path: Path
    role: str = ""
    truth: Path | None = None


class EpisodeFiles:
    """An `EpisodeSource` over files; an episode that cannot be read does not end the iteration.

    read: gives the episodes of one file, and an `EpisodeError` for each that cannot be read.
    """

    def __init__(
        self,
        root: Path,
        split: str,
        facts: SourceFacts,
        files: Sequence[EpisodeFile],
        read: Callable[[EpisodeFile, str], Iterator[Episode | EpisodeError]],
    ) -> None:
        self.root, self.split, self.facts = root, split, facts
        self.files = tuple(files)
        self._read = read

    def __iter__(self) -> Iterator[Episode]:
        return _Episodes(item for file in self.files for item in self._read(file, self.split))

    @property
    def frames(self) -> None:
        """Episode files have no pixels."""
        return None


class _Episodes:
    """Raises the errors among `items` and can be asked for the next one after that."""

    def __init__(self, items: Iterator[Episode | EpisodeError]) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Episode]:
        return self

    def __next__(self) -> Episode:
        item = next(self._items)
        if isinstance(item, EpisodeError):
            raise item
        return item


def find_file(path: Path, split: str, suffix: str = "") -> Path | None:
    """The file `<split><suffix>` with any of the endings, or None; a file given as `path` is it."""
    if path.is_file():
        return path if path.name.endswith(ENDINGS) else None
    folders = [path / split, path / "episodes" / split, path]
    folders += [path / name / split for name in _PUBLISHED_FOLDERS]
    for folder in folders:
        for ending in ENDINGS:
            file = folder / f"{split}{suffix}{ending}"
            if os.path.lexists(file):  # a pipe, folder or broken link is refused when it is opened
                return file
    return None


def required_file(path: Path, split: str, suffix: str = "") -> Path:
    """As `find_file`; `UserError` naming what was looked for where it is missing."""
    file = find_file(path, split, suffix)
    if file is None:
        raise UserError(
            f"{path}: no {split}/{split}{suffix}.json.gz (nor .json, .json.zst, nor one in "
            f"episodes/{split}); correct data.path or data.split"
        )
    return file


def truth_of(file: Path) -> Path | None:
    """`val_unseen.json.gz` -> `val_unseen_gt.json.gz` beside it, if it is there."""
    stem = file.name.partition(".json")[0]
    for ending in ENDINGS:
        if os.path.lexists(truth := file.with_name(f"{stem}_gt{ending}")):
            return truth
    return None


def content_files(file: Path) -> list[Path]:
    """The files of single scenes beside a split's file, by name; its folder may be stated in it."""
    stated = "content"
    with JsonFile(file) as content:
        if content.opening() == "{":
            for key in content.members():
                if key == "episodes" and content.opening() == "[":
                    if any(True for _ in content.elements()):
                        break  # whoever has episodes of its own states no folder
                elif key == "content_scenes_path":
                    stated = _folder_of(content.value(), file)
    folder = file.parent / stated
    if not os.path.lexists(folder):
        return []
    try:
        names = [folder / name for name in os.listdir(folder) if name.endswith(ENDINGS)]
    except OSError as error:
        raise UserError(
            f"{folder}: the scenes' episodes cannot be read ({error.strerror}); copy it again"
        ) from None
    return sorted(names, key=lambda path: path.name.partition(".json")[0])


def kind_of(path: Path, split: str) -> str:
    """What the episodes of a split are, from the first of them: "instruction", "language" (an
    instruction with its language), "object", "point", or "" where there is no such file.
    """
    file = find_file(path, split)
    if file is None:
        return ""
    kind = _kind(file)
    if kind == "empty":
        files = content_files(file)
        kind = _kind(files[0]) if files else ""
    return "" if kind == "empty" else kind


def _kind(file: Path) -> str:
    with JsonFile(file) as content:
        if content.opening() != "{":
            return ""
        is_of_objects = False
        for key in content.members():
            if key == "goals_by_category":
                return "object"
            is_of_objects |= key.startswith("category_to_")
            if key == "episodes" and content.opening() == "[":
                for raw in content.elements():
                    return _kind_of_episode(raw)
    return "object" if is_of_objects else "empty"


def _kind_of_episode(raw: Any) -> str:
    if not isinstance(raw, dict):
        return ""
    goals = raw.get("goals")
    first = goals[0] if isinstance(goals, list) and goals else None
    if "object_category" in raw or (isinstance(first, dict) and "object_category" in first):
        return "object"
    about = raw.get("instruction")
    if isinstance(about, dict) and ("language" in about or "annotator_id" in about):
        return "language"
    if "instruction" in raw:
        return "instruction"
    return "point" if "start_position" in raw and "scene_id" in raw else ""


def _folder_of(stated: Any, file: Path) -> str:
    match = _CONTENT.fullmatch(stated) if isinstance(stated, str) else None
    if match is None:
        raise UserError(
            f"{file}: key content_scenes_path is {str(stated)[:60]!r}; allowed: "
            "{data_path}/<folder>/{scene}.json.gz"
        )
    return match[1]
