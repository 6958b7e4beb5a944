"""The mesh simulator: any GLB, PLY or OBJ stage, rendered and walked without a GPU.

stage (triangles) -> rays (Embree) -> renderer                   observe
                                  \\-> walkable area -> mover     act, move
                                                    \\-> visibility graph -> goal fields
"""

from __future__ import annotations

import math

import numpy as np

from vla_nav.episodes.types import Embodiment, Pose
from vla_nav.errors import UserError
from vla_nav.simulators.geodesic import GoalField, Place
from vla_nav.simulators.motion import Mover
from vla_nav.simulators.protocol import GeodesicPath, Motion, Observation
from vla_nav.simulators.rays import RayScene
from vla_nav.simulators.render import Renderer, check_camera
from vla_nav.simulators.stage import load_stage
from vla_nav.simulators.visibility import find_visibility
from vla_nav.simulators.walkable import Walkable, find_walkable

Point = tuple[float, float, float]
_SNAP_M = 1.0  # a point farther from the walkable area than this is not on it
_SNAP_ASIDE_M = 0.1  # nearer points are moved straight away from the obstacle, not to a cell
_FIELDS_KEPT = 64
_VIEW_MARGIN_M = 0.01


class MeshSimulator:
    """The `Simulator` protocol over one mesh scene (see `protocol.py` for the methods)."""

    backend = "mesh"

    def __init__(
        self,
        embodiment: Embodiment,
        *,
        cell_m: float = 0.1,
        max_climb_m: float = 0.25,
        max_slope_deg: float = 45.0,
        up_axis: str = "y",
    ) -> None:
        for camera in embodiment.cameras:
            check_camera(camera)
        self.embodiment = embodiment
        self._cell_m = cell_m
        self._max_climb_m = max_climb_m
        self._max_slope_deg = max_slope_deg
        self._up_axis = up_axis
        self._scene_path: str | None = None
        self._pose: Pose | None = None

    def load_scene(self, scene_path: str) -> None:
        scene_path = str(scene_path)
        if scene_path == self._scene_path:
            return
        stage = load_stage(scene_path, up_axis=self._up_axis)
        rays = RayScene(stage.vertices, stage.faces)
        self._walkable = find_walkable(
            stage,
            rays,
            radius_m=self.embodiment.radius_m,
            height_m=self.embodiment.height_m,
            cell_m=self._cell_m,
            max_climb_m=self._max_climb_m,
            max_slope_deg=self._max_slope_deg,
        )
        self._renderer = Renderer(stage, rays)
        self._mover = Mover(self._walkable, self.embodiment)
        self._graph = find_visibility(self._walkable)
        self._fields: dict[Point, GoalField | None] = {}
        columns = self._walkable.columns
        self._nodes = np.flatnonzero(self._walkable.is_walkable)
        self._points = np.stack([columns.x_m, columns.height_m, columns.z_m], axis=1)[self._nodes]
        # Cells whose centre is too near an obstacle may still be entered from a walkable neighbour.
        links = self._walkable.links
        self._is_kept = self._walkable.is_walkable.copy()
        for d in range(4):
            self._is_kept |= (links[:, d] >= 0) & self._walkable.is_walkable[links[:, d]]
        self._scene_path = scene_path
        self._pose = None

    def reset(self, pose: Pose) -> Pose:
        self._require_scene()
        position = self.snap(pose.position)
        if position is None:
            x, y, z = pose.position
            raise UserError(
                f"{self._scene_path}: start ({x:.3f}, {y:.3f}, {z:.3f}) has no walkable point "
                f"within {_SNAP_M:g} m; check the scene and the agent's radius and height"
            )
        self._pose = Pose(position, pose.rotation)
        return self._pose

    def place(self, pose: Pose) -> None:
        self._require_scene()
        self._pose = pose

    def act(self, primitive: int) -> Motion:
        motion = self.move(self._require_pose(), primitive)
        self._pose = motion.pose
        return motion

    def move(self, pose: Pose, primitive: int) -> Motion:
        return self._mover.move(pose, primitive)

    def observe(self, *, semantic: bool = False) -> Observation:
        pose = self._require_pose()
        rgb, depth, labels = {}, {}, {}
        for camera in self.embodiment.cameras:
            images = self._renderer.render(camera, pose, semantic=semantic)
            rgb[camera.name] = images.rgb
            if images.depth is not None:
                depth[camera.name] = images.depth
            if images.semantic is not None:
                labels[camera.name] = images.semantic
        return Observation(pose, rgb, depth, labels)

    def geodesic_distance(self, start: Point, goals: list[Point]) -> float:
        place = self._place(start)
        if place is None:
            return math.inf
        fields = [field for field in map(self._field, goals) if field is not None]
        return min((field.first_leg(place).distance_m for field in fields), default=math.inf)

    def shortest_path(self, start: Point, goal: Point) -> GeodesicPath:
        place, field = self._place(start), self._field(goal)
        if place is None or field is None:
            return GeodesicPath(math.inf, np.zeros((0, 3)))
        leg = field.first_leg(place)
        if not math.isfinite(leg.distance_m):
            return GeodesicPath(math.inf, np.zeros((0, 3)))
        return GeodesicPath(leg.distance_m, field.path(place, leg))

    def snap(self, point: Point) -> Point | None:
        self._require_scene()
        x, y, z = point
        found = self._mover.nearby(x, y, z, _SNAP_ASIDE_M)
        if found is not None and self._is_kept[found[0]]:
            node, x, z = found
            return x, self._mover.floor_height(node, x, z), z
        offset = self._points - np.asarray(point)
        away = np.einsum("ij,ij->i", offset, offset)
        nearest = int(away.argmin())
        if away[nearest] > _SNAP_M**2:
            return None
        return tuple(self._points[nearest].tolist())

    def random_point(self, rng: np.random.Generator) -> Point:
        self._require_scene()
        return tuple(self._points[rng.integers(len(self._points))].tolist())

    @property
    def walkable(self) -> Walkable:
        """The walkable area of the loaded scene (for maps)."""
        self._require_scene()
        return self._walkable

    def close(self) -> None:
        self._scene_path = None
        self._pose = None
        for name in ("_walkable", "_renderer", "_mover", "_graph", "_fields"):
            self.__dict__.pop(name, None)

    def _place(self, point: Point) -> Place | None:
        """The walkable place at a point, a hair off the walls so that it can see along them."""
        snapped = self.snap(point)
        if snapped is None:
            return None
        x, y, z = snapped
        node = self._mover.node_at(x, y, z)
        x, z = self._mover.off_the_wall(node, x, z, _VIEW_MARGIN_M)
        node = self._mover.node_at(x, y, z)
        return Place(np.array((x, y, z)), int(self._graph.sheets.label[node]))

    def _field(self, goal: Point) -> GoalField | None:
        """The field of a goal, kept for later queries; None for a goal off the walkable area."""
        self._require_scene()
        key = (float(goal[0]), float(goal[1]), float(goal[2]))
        if key not in self._fields:
            place = self._place(key)
            if len(self._fields) >= _FIELDS_KEPT:
                self._fields.pop(next(iter(self._fields)))
            self._fields[key] = None if place is None else GoalField(self._graph, place)
        return self._fields[key]

    def _require_scene(self) -> None:
        if self._scene_path is None:
            raise RuntimeError("no scene is loaded; call load_scene first")

    def _require_pose(self) -> Pose:
        if self._pose is None:
            raise RuntimeError("the agent is nowhere yet; call load_scene and reset first")
        return self._pose
