"""What a simulator adds to the page: floor maps, and walks executed again with frames and labels.

    track's primitives --one by one--> pose, image, what the expert would do from here

The mesh backend repeats an evaluation exactly: places and headings are those that were scored, and
a track that does not end where its line says (other scenes, another version) is reported.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from vla_nav.episodes.scenes import resolve_scene
from vla_nav.episodes.types import STOP, Embodiment, Episode
from vla_nav.errors import UserError
from vla_nav.simulators import plain
from vla_nav.simulators.agent import ExpertSettings
from vla_nav.simulators.client import Worker
from vla_nav.simulators.opening import SimulatorSetup
from vla_nav.simulators.topdown import FloorMap
from vla_nav.viewing.content import Track, spot_of
from vla_nav.viewing.floors import Floor, SceneFloors
from vla_nav.viewing.frame_files import FrameFiles

MAPS = "data/maps"
_AGREE_M = 0.01  # results are rounded to a tenth of a millimetre
_HORIZON = 1


class SceneViews:
    """Scenes of one body, opened when first asked for."""

    def __init__(
        self,
        *,
        simulator: SimulatorSetup,
        body: Embodiment,
        scenes: Path,
        root: Path,
        stop_radius_m: float,
    ) -> None:
        """scenes: their folder; root: of the page; stop_radius_m: where the expert stops."""
        self.body = body
        self._scenes, self._stop_radius_m = scenes, stop_radius_m
        self._worker: Worker | None = None
        self._simulator = simulator
        self._maps = SceneFloors(root, MAPS)
        self._floors: dict[str, list[Floor]] = {}

    def floors(self, scene_id: str) -> list[Floor]:
        """The floors of a scene, their images written."""
        if scene_id not in self._floors:
            maps = self._call("floors", scene=self._file(scene_id))
            self._floors[scene_id] = self._maps.write(
                scene_id, self.body, map(FloorMap.from_plain, maps)
            )
        return self._floors[scene_id]

    def replay(self, episode: Episode, track: Track, files: FrameFiles) -> None:
        """Execute the track's primitives again; fills in its spots, frames and labels."""
        scene = self._file(episode.scene_id)
        goals = tuple(goal.position for goal in episode.goals)
        expert = ExpertSettings(goals, self._stop_radius_m, _HORIZON) if goals else None
        pose = self._call(
            "open",
            agent=0,
            scene=scene,
            pose=plain.pose_to_plain(episode.start_pose),
            expert=plain.expert_to_plain(expert),
        )
        spots = [spot_of(plain.pose_from_plain(pose))]
        frames: list[dict[str, str]] = []
        labels: list[list[list[int]]] = []
        num_collisions = 0
        primitives = [primitive for step in track.actions for primitive in step]
        for at in range(len(primitives)):
            motion = [primitives[at - 1]] if at else []
            outcome = plain.outcome_from_plain(
                self._call(
                    "run",
                    agent=0,
                    primitives=motion,
                    wants_images=True,
                    wants_label=expert is not None,
                )
            )
            if motion:
                spots.append(spot_of(outcome.poses[-1]))
                num_collisions += sum(outcome.collided)
            frames.append(self._images(files, episode.scene_id, outcome))
            labels.append([list(outcome.label.primitives)] if outcome.label else [])
        if primitives and primitives[-1] != STOP:
            moved = self._call(
                "run", agent=0, primitives=primitives[-1:], wants_images=False, wants_label=False
            )
            spots.append(spot_of(plain.outcome_from_plain(moved).poses[-1]))
        self._call("close", agent=0)
        apart = math.dist(spots[-1][:3], track.spots[-1][:3]) if track.spots else 0.0
        if apart > _AGREE_M:
            track.notes.append(
                f"executed again it ends {apart:.2f} m elsewhere, so the frames may not be those "
                "that were seen"
            )
            return
        track.spots, track.frames, track.labels = spots, frames, labels
        track.notes = [note for note in track.notes if "inferred" not in note]
        if num_collisions:
            track.notes.append(f"{num_collisions} collisions")

    def close(self) -> None:
        """Release the simulator."""
        if self._worker is not None:
            self._worker.close()

    def _images(self, files: FrameFiles, scene_id: str, outcome: Any) -> dict[str, str]:
        seen = outcome.observation
        if seen is None:
            return {}
        pose = ",".join(f"{value:.6f}" for value in plain.pose_to_plain(seen.pose))
        images = {**seen.rgb, **{f"{name}.depth": depth for name, depth in seen.depth.items()}}
        return {
            name: files.from_pixels(f"{scene_id}|{name}|{pose}|{self.body.cameras}", pixels)
            for name, pixels in images.items()
        }

    def _file(self, scene_id: str) -> str:
        return str(resolve_scene(scene_id, self._scenes))

    def _call(self, method: str, **arguments: Any) -> Any:
        if self._worker is None:
            self._worker = self._simulator.started(self.body)
        return self._worker.call(method, **arguments)


def find_scenes(given: str | None, data_path: str | None) -> Path | None:
    """The folder of scenes: as given, else `<data.path>/scenes`, or None where there is none."""
    if given is not None:
        if not Path(given).is_dir():
            raise UserError(f"data.scenes={given}: no such folder; correct it, or leave it null")
        return Path(given)
    beside = Path(data_path or "") / "scenes"
    return beside if data_path and beside.is_dir() else None
