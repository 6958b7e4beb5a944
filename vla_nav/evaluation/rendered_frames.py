"""Frames that were never recorded, rendered from the poses of an episode.

    step.pose, camera  --posed-->  key {"scene": ..., "frame": "front", "pose": [...], ...}
                                     |
    RenderedFrames.read(key)  --load the scene, place the agent, look-->  pixels

A key says everything that the image depends on beside the scene file and the renderer, so frames
can be rendered in any process and in any order; neighbouring keys of one pose render once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from vla_nav.episodes.lerobot_layout import frame_names
from vla_nav.episodes.types import Embodiment, Episode, Pose
from vla_nav.errors import UserError
from vla_nav.simulators.protocol import Observation, Simulator


def posed(episode: Episode, body: Embodiment) -> Episode:
    """The episode with a key for every frame that `body`'s cameras see from its steps' poses."""
    steps = []
    for step in episode.steps:
        pose = [*step.pose.position, *step.pose.rotation]
        frames = {
            name: json.dumps(
                {
                    "scene": episode.scene_id,
                    "frame": name,
                    "height_m": camera.height_m,
                    "pitch_deg": camera.pitch_deg,
                    "pose": pose,
                }
            )
            for name, camera in frame_names(body).items()
        }
        steps.append(replace(step, frames=frames))
    return replace(episode, embodiment=body, steps=tuple(steps))


class RenderedFrames:
    """A `FrameSource` over a simulator. scenes: scene id -> file."""

    def __init__(self, simulator: Simulator, scenes: Mapping[str, str]) -> None:
        self._simulator, self._scenes = simulator, scenes
        self._cameras = simulator.embodiment.cameras
        self._seen: tuple[str, Observation] | None = None

    def read(self, frame_key: str) -> np.ndarray:
        """The pixels of a key of `posed`. Raises `UserError` for any other, and for a scene that
        has no file."""
        try:
            asked = json.loads(frame_key)
            scene, name, values = asked["scene"], asked["frame"], asked["pose"]
            pose = Pose(tuple(values[:3]), tuple(values[3:]))
            height_m, pitch_deg = float(asked["height_m"]), float(asked["pitch_deg"])
        except (ValueError, KeyError, TypeError):
            raise UserError(f"frame '{frame_key[:80]}': is not the key of a pose") from None
        if scene not in self._scenes:
            raise UserError(f"scene '{scene}': has no file to render from; correct data.scenes")
        camera = name.removesuffix(".depth")
        place = json.dumps([scene, camera, height_m, pitch_deg, values])
        if self._seen is None or self._seen[0] != place:
            self._seen = (place, self._observe(scene, camera, height_m, pitch_deg, pose))
        seen = self._seen[1]
        return seen.rgb[name] if name == camera else seen.depth[camera]

    def _observe(
        self, scene: str, name: str, height_m: float, pitch_deg: float, pose: Pose
    ) -> Observation:
        cameras = [camera for camera in self._cameras if camera.name == name]
        if not cameras:
            raise UserError(f"camera '{name}': the simulator has no such camera")
        looking = replace(cameras[0], height_m=height_m, pitch_deg=pitch_deg)
        simulator = self._simulator
        simulator.embodiment = replace(simulator.embodiment, cameras=(looking,))
        simulator.load_scene(self._scenes[scene])
        simulator.place(pose)
        return simulator.observe()
