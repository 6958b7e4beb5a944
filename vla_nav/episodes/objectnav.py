"""ObjectNav: find any object of a category. Habitat's `ObjectNav-v1` files (MP3D, HM3D).

    <path>/<split>/<split>.json.gz             {"episodes": [], "category_to_...": {...}}
    <path>/<split>/content/<scene>.json.gz     {"episodes": [...], "goals_by_category": {
        "sceneA.basis.glb_chair": [{"position": ..., "view_points": [{"agent_state": ...}]}]}}

An episode's goals are in the table, under its scene's file name and category; older files have
them in the episode. Success is within 0.1 m of a view point, so these are its `goals`: all points
from which an object of the category is seen, or the object's own position where none is stated.
`metadata["objects"]` has what else is known of each object, and the number of its view points.
Keys differ between versions; those that are not known are kept in `metadata`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vla_nav.episodes.entry_store import EntryStore
from vla_nav.episodes.episode_files import (
    EpisodeFile,
    EpisodeFiles,
    content_files,
    kind_of,
    required_file,
)
from vla_nav.episodes.episode_json import find_fault, is_vector, parse_episode
from vla_nav.episodes.pointnav import with_scene_in_id
from vla_nav.episodes.source import EpisodeError, SourceFacts
from vla_nav.episodes.types import Camera, Embodiment, Episode, Goal
from vla_nav.episodes.vlnce import raw_episodes, read_shared

RADIUS_M = 0.1
BODY = Embodiment(
    (Camera("front", 640, 480, 79.0, 0.88),), 0.18, 0.88, 30.0, 0.25, is_sliding=False
)
_TABLE = "goals_by_category"
_Found = tuple[tuple[Goal, ...], list[dict[str, Any]]]


def detect(path: Path, split: str) -> bool:
    """Whether the split's files have categories, or a table of goals by category."""
    return kind_of(path, split) == "object"


def open_source(path: Path, *, split: str, role: str = "") -> EpisodeFiles:
    """The split's own episodes, then those of its scenes by name. role is not used."""
    file = required_file(path, split)
    files = [EpisodeFile(name) for name in (file, *content_files(file))]
    facts = SourceFacts(
        format="objectnav",
        turn_deg=BODY.turn_deg,
        step_m=BODY.step_m,
        embodiment=BODY,
        notes=(
            "turn, step and body are those of Habitat's ObjectNav task; files do not state them",
            "goals are view points",
        ),
    )
    return EpisodeFiles(path, split, facts, files, _read)


def _read(file: EpisodeFile, split: str) -> Iterator[Episode | EpisodeError]:
    table = EntryStore()
    try:
        shared, _ = read_shared(file.path, tables={_TABLE: table})
        goals = _Goals(file.path, table)
        for number, raw in enumerate(raw_episodes(file.path)):
            try:
                bare = {**raw, "goals": []} if isinstance(raw, dict) else raw
                episode = parse_episode(
                    bare,
                    file=file.path,
                    number=number,
                    dataset="objectnav",
                    split=split,
                    shared=shared,
                )
                yield with_scene_in_id(goals.add_to(episode, raw))
            except EpisodeError as error:
                yield error
    finally:
        table.close()


class _Goals:
    """The goals of one file's episodes; what a category's objects give is made once."""

    def __init__(self, path: Path, table: EntryStore) -> None:
        self._path, self._table = path, table
        self._found: dict[str, _Found] = {}

    def add_to(self, episode: Episode, raw: Mapping[str, Any]) -> Episode:
        where = f"{self._path}: episode {episode.episode_id}"
        own = raw.get("goals") or []
        if own:
            key = "goals"
            goals, objects = _goals(own, where, key, episode.episode_id)
        else:
            scene = episode.scene_id.rsplit("/", 1)[-1]
            key = f"{scene}_{raw.get('object_category')}"
            if key not in self._found:
                text = self._table.get(key)
                if text is None:
                    raise EpisodeError(
                        f"{where}: key {_TABLE} has no entry '{key}', and the episode has no goals",
                        episode.episode_id,
                        _TABLE,
                    )
                at = f"{_TABLE}.{key}"
                self._found[key] = _goals(json.loads(text), where, at, episode.episode_id)
            goals, objects = self._found[key]
        category = raw.get("object_category") or objects[0].get("object_category")
        metadata = {**episode.metadata, "object_category": category, "objects": objects}
        return replace(episode, goals=goals, metadata=metadata)


def _goals(raw: Any, where: str, key: str, episode_id: str) -> _Found:
    """View points of all objects, and the objects without them. Raises `EpisodeError`."""

    def fault(at: str, value: Any, allowed: str) -> EpisodeError:
        shown = "missing" if value is None else repr(value)[:60]
        return EpisodeError(f"{where}: key {at} is {shown}; allowed: {allowed}", episode_id, at)

    if not isinstance(raw, list) or not raw:
        raise fault(key, raw, "a list of objects, at least one")
    goals, objects = [], []
    for number, thing in enumerate(raw):
        at = f"{key}[{number}]"
        if not isinstance(thing, dict):
            raise fault(at, thing, "an object with position and view_points")
        views = thing.get("view_points") or []
        if not isinstance(views, list):
            raise fault(f"{at}.view_points", views, "a list")
        for place, view in enumerate(views):
            state = view.get("agent_state") if isinstance(view, dict) else None
            position = state.get("position") if isinstance(state, dict) else None
            if not is_vector(position, 3):
                name = f"{at}.view_points[{place}].agent_state.position"
                raise fault(name, position, "3 finite numbers")
            goals.append(_goal(position))
        if not views:
            if not is_vector(thing.get("position"), 3):
                raise fault(f"{at}.position", thing.get("position"), "3 finite numbers")
            goals.append(_goal(thing["position"]))
        kept = {name: value for name, value in thing.items() if name != "view_points"}
        if wrong := find_fault(kept, at):
            raise EpisodeError(f"{where}: key {wrong[0]} {wrong[1]}", episode_id, wrong[0])
        objects.append({**kept, "num_view_points": len(views)})
    return tuple(goals), objects


def _goal(position: Any) -> Goal:
    x, y, z = (float(number) for number in position)
    return Goal((x, y, z), RADIUS_M)
