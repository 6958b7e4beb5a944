"""Data checks of a folder: the source, the splits it is compared with, its scenes, reachability.

Reachability needs a simulator: of a few scenes that are there, a few episodes each are asked for
the walkable distance from start to goal. A distance that is infinite is D604.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vla_nav.episodes.checks import DataReport, Tally, check_source
from vla_nav.episodes.formats import detect, open_source
from vla_nav.episodes.scenes import resolve_scene
from vla_nav.episodes.types import Embodiment, Episode
from vla_nav.errors import UserError
from vla_nav.simulators.mesh import MeshSimulator

_TRAIN = "train"


def examine(
    data: Mapping[str, Any],
    *,
    compare: Sequence[str] | None = None,
    scenes: str | Path | None = None,
    reachability: Reachability | None = None,
) -> DataReport:
    """Check `data.split` in `data.path`.

    data: path, split, format (None: detected), role. compare: other splits to look for leaks into;
    None: train, where the folder has it. scenes: folder that scene ids are relative to; None:
    `<path>/scenes` if it exists. reachability: which episodes to try in their scene, if any.
    """
    path, split, role = Path(data["path"]), data["split"], data.get("role") or ""
    format = data.get("format")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what readers warn of is a finding here
        source = open_source(path, split=split, format=format, role=role)
        if compare is None:
            has_train = path.is_dir() and split != _TRAIN and _has(path, _TRAIN, format)
            compare = [_TRAIN] if has_train else []
        others = [open_source(path, split=name, format=format, role=role) for name in compare]
    folder = path / "scenes" if scenes is None else Path(scenes)
    if scenes is None and not folder.is_dir():
        folder = None
    watch = (
        None if folder is None or reachability is None else ReachabilityCheck(folder, reachability)
    )
    return check_source(source, compare=others, scenes=folder, watch=watch)


@dataclass(frozen=True)
class Reachability:
    """How much is tried: body and options of the mesh simulator, num_episodes in each of the first
    num_scenes, within max_s seconds."""

    body: Embodiment
    options: Mapping[str, Any]
    num_scenes: int = 8
    num_episodes: int = 8
    max_s: float = 20.0


class ReachabilityCheck:
    """Walkable distances of a few episodes in a few scenes, within a time."""

    def __init__(self, folder: Path, settings: Reachability) -> None:
        """folder: what scene ids are relative to."""
        self._folder, self._settings = folder, settings
        self._kept: dict[str, list[Episode]] = {}

    def see(self, episode: Episode) -> None:
        """Keep an episode to try, if there is room."""
        is_known = episode.scene_id in self._kept
        if not episode.goals or not (is_known or len(self._kept) < self._settings.num_scenes):
            return
        kept = self._kept.setdefault(episode.scene_id, [])
        if len(kept) < self._settings.num_episodes:
            kept.append(replace(episode, steps=(), metadata={}))

    def close(self, tally: Tally) -> dict[str, Any]:
        """Try them; facts for the report."""
        deadline = time.monotonic() + self._settings.max_s
        tried = 0
        for scene_id, episodes in self._kept.items():
            if time.monotonic() > deadline:
                break
            try:
                file = resolve_scene(scene_id, self._folder)
            except UserError:
                continue  # D601 says so
            simulator = MeshSimulator(self._settings.body, **self._settings.options)
            try:
                simulator.load_scene(str(file))
                for episode in episodes:
                    tried += 1
                    self._try(simulator, episode, tally)
                    if time.monotonic() > deadline:
                        break
            except UserError as error:
                tally.add_whole("D605", "scene_id", str(error), file=str(file))
            finally:
                simulator.close()
        return {"reachability_tried": tried}

    def _try(self, simulator: MeshSimulator, episode: Episode, tally: Tally) -> None:
        tally.next_episode()
        start = episode.start_pose.position
        if simulator.snap(start) is None:
            tally.add("D605", episode, "start_position", f"{start} is not on the floor")
            return
        distance = simulator.geodesic_distance(start, [goal.position for goal in episode.goals])
        if not math.isfinite(distance):
            tally.add(
                "D604", episode, "goals", f"no walk from {start} to {len(episode.goals)} goals"
            )


def _has(path: Path, split: str, format: str | None) -> bool:
    """Whether the folder holds another split in the same format, or any where none is named."""
    try:
        return format in (None, detect(path, split))
    except UserError:
        return False
