"""The agent of a simulator that stands somewhere: what is alike in every backend.

    reset   snapped to the floor, the direction kept       act = move from where it stands
    place   exactly there

A backend gives `snap` and `move`, and names the loaded scene in `_path` (None while there is none).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from vla_nav.episodes.types import Pose
from vla_nav.errors import UserError
from vla_nav.simulators.protocol import Motion, Point

SNAP_M = 1.0  # a point farther from the walkable area than this is not on it


class StandingAgent(ABC):
    """One agent in the loaded scene; the methods are those of `protocol.Simulator`."""

    _path: str | None = None
    _pose: Pose | None = None

    @abstractmethod
    def snap(self, point: Point) -> Point | None:
        """The nearest walkable point within `SNAP_M`, or None; raises without a scene."""

    @abstractmethod
    def move(self, pose: Pose, primitive: int) -> Motion:
        """Where a primitive action would lead from `pose`."""

    def reset(self, pose: Pose) -> Pose:
        position = self.snap(pose.position)
        if position is None:
            x, y, z = pose.position
            raise UserError(
                f"{self._path}: start ({x:.3f}, {y:.3f}, {z:.3f}) has no walkable point within "
                f"{SNAP_M:g} m; check the scene and the agent's radius and height"
            )
        self._pose = Pose(position, pose.rotation)
        return self._pose

    def place(self, pose: Pose) -> None:
        if self._path is None:
            raise RuntimeError("no scene is loaded; call load_scene first")
        self._pose = pose

    def act(self, primitive: int) -> Motion:
        motion = self.move(self._placed(), primitive)
        self._pose = motion.pose
        return motion

    def _placed(self) -> Pose:
        if self._pose is None:
            raise RuntimeError("the agent is nowhere yet; call load_scene and reset first")
        return self._pose
