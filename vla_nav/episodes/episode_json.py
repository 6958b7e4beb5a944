"""One raw episode of Habitat's JSON shape as an `Episode`, and errors that name file, episode, key.

    {"episode_id": 7 | "7", "scene_id": "mp3d/S/S.glb", "start_position": [x, y, z],
     "start_rotation": [x, y, z, w], "instruction": {"instruction_text": ...} | "...",
     "goals": [{"position": [...], "radius": 3.0}], "reference_path": [[...], ...]}

Ids become strings. Keys that an `Episode` has no field for are kept in `metadata` under their own
names; of the instruction and the goals, what is not text, position or radius, under `instruction`
and `goals`; of the file, beside its episodes, under `file`.
"""

from __future__ import annotations

import math
import reprlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vla_nav.episodes.source import EpisodeError
from vla_nav.episodes.types import Episode, Goal, Pose

MAX_DEPTH = 64  # of nested lists and objects
_SHORT = reprlib.Repr()  # in bounded time, however large or deep the value
_SHORT.maxstring = _SHORT.maxother = 60
_OWN_KEYS = ("episode_id", "scene_id", "start_position", "start_rotation", "reference_path")
_LARGEST = sys.float_info.max
_UNIT_TOLERANCE = 1e-3  # of a rotation's norm: single-precision files are off by 1e-7


def parse_episode(
    raw: Any,
    *,
    file: str | Path,
    number: int,
    dataset: str,
    split: str,
    role: str = "",
    shared: Mapping[str, Any] | None = None,
    default_radius_m: float | None = None,
) -> Episode:
    """The episode that `raw`, the one with this number in `file`, states; `steps` is empty.

    role: "" takes what the episode says, if anything. shared: the file's other keys.
    default_radius_m: for goals that state no radius. Raises `EpisodeError`.
    """
    reader = _Reader(file, number, raw, default_radius_m)
    return reader.episode(dataset, split, role, shared or {})


def is_vector(value: Any, size: int) -> bool:
    """Whether a decoded value is a list of `size` finite numbers."""
    return isinstance(value, list) and len(value) == size and all(map(_is_number, value))


def find_fault(value: Any, key: str = "", depth: int = 0) -> tuple[str, str] | None:
    """Key and fault of the first thing in a decoded value that nothing downstream can store."""
    if isinstance(value, float):
        return None if math.isfinite(value) else (key, f"is {value}; allowed: finite numbers")
    if isinstance(value, str):
        return None if _is_text(value) else (key, "has half a character; allowed: Unicode text")
    if not isinstance(value, dict | list):
        return None
    if depth == MAX_DEPTH:
        return key, f"is nested more than {MAX_DEPTH} deep"
    if isinstance(value, dict):
        for name, item in value.items():
            if not _is_text(name):
                return key, f"has key {_shown(name)}; allowed: Unicode text"
            shown = name if name.isprintable() else repr(name)
            if fault := find_fault(item, f"{key}.{shown}" if key else shown, depth + 1):
                return fault
    elif not all(type(item) is int for item in value):
        for number, item in enumerate(value):
            if fault := find_fault(item, f"{key}[{number}]", depth + 1):
                return fault
    return None


