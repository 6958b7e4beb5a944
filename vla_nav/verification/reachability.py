"""Data checks that need a simulator: is the goal reached by walking, will habitat-sim find all.

Of a few scenes that are there, a few episodes each are asked for the walkable distance from start
to goal: D604 where it is infinite, D605 where the scene or the start cannot be tried. With the
habitat backend every scene is also looked at for what habitat-sim needs beside it: D606 without a
navigation mesh, D605 for a file that it will not take.
"""

from __future__ import annotations

import math
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vla_nav.episodes.checks import Tally
from vla_nav.episodes.scenes import resolve_scene
from vla_nav.episodes.types import Embodiment, Episode
from vla_nav.errors import UserError
from vla_nav.simulators.client import WorkerDiedError, WorkerFaultError
from vla_nav.simulators.habitat_scene import find_scene
from vla_nav.simulators.opening import SimulatorSetup
from vla_nav.simulators.protocol import Simulator
from vla_nav.verification.probes import one_line

_MAX_SCENES = 2000


@dataclass(frozen=True)
class Reachability:
    """How much is tried, and by which simulator: num_episodes in each of the first num_scenes,
    within max_s seconds."""

    body: Embodiment
    simulator: SimulatorSetup
    num_scenes: int = 8
    num_episodes: int = 8
    max_s: float = 20.0


class ReachabilityCheck:
    """Walkable distances of a few episodes in a few scenes, within a time."""

    def __init__(self, folder: Path, settings: Reachability) -> None:
        """folder: what scene ids are relative to."""
        self._folder, self._settings = folder, settings
        self._kept: dict[str, list[Episode]] = {}
        self._counts: dict[str, int] = {}

    def see(self, episode: Episode) -> None:
        """Keep an episode to try, if there is room."""
        if episode.scene_id in self._counts or len(self._counts) < _MAX_SCENES:
            self._counts[episode.scene_id] = self._counts.get(episode.scene_id, 0) + 1
        is_known = episode.scene_id in self._kept
        if not episode.goals or not (is_known or len(self._kept) < self._settings.num_scenes):
            return
        kept = self._kept.setdefault(episode.scene_id, [])
        if len(kept) < self._settings.num_episodes:
            kept.append(replace(episode, steps=(), metadata={}))

    def close(self, tally: Tally) -> dict[str, Any]:
        """Try them; facts for the report."""
        if self._settings.simulator.backend == "habitat":
            self._look_beside(tally)
        if not self._kept:
            return {"reachability_tried": 0}
        try:
            simulator = self._settings.simulator.opened(self._settings.body)
            try:
                return {"reachability_tried": self._try_all(simulator, tally)}
            finally:
                simulator.close()
        except (UserError, WorkerDiedError, WorkerFaultError) as error:
            tally.add_whole("D605", "simulators", one_line(error))
            return {"reachability_tried": 0}

    def _look_beside(self, tally: Tally) -> None:
        """What habitat-sim will be told about every scene; nothing is loaded."""
        options = self._settings.simulator.options
        dataset, up_axis = options.get("scene_dataset"), options.get("up_axis", "auto")
        with tempfile.TemporaryDirectory(prefix="vla_nav_doctor_") as stages:
            for scene_id, count in self._counts.items():
                try:
                    file = resolve_scene(scene_id, self._folder)
                except UserError:
                    continue  # D601 says so
                try:
                    scene = find_scene(file, folder=stages, dataset=dataset, up_axis=up_axis)
                except UserError as error:
                    tally.add_whole("D605", "scene_id", str(error), file=str(file))
                    continue
                if scene.navmesh is None:
                    text = f"'{scene_id}' ({scene.convention})"
                    tally.add_whole("D606", "scene_id", text, count=count, file=str(file))

    def _try_all(self, simulator: Simulator, tally: Tally) -> int:
        deadline = time.monotonic() + self._settings.max_s
        tried = 0
        for scene_id, episodes in self._kept.items():
            if time.monotonic() > deadline:
                break
            try:
                file = resolve_scene(scene_id, self._folder)
            except UserError:
                continue  # D601 says so
            try:
                simulator.load_scene(str(file))
                for episode in episodes:
                    tried += 1
                    self._try(simulator, episode, tally)
                    if time.monotonic() > deadline:
                        break
            except UserError as error:
                tally.add_whole("D605", "scene_id", str(error), file=str(file))
        return tried

    def _try(self, simulator: Simulator, episode: Episode, tally: Tally) -> None:
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
