"""Our own recordings as an `EpisodeSource`: <path>/recorded/<split>, see `lerobot_layout.py`.

`path` may also be the recording itself (the folder that has `meta/`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from vla_nav.episodes import lerobot_layout as layout
from vla_nav.episodes.lerobot_reader import LeRobotDataset
from vla_nav.episodes.source import SourceFacts
from vla_nav.episodes.types import Episode, FrameSource
from vla_nav.errors import UserError
from vla_nav.files import read_json


def detect(path: Path, split: str) -> bool:
    """Whether `path` has a finished recording of `split`, or is one."""
    return _is_ours(path / "recorded" / split) or _is_ours(path)


def open_source(path: Path, *, split: str, role: str = "") -> RecordedSource:
    """The recording; `UserError` where it is missing, damaged, or of another split."""
    inner = path / "recorded" / split
    return RecordedSource(path if _is_ours(path) and not _is_ours(inner) else inner, split, role)


class RecordedSource:
    """Episodes of a finished recording, row group by row group."""

    def __init__(self, root: Path, split: str, role: str) -> None:
        self.root, self.split, self._role = root, split, role
        self._data = LeRobotDataset(root)
        conventions = self._data.conventions
        if conventions.split != split:
            raise UserError(
                f"{root / layout.INFO}: vla_nav.split is '{conventions.split}', asked for was "
                f"'{split}'; correct data.split"
            )
        recording = self._data.info["vla_nav"].get("recording") or {}
        self.facts = SourceFacts(
            format="recorded",
            turn_deg=conventions.embodiment.turn_deg,
            step_m=conventions.embodiment.step_m,
            embodiment=conventions.embodiment,
            expert=str(recording.get("expert", "")) if isinstance(recording, dict) else "",
        )

    def __len__(self) -> int:
        return len(self._data)

    def __iter__(self) -> Iterator[Episode]:
        return (episode for episode in self._data if self._role in ("", episode.role))

    @property
    def frames(self) -> FrameSource:
        return self._data.frames


def _is_ours(root: Path) -> bool:
    info = root / layout.INFO
    if not info.is_file():
        return False
    content = read_json(info)
    return isinstance(content, dict) and isinstance(content.get("vla_nav"), dict)