class _Reader:
    """One raw episode of a file, and errors that name it."""

    def __init__(
        self, path: str | Path, number: int, raw: Any, default_radius_m: float | None
    ) -> None:
        self._default_radius_m = default_radius_m
        self._name = f"{path}: episode number {number}"
        self._raw: dict[str, Any] = {}
        self._id = ""
        if not isinstance(raw, dict):
            raise self._error("", f"is {_shown(raw)}, not an object")
        self._raw = raw
        episode_id = raw.get("episode_id")
        is_id = type(episode_id) in (int, str) and episode_id != ""
        if not is_id or not str(episode_id).isprintable():
            raise self._error("episode_id", f"is {_shown(episode_id)}; allowed: integer or string")
        self._id = str(episode_id)
        self._name = f"{path}: episode {episode_id}"

    def episode(self, dataset: str, split: str, role: str, shared: Mapping[str, Any]) -> Episode:
        raw = self._raw
        metadata = {k: v for k, v in raw.items() if k not in (*_OWN_KEYS, "instruction", "goals")}
        text, about = self._instruction()
        goals, goal_rests = self._goals()
        if about:
            metadata["instruction"] = about
        if any(goal_rests):
            metadata["goals"] = goal_rests
        if shared:
            metadata["file"] = self._shared(shared)
        scene_id = raw.get("scene_id")
        if not isinstance(scene_id, str) or not scene_id:
            raise self._error("scene_id", f"is {_shown(scene_id)}; allowed: a path")
        known = {"scene_id": scene_id, "instruction.instruction_text": text, **metadata}
        if fault := find_fault(known):
            raise self._error(*fault)
        rotation = self._vector(raw.get("start_rotation"), 4, "start_rotation")
        norm = math.hypot(*rotation)
        if abs(norm - 1) > _UNIT_TOLERANCE:
            raise self._error("start_rotation", f"has norm {norm:.4g}; it must be a unit xyzw")
        path = raw.get("reference_path") or []
        if not isinstance(path, list):
            raise self._error("reference_path", f"is {_shown(path)}; allowed: a list of points")
        points = [self._vector(p, 3, f"reference_path[{i}]") for i, p in enumerate(path)]
        return Episode(
            dataset=dataset,
            split=split,
            role=self._role(role),
            episode_id=str(raw["episode_id"]),
            scene_id=scene_id,
            instruction=text,
            start_pose=Pose(self._vector(raw.get("start_position"), 3, "start_position"), rotation),
            goals=goals,
            reference_path=np.array(points, np.float64).reshape(-1, 3),
            embodiment=None,
            metadata=metadata,
        )

    def _instruction(self) -> tuple[str, dict[str, Any]]:
        if "instruction" not in self._raw:
            return "", {}  # ObjectNav and PointNav have none
        about = self._raw["instruction"]
        text = about.get("instruction_text") if isinstance(about, dict) else about
        if not isinstance(text, str):
            raise self._error("instruction.instruction_text", f"is {_shown(text)}; allowed: text")
        rest = about if isinstance(about, dict) else {}
        return text, {k: v for k, v in rest.items() if k != "instruction_text"}

    def _goals(self) -> tuple[tuple[Goal, ...], list[dict[str, Any]]]:
        raw = self._raw.get("goals") or []
        if not isinstance(raw, list):
            raise self._error("goals", f"is {_shown(raw)}; allowed: a list")
        goals, rests = [], []
        for number, goal in enumerate(raw):
            key = f"goals[{number}]"
            if not isinstance(goal, dict):
                raise self._error(key, f"is {_shown(goal)}; allowed: position and radius")
            position = self._vector(goal.get("position"), 3, f"{key}.position")
            radius = goal.get("radius")
            radius = self._default_radius_m if radius is None else radius
            if radius is None:
                raise self._error(f"{key}.radius", "is missing; pass default_radius_m")
            if not _is_number(radius) or radius <= 0:
                raise self._error(f"{key}.radius", f"is {_shown(radius)}; allowed: metres > 0")
            goals.append(Goal(position, float(radius)))
            rests.append({k: v for k, v in goal.items() if k not in ("position", "radius")})
        return tuple(goals), rests

    def _role(self, asked: str) -> str:
        info = self._raw.get("info")
        stated = info.get("role") if isinstance(info, dict) else None
        if stated is not None and not isinstance(stated, str):
            raise self._error("info.role", f"is {_shown(stated)}; allowed: text")
        if stated and asked and stated != asked:
            raise self._error("info.role", f"is '{stated}', asked for was '{asked}'; use its file")
        return asked or stated or ""

    def _shared(self, shared: Mapping[str, Any]) -> Mapping[str, Any]:
        """The file's other keys; of ObjectNav's goal table the entry of this episode only."""
        table = shared.get("goals_by_category")
        if not isinstance(table, dict):
            return shared
        scene = str(self._raw.get("scene_id", "")).rsplit("/", 1)[-1]
        own = f"{scene}_{self._raw.get('object_category')}"
        return {**shared, "goals_by_category": {own: table[own]} if own in table else {}}

    def _vector(self, value: Any, size: int, key: str) -> Any:
        if not is_vector(value, size):
            raise self._error(key, f"is {_shown(value)}; allowed: {size} finite numbers")
        return tuple(float(x) for x in value)

    def _error(self, key: str, fault: str) -> EpisodeError:
        text = f"{self._name}: {f'key {key} ' if key else ''}{fault}"
        return EpisodeError(text, self._id, key)


def _is_number(value: Any) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return abs(value) <= _LARGEST  # false of NaN; an integer need not fit a float


def _is_text(value: str) -> bool:
    """Whether UTF-8 can hold it: JSON may hold one half of a surrogate pair."""
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(value: Any) -> str:
    return "missing" if value is None else _SHORT.repr(value)
