"""Recorded navigation episodes as plain typed data: what readers yield and writers take.

Conventions (those of Habitat):  +Y up, -Z forward, right handed; metres; an agent's position is
its floor point, cameras add their height. Rotations are unit quaternions in `xyzw` order.
`yaw_rad` turns counter-clockwise about +Y seen from above; yaw 0 looks along -Z.

            -Z (yaw 0)
             ^
    -X  <----+----> +X      yaw +pi/2 looks along -X, forward(yaw) = (-sin yaw, 0, -cos yaw)
             |
            +Z

A step is one decision: the frames seen, where, what the expert would do from here (labels, any
number), and which primitive actions were then executed. What was done and what is taught differ
under a perturbed expert and under DAgger.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from typing import Any, Protocol

import numpy as np

from vla_nav.frozen import frozen

STOP, MOVE_FORWARD, TURN_LEFT, TURN_RIGHT, LOOK_UP, LOOK_DOWN = range(6)
PRIMITIVE_NAMES = ("STOP", "MOVE_FORWARD", "TURN_LEFT", "TURN_RIGHT", "LOOK_UP", "LOOK_DOWN")


@frozen
class Pose:
    """Where an agent stands: floor point in metres (world) and unit quaternion, `xyzw`."""

    position: tuple[float, float, float]
    rotation: tuple[float, float, float, float]

    @staticmethod
    def from_yaw(position: tuple[float, float, float], yaw_rad: float) -> Pose:
        """A level pose that looks along `yaw_rad`."""
        x, y, z = position
        half = yaw_rad / 2
        return Pose((float(x), float(y), float(z)), (0.0, math.sin(half), 0.0, math.cos(half)))

    @property
    def yaw_rad(self) -> float:
        """Heading of the rotated -Z axis in (-pi, pi], counter-clockwise about +Y."""
        x, y, z, w = self.rotation
        forward_x, forward_z = -2 * (x * z + w * y), -(1 - 2 * (x * x + y * y))
        return math.atan2(-forward_x, -forward_z)

    def relative(self, other: Pose) -> tuple[float, float, float]:
        """`other` in this pose's frame: (forward_m, left_m, yaw_rad), yaw in (-pi, pi]."""
        dx = other.position[0] - self.position[0]
        dz = other.position[2] - self.position[2]
        yaw = self.yaw_rad
        forward = -dx * math.sin(yaw) - dz * math.cos(yaw)
        left = -dx * math.cos(yaw) + dz * math.sin(yaw)
        return forward, left, wrap_angle(other.yaw_rad - yaw)


@frozen
class Camera:
    """A pinhole camera fixed on the agent; pitch is positive upward, depth is planar z."""

    name: str
    width_px: int
    height_px: int
    hfov_deg: float
    height_m: float
    pitch_deg: float = 0.0
    has_depth: bool = False


@frozen
class Embodiment:
    """The body and its motion: part of the data, compared before training and evaluation."""

    cameras: tuple[Camera, ...]
    radius_m: float
    height_m: float
    turn_deg: float
    step_m: float
    is_sliding: bool


@frozen
class Goal:
    """A goal position and the radius in metres within which STOP is a success."""

    position: tuple[float, float, float]
    radius_m: float


@frozen
class PixelTarget:
    """The farthest visible point of the expert's remaining path, as seen by one camera.

    `u`, `v` in [0, 1] from the image's left and top edge; `yaw_rad` is the expert's heading there
    relative to the agent's (counter-clockwise).
    """

    camera: str
    u: float
    v: float
    yaw_rad: float


@frozen
class ExpertLabel:
    """What an expert would do from a state.

    primitives: the expert's next primitive actions, at most the recorder's horizon, STOP included.
    poses: the pose after each of them (world), same length; STOP repeats the pose before it.
    pixel: the pointing target, or None when no point of the remaining path is in view.
    """

    primitives: tuple[int, ...]
    poses: tuple[Pose, ...]
    pixel: PixelTarget | None = None


@frozen
class Step:
    """One decision. `frames` maps a camera's name (`front`, `front.depth`) to a frame key."""

    pose: Pose
    frames: Mapping[str, str]
    executed: tuple[int, ...]
    labels: tuple[ExpertLabel, ...]


@frozen
class Episode:
    """One recorded (or still unrecorded, `steps == ()`) navigation episode.

    Keyed by (dataset, split, role, episode_id) everywhere. `reference_path` is (P, 3) float64,
    metres, world. `metadata` keeps every key that a format has beyond these.
    """

    dataset: str
    split: str
    role: str
    episode_id: str
    scene_id: str
    instruction: str
    start_pose: Pose
    goals: tuple[Goal, ...]
    reference_path: np.ndarray
    embodiment: Embodiment | None
    steps: tuple[Step, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, str, str]:
        """(dataset, split, role, episode_id)."""
        return self.dataset, self.split, self.role, self.episode_id


class FrameSource(Protocol):
    """Anything that yields the pixels of a frame key: recorded files, videos, or a renderer."""

    def read(self, frame_key: str) -> np.ndarray:
        """RGB (H, W, 3) uint8, or depth (H, W) float32 metres for a `.depth` frame.

        Raises `UserError` for a key that it does not hold.
        """
        ...


def wrap_angle(angle_rad: float) -> float:
    """The same angle in (-pi, pi]."""
    wrapped = math.remainder(angle_rad, 2 * math.pi)
    return math.pi if wrapped == -math.pi else wrapped
