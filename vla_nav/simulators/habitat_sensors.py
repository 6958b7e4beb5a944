"""habitat-sim's sensors: made once per image size and angle, moved for height and pitch.

    camera "front"  ->  sensors "front.rgb", "front.depth" (if it has depth), "front.semantic"

The library gives RGBA uint8, depth float32 in metres along the optical axis (0: nothing hit) and
semantic uint32, each in a buffer that the next image overwrites; what leaves here is a copy.
"""

from __future__ import annotations

import math
from typing import Any

import habitat_sim
import magnum
import numpy as np

from vla_nav.episodes.types import Camera, Pose
from vla_nav.simulators.protocol import Observation

_KINDS = {
    "rgb": habitat_sim.SensorType.COLOR,
    "depth": habitat_sim.SensorType.DEPTH,
    "semantic": habitat_sim.SensorType.SEMANTIC,
}


def sensor_specs(cameras: tuple[Camera, ...], *, semantic: bool) -> list[Any]:
    """Specifications for an agent's configuration."""
    specs = []
    for camera in cameras:
        for kind in _kinds(camera, semantic=semantic):
            spec = habitat_sim.CameraSensorSpec()
            spec.uuid = f"{camera.name}.{kind}"
            spec.sensor_type = _KINDS[kind]
            spec.sensor_subtype = habitat_sim.SensorSubType.PINHOLE
            spec.resolution = [camera.height_px, camera.width_px]
            spec.hfov = camera.hfov_deg
            spec.position = [0.0, camera.height_m, 0.0]
            spec.orientation = [math.radians(camera.pitch_deg), 0.0, 0.0]
            specs.append(spec)
    return specs


class Sensors:
    """The sensors of a simulator that was configured with `sensor_specs(cameras)`."""

    def __init__(self, simulator: Any, cameras: tuple[Camera, ...]) -> None:
        self._simulator = simulator
        self._made_for = [_shape(camera) for camera in cameras]

    def fit(self, cameras: tuple[Camera, ...]) -> bool:
        """Whether they can render these cameras; height and pitch may differ."""
        return all(_shape(camera) in self._made_for for camera in cameras)

    def look(self, pose: Pose, cameras: tuple[Camera, ...], *, semantic: bool) -> Observation:
        """Images where the agent's node stands."""
        images: dict[str, dict[str, np.ndarray]] = {kind: {} for kind in _KINDS}
        for camera in cameras:
            for kind in _kinds(camera, semantic=semantic):
                images[kind][camera.name] = self._image(camera, kind)
        return Observation(pose, images["rgb"], images["depth"], images["semantic"])

    def _image(self, camera: Camera, kind: str) -> np.ndarray:
        uuid = f"{camera.name}.{kind}"
        node = self._simulator.get_agent(0).scene_node.subtree_sensors[uuid].node
        node.translation = magnum.Vector3(0.0, camera.height_m, 0.0)
        node.rotation = magnum.Quaternion.rotation(
            magnum.Deg(camera.pitch_deg), magnum.Vector3.x_axis()
        )
        image = self._rendered(uuid)
        if kind == "rgb":
            image = image[..., :3]
        return np.array(image, order="C", copy=True)

    def _rendered(self, uuid: str) -> np.ndarray:
        """One sensor's image; versions up to 0.3.3 have no public call for less than all."""
        simulator = self._simulator
        if hasattr(simulator, "render_sensors"):
            return simulator.render_sensors([simulator.get_sensor(uuid)])[uuid]
        sensor = simulator._sensors[uuid]
        sensor.draw_observation()
        return sensor.get_observation()


def _kinds(camera: Camera, *, semantic: bool) -> list[str]:
    wanted = {"rgb": True, "depth": camera.has_depth, "semantic": semantic}
    return [kind for kind, is_wanted in wanted.items() if is_wanted]


def _shape(camera: Camera) -> tuple[Any, ...]:
    """What a sensor cannot change after it is made."""
    return camera.name, camera.width_px, camera.height_px, camera.hfov_deg, camera.has_depth
