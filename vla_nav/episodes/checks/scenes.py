"""Checks of scene files: D601 to D603. Scenes are looked up once each, never opened."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

from vla_nav.episodes.checks.findings import Tally
from vla_nav.episodes.scenes import resolve_scene
from vla_nav.episodes.types import Episode
from vla_nav.errors import UserError

_PREFIXES = ("data/", "./", "../", "/", "~")
_MAX_SCENES = 100_000


class SceneCheck:
    """Whether every scene is there."""

    def __init__(self, tally: Tally, scenes: Path | None) -> None:
        """scenes: the scenes folder, or None where there is none to look in."""
        self._tally, self._scenes = tally, scenes
        self._is_there: dict[str, str] = {}  # scene -> "" or what is wrong
        self._missing: set[str] = set()
        self._num_named = 0

    def see(self, episode: Episode) -> None:
        """Look at one episode."""
        scene_id = episode.scene_id
        if scene_id.startswith(_PREFIXES) or ".." in PurePosixPath(scene_id).parts:
            self._tally.add("D603", episode, "scene_id", f"'{scene_id}'")
            return
        self._num_named += bool(scene_id)
        if self._scenes is None or not scene_id:
            return
        if scene_id not in self._is_there and len(self._is_there) < _MAX_SCENES:
            try:
                resolve_scene(scene_id, self._scenes)
                self._is_there[scene_id] = ""
            except UserError as error:
                self._is_there[scene_id] = str(error)
        fault = self._is_there.get(scene_id, "")
        if fault:
            self._missing.add(scene_id)
            self._tally.add("D601", episode, "scene_id", fault)

    def close(self) -> dict[str, Any]:
        """Findings over all episodes; facts for the report."""
        if self._scenes is None:
            if self._num_named:
                text = "not given, and none beside the data"
                self._tally.add_whole("D602", "doctor.scenes", text, count=self._num_named)
            return {}
        return {"scenes_missing": len(self._missing)}
