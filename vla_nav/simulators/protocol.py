"""What every simulator backend offers: motion, observation and geodesics in one loaded scene.

Action semantics are Habitat's: MOVE_FORWARD by `step_m`, TURN_LEFT/RIGHT by `turn_deg`, sliding
along obstacles or stopping at them; positions are floor points (see `vla_nav.episodes.types`).
A simulator holds one scene and one agent. Rendering is separate from moving, so a decision of
several primitives renders once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np

from vla_nav.episodes.types import Embodiment, Pose
from vla_nav.frozen import frozen
from vla_nav.simulators.topdown import FloorMap

Point = tuple[float, float, float]  # x, y, z in metres, world


@frozen
class Observation:
    """Images at one pose: `rgb` (H, W, 3) uint8, `depth` (H, W) float32 metres (planar z, 0 where
    nothing is hit), `semantic` (H, W) uint32, each keyed by the camera's name."""

    pose: Pose
    rgb: Mapping[str, np.ndarray]
    depth: Mapping[str, np.ndarray]
    semantic: Mapping[str, np.ndarray]


class Motion(NamedTuple):
    """The pose after a primitive action and whether the agent touched something."""

    pose: Pose
    has_collided: bool


class GeodesicPath(NamedTuple):
    """Length in metres (inf where there is no path) and corner points (P, 3) float64, world."""

    distance_m: float
    points: np.ndarray


class Simulator(Protocol):
    """One scene, one agent. Errors that a user can mend (missing scene, ...) are `UserError`s."""

    backend: str
    embodiment: Embodiment

    def load_scene(self, scene_path: str) -> None:
        """Load a scene file, or do nothing if it is the loaded one."""
        ...

    def reset(self, pose: Pose) -> Pose:
        """Put the agent there, snapped to the floor; return the pose taken."""
        ...

    def place(self, pose: Pose) -> None:
        """Put the agent exactly at a pose that `reset`, `act` or `move` gave, without snapping."""
        ...

    def act(self, primitive: int) -> Motion:
        """Move the agent by one primitive action."""
        ...

    def move(self, pose: Pose, primitive: int) -> Motion:
        """Where a primitive action would lead from `pose`; the agent stays where it is."""
        ...

    def drive(self, pose: Pose, forward_m: float, turn_rad: float) -> Motion:
        """Where a turn by any angle (left positive), then a way of any length (backward negative)
        would lead from `pose`, with collisions and sliding as for a step; the agent stays."""
        ...

    def observe(self, *, semantic: bool = False) -> Observation:
        """Images of every camera at the agent's pose; depth for the cameras that have it."""
        ...

    def geodesic_distance(
        self, start: tuple[float, float, float], goals: list[tuple[float, float, float]]
    ) -> float:
        """Shortest walkable length from `start` to the nearest goal, metres; inf without a path."""
        ...

    def shortest_path(
        self, start: tuple[float, float, float], goal: tuple[float, float, float]
    ) -> GeodesicPath:
        """The shortest walkable path between two floor points."""
        ...

    def snap(self, point: tuple[float, float, float]) -> tuple[float, float, float] | None:
        """The nearest walkable point, or None if there is none within a metre."""
        ...

    def random_point(self, rng: np.random.Generator) -> tuple[float, float, float]:
        """A walkable point, uniform by area over all floors."""
        ...

    def floors(self) -> list[FloorMap]:
        """Top-down maps of the walkable area, one per floor from below upward."""
        ...

    def close(self) -> None:
        """Release the scene; later calls raise."""
        ...
