"""habitat-sim behind the `Simulator` protocol; runs in a worker process of its own interpreter.

scene file -> what habitat-sim is told (habitat_scene) -> simulator -+-> sensors         observe
                                                                     +-> agent controls  act, move
                                                                     +-> navigation mesh geodesics

The agent moves by habitat-sim's own controls, from whatever pose is given: a pose holds the very
numbers the library had (float32), so a walk taken step by step from stored poses is the walk that
the library's `step` takes. A scene is loaded with a navigation mesh or not at all, since a query
without one crashes the process; an old scene's simulator is closed before the next is made: one
per process, made and used in one thread. More of that kind is in `habitat_library.py`.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from pathlib import Path
from typing import Any

import habitat_sim
import magnum
import numpy as np
from habitat_sim.agent import ActuationSpec

from vla_nav.episodes.types import (
    LOOK_DOWN,
    LOOK_UP,
    MOVE_FORWARD,
    PRIMITIVE_NAMES,
    STOP,
    TURN_LEFT,
    TURN_RIGHT,
    Embodiment,
    Pose,
)
from vla_nav.errors import UserError
from vla_nav.simulators import habitat_navmesh
from vla_nav.simulators.cameras import check_camera
from vla_nav.simulators.habitat_library import gpu_device, make_simulator
from vla_nav.simulators.habitat_navmesh import NavmeshSettings
from vla_nav.simulators.habitat_scene import find_scene
from vla_nav.simulators.habitat_sensors import Sensors, sensor_specs
from vla_nav.simulators.protocol import GeodesicPath, Motion, Observation, Point
from vla_nav.simulators.standing import SNAP_M, StandingAgent
from vla_nav.simulators.topdown import FloorMap

_ACTIONS = {MOVE_FORWARD: "move_forward", TURN_LEFT: "turn_left", TURN_RIGHT: "turn_right"}


class HabitatSimulator(StandingAgent):
    """The `Simulator` protocol over habitat-sim; see `protocol.py` for the methods.

    gpu_device_id: CUDA device to render on, -1 for software rendering, None to look for one.
    scene_dataset, up_axis: see `habitat_scene.find_scene`. navmesh, cell_m, cell_height_m,
    max_climb_m, max_slope_deg: see `NavmeshSettings`. has_ibl: image-based lighting.
    The cameras of `embodiment` may be exchanged at any time, its body only before `load_scene`.
    """

    backend = "habitat"

    def __init__(
        self,
        embodiment: Embodiment,
        *,
        gpu_device_id: int | None = None,
        scene_dataset: str | None = None,
        up_axis: str = "auto",
        navmesh: str = "auto",
        cell_m: float = 0.05,
        cell_height_m: float = 0.2,
        max_climb_m: float = 0.2,
        max_slope_deg: float = 45.0,
        has_ibl: bool = False,
    ) -> None:
        for camera in embodiment.cameras:
            check_camera(camera)
        self.embodiment = embodiment
        self._gpu_device_id = gpu_device() if gpu_device_id is None else gpu_device_id
        self._dataset = None if scene_dataset is None else str(Path(scene_dataset).absolute())
        self._up_axis = up_axis
        self._navmesh = NavmeshSettings(navmesh, cell_m, cell_height_m, max_climb_m, max_slope_deg)
        self._navmesh.check()
        self._has_ibl = has_ibl
        self._has_semantic = False
        self._folder = tempfile.TemporaryDirectory(prefix="vla_nav_habitat_")
        self._simulator: Any = None
        self._sensors: Sensors | None = None

    def load_scene(self, scene_path: str) -> None:
        path = str(scene_path)
        if self._path != path or self._simulator is None:
            self.close()
            self._open(path)
            self._path = path

    def move(self, pose: Pose, primitive: int) -> Motion:
        if primitive == STOP:
            return Motion(pose, False)
        if primitive == MOVE_FORWARD:
            return self._control(pose, "move_forward", self.embodiment.step_m)
        if primitive in (TURN_LEFT, TURN_RIGHT):
            return self._control(pose, _ACTIONS[primitive], self.embodiment.turn_deg)
        if primitive in (LOOK_UP, LOOK_DOWN):
            raise UserError(
                f"{PRIMITIVE_NAMES[primitive]} is not offered by the habitat simulator: its "
                "cameras are fixed; set the camera's pitch_deg instead"
            )
        raise UserError(f"unknown primitive action {primitive}; allowed: 0 .. 3")

    def drive(self, pose: Pose, forward_m: float, turn_rad: float) -> Motion:
        if turn_rad:
            pose = self._control(pose, "turn_left", math.degrees(turn_rad)).pose
        has_collided = False
        count = math.ceil(abs(forward_m) / self.embodiment.step_m - 1e-9)
        for _ in range(count):
            motion = self._control(pose, "move_forward", forward_m / count)
            pose, has_collided = motion.pose, has_collided or motion.has_collided
        return Motion(pose, has_collided)

    def observe(self, *, semantic: bool = False) -> Observation:
        pose = self._placed()
        self._loaded()
        if (semantic and not self._has_semantic) or not self._sensors.fit(self.embodiment.cameras):
            for camera in self.embodiment.cameras:
                check_camera(camera)
            self._has_semantic = self._has_semantic or semantic
            path = str(self._path)
            self._close_library()
            self._open(path)
        self._stand(pose)
        return self._sensors.look(pose, self.embodiment.cameras, semantic=semantic)

    def geodesic_distance(self, start: Point, goals: list[Point]) -> float:
        pathfinder = self._loaded().pathfinder
        ends = [goal for goal in goals if _is_finite(goal)]
        if not ends or not _is_finite(start):
            return math.inf
        path = habitat_sim.MultiGoalShortestPath()
        path.requested_start = _vector(start)
        path.requested_ends = [_vector(end) for end in ends]
        return float(path.geodesic_distance) if pathfinder.find_path(path) else math.inf

    def shortest_path(self, start: Point, goal: Point) -> GeodesicPath:
        pathfinder = self._loaded().pathfinder
        if _is_finite(start) and _is_finite(goal):
            path = habitat_sim.ShortestPath()
            path.requested_start, path.requested_end = _vector(start), _vector(goal)
            if pathfinder.find_path(path):
                points = np.array([list(point) for point in path.points], np.float64)
                return GeodesicPath(float(path.geodesic_distance), points.reshape(-1, 3))
        return GeodesicPath(math.inf, np.zeros((0, 3)))

    def snap(self, point: Point) -> Point | None:
        pathfinder = self._loaded().pathfinder
        if not _is_finite(point):
            return None
        x, y, z = map(float, pathfinder.snap_point(_vector(point)))
        if not _is_finite((x, y, z)) or math.dist((x, y, z), point) > SNAP_M:
            return None
        return x, y, z

    def random_point(self, rng: np.random.Generator) -> Point:
        return habitat_navmesh.random_point(self._loaded().pathfinder, rng)

    def floors(self) -> list[FloorMap]:
        return habitat_navmesh.floors(self._loaded().pathfinder)

    def close(self) -> None:
        self._close_library()
        self._path = self._pose = None

    def _open(self, path: str) -> None:
        """Make the library's simulator for a scene, with a navigation mesh, or leave none."""
        stages = Path(self._folder.name) / "stages"
        shutil.rmtree(stages, ignore_errors=True)  # the last scene's, which is closed
        scene = find_scene(
            path,
            folder=stages,
            dataset=self._dataset,
            up_axis=self._up_axis,
            semantic=self._has_semantic,
        )
        cameras = self.embodiment.cameras
        self._simulator = make_simulator(
            scene,
            self.embodiment,
            sensors=sensor_specs(cameras, semantic=self._has_semantic),
            gpu_device_id=self._gpu_device_id,
            semantic=self._has_semantic,
            quiet_folder=None if self._has_ibl else Path(self._folder.name),
        )
        try:
            habitat_navmesh.ready_navmesh(self._simulator, scene, self.embodiment, self._navmesh)
        except BaseException:
            self._close_library()
            raise
        self._sensors = Sensors(self._simulator, cameras)

    def _close_library(self) -> None:
        if self._simulator is not None:
            self._simulator.close()
        self._simulator = self._sensors = None

    def _control(self, pose: Pose, name: str, amount: float) -> Motion:
        """One of habitat-sim's own body actions, from a pose."""
        agent = self._loaded().get_agent(0)
        node = self._stand(pose)
        has_collided = agent.controls.action(node, name, ActuationSpec(amount), apply_filter=True)
        position, rotation = node.translation, node.rotation
        x, y, z = rotation.vector
        taken = Pose(tuple(map(float, position)), (float(x), float(y), float(z), rotation.scalar))
        return Motion(taken, bool(has_collided))

    def _stand(self, pose: Pose) -> Any:
        """Put the agent's node there; the node."""
        node = self._loaded().get_agent(0).scene_node
        x, y, z, w = map(float, pose.rotation)
        node.translation = magnum.Vector3(*map(float, pose.position))
        node.rotation = magnum.Quaternion(magnum.Vector3(x, y, z), w)
        return node

    def _loaded(self) -> Any:
        """The library's simulator; it always has a navigation mesh."""
        if self._simulator is None:
            raise RuntimeError("no scene is loaded; call load_scene first")
        assert self._simulator.pathfinder.is_loaded
        return self._simulator


def _is_finite(point: Point) -> bool:
    return all(map(math.isfinite, point))


def _vector(point: Point) -> np.ndarray:
    """(3,) float32: the library rejects lists of integers."""
    return np.array(point, np.float32)
