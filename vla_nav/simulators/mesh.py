"""The mesh simulator: any GLB, PLY or OBJ stage, rendered and walked without a GPU.

stage (triangles) -> rays (Embree) -+-> renderer                            observe
                                    +-> walkable area -+-> mover            act, move
                                                       +-> visibility graph
                                                              +-> one field per goal
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from vla_nav.episodes.types import Embodiment, Pose
from vla_nav.errors import unknown_name
from vla_nav.simulators.cameras import check_camera
from vla_nav.simulators.geodesic import NO_WAY, FirstLeg, GoalField, Place
from vla_nav.simulators.motion import Mover
from vla_nav.simulators.protocol import GeodesicPath, Motion, Observation, Point
from vla_nav.simulators.rays import RayScene
from vla_nav.simulators.render import SHADINGS, Renderer
from vla_nav.simulators.stage import load_stage
from vla_nav.simulators.standing import SNAP_M, StandingAgent
from vla_nav.simulators.topdown import FloorMap, floor_maps
from vla_nav.simulators.visibility import VisibilityGraph, find_visibility
from vla_nav.simulators.walkable import Walkable, find_walkable

_SNAP_ASIDE_M = 0.15  # nearer points are moved straight away from the obstacle, not to a cell
_FIELDS_KEPT = 64
_VIEW_MARGINS_M = (0.01, 0.03)  # how far off the walls places stand, to see along them


@dataclass(frozen=True, slots=True)
class _Scene:
    """All that is known about the loaded scene."""

    renderer: Renderer
    walkable: Walkable
    mover: Mover
    graph: VisibilityGraph
    points: np.ndarray  # (n, 3) float64, the walkable nodes
    can_enter: np.ndarray  # (N,) bool: a walkable node or linked with one
    fields: dict[Point, GoalField | None] = field(default_factory=dict)


class MeshSimulator(StandingAgent):
    """The `Simulator` protocol over one mesh scene; see `protocol.py` for the methods.

    cell_m: grid of the walkable area; max_climb_m: the highest step that is walked up or down;
    max_slope_deg: the steepest floor; up_axis: the scene files' up direction, "y" or "z"; shading:
    of the images, "lambert" or "flat" (as habitat-sim shows stages).
    The cameras of `embodiment` may be exchanged at any time, its body only before `load_scene`.
    """

    backend = "mesh"

    def __init__(
        self,
        embodiment: Embodiment,
        *,
        cell_m: float = 0.1,
        max_climb_m: float = 0.25,
        max_slope_deg: float = 45.0,
        up_axis: str = "y",
        shading: str = "lambert",
    ) -> None:
        if shading not in SHADINGS:
            raise unknown_name("simulators.options.shading", str(shading), SHADINGS)
        for camera in embodiment.cameras:
            check_camera(camera)
        self.embodiment = embodiment
        self._cell_m = cell_m
        self._max_climb_m = max_climb_m
        self._max_slope_deg = max_slope_deg
        self._up_axis = up_axis
        self._shading = shading
        self._scene: _Scene | None = None

    def load_scene(self, scene_path: str) -> None:
        path = str(scene_path)
        if self._path == path:
            return
        stage = load_stage(path, up_axis=self._up_axis)
        rays = RayScene(stage.vertices, stage.faces)
        walkable = find_walkable(
            stage,
            rays,
            radius_m=self.embodiment.radius_m,
            height_m=self.embodiment.height_m,
            cell_m=self._cell_m,
            max_climb_m=self._max_climb_m,
            max_slope_deg=self._max_slope_deg,
        )
        columns, links = walkable.columns, walkable.links
        points = np.stack([columns.x_m, columns.height_m, columns.z_m], axis=1)
        beside_walkable = ((links >= 0) & walkable.is_walkable[links]).any(axis=1)
        self._scene = _Scene(
            renderer=Renderer(stage, rays, shading=self._shading),
            walkable=walkable,
            mover=Mover(walkable, self.embodiment),
            graph=find_visibility(walkable),
            points=points[walkable.is_walkable],
            can_enter=walkable.is_walkable | beside_walkable,
        )
        self._path, self._pose = path, None

    @property
    def walkable(self) -> Walkable:
        """The walkable area of the loaded scene (for maps)."""
        return self._loaded().walkable

    def move(self, pose: Pose, primitive: int) -> Motion:
        return self._loaded().mover.move(pose, primitive)

    def drive(self, pose: Pose, forward_m: float, turn_rad: float) -> Motion:
        return self._loaded().mover.drive(pose, forward_m, turn_rad)

    def observe(self, *, semantic: bool = False) -> Observation:
        pose, renderer = self._placed(), self._loaded().renderer
        rgb, depth, labels = {}, {}, {}
        for camera in self.embodiment.cameras:
            images = renderer.render(camera, pose, semantic=semantic)
            rgb[camera.name] = images.rgb
            if images.depth is not None:
                depth[camera.name] = images.depth
            if images.semantic is not None:
                labels[camera.name] = images.semantic
        return Observation(pose, rgb, depth, labels)

    def geodesic_distance(self, start: Point, goals: list[Point]) -> float:
        self._loaded()
        known = [field for field in map(self._field, goals) if field is not None]
        return min(
            (self._first_leg(start, field)[1].distance_m for field in known), default=math.inf
        )

    def shortest_path(self, start: Point, goal: Point) -> GeodesicPath:
        known = self._field(goal)
        if known is not None:
            place, leg = self._first_leg(start, known)
            if place is not None and math.isfinite(leg.distance_m):
                return GeodesicPath(leg.distance_m, known.path(place, leg))
        return GeodesicPath(math.inf, np.zeros((0, 3)))

    def snap(self, point: Point) -> Point | None:
        scene = self._loaded()
        x, y, z = point
        if not math.isfinite(x + y + z):
            return None
        found = scene.mover.nearby(x, y, z, _SNAP_ASIDE_M)
        if found is not None and scene.can_enter[found[0]]:
            node, x, z = found
            return x, scene.mover.floor_height(node, x, z), z
        offset = scene.points - np.asarray(point)
        away = np.einsum("ij,ij->i", offset, offset)
        nearest = int(away.argmin())
        if away[nearest] > SNAP_M**2:
            return None
        return scene.mover.drag(tuple(scene.points[nearest].tolist()), point)

    def random_point(self, rng: np.random.Generator) -> Point:
        scene = self._loaded()
        x, y, z = scene.points[rng.integers(len(scene.points))].tolist()
        aside_x, aside_z = ((rng.random(2) - 0.5) * scene.walkable.columns.cell_m).tolist()
        found = scene.mover.nearby(x + aside_x, y, z + aside_z, 0.0)
        if found is None:  # that corner of the cell is too near an obstacle; its centre is not
            return x, y, z
        node, x, z = found
        return x, scene.mover.floor_height(node, x, z), z

    def floors(self) -> list[FloorMap]:
        return floor_maps(self.walkable)

    def close(self) -> None:
        self._scene = self._path = self._pose = None

    def _first_leg(self, start: Point, known: GoalField) -> tuple[Place | None, FirstLeg]:
        """The way from a point to a goal, and the place that it was seen from."""
        place, leg = None, NO_WAY
        for place in self._places(start):
            leg = known.first_leg(place)
            if math.isfinite(leg.distance_m):
                break
        return place, leg

    def _field(self, goal: Point) -> GoalField | None:
        """The field of a goal, kept for later queries; None for a goal off the walkable area."""
        scene = self._loaded()
        key = (float(goal[0]), float(goal[1]), float(goal[2]))
        if key not in scene.fields:
            found = None
            for place in self._places(key):
                found = GoalField(scene.graph, place)
                if not found.is_hidden:
                    break
            if len(scene.fields) >= _FIELDS_KEPT:
                scene.fields.pop(next(iter(scene.fields)))
            scene.fields[key] = found
        return scene.fields[key]

    def _places(self, point: Point) -> Iterator[Place]:
        """Places to look from at a point, a hair off the walls; nothing off the walkable area.

        The first nearly always serves. In a nook of the clearance's contour, where the straight
        pieces that stand for it cut in, more distance or a cell's centre is needed."""
        scene = self._loaded()
        snapped = self.snap(point)
        if snapped is None:
            return
        x, y, z = snapped
        label = scene.graph.sheets.label
        node = scene.mover.node_at(x, y, z)
        for margin_m in _VIEW_MARGINS_M:
            off_x, off_z = scene.mover.off_the_wall(node, x, z, margin_m)
            off_node = scene.mover.node_at(off_x, y, off_z)
            if off_node >= 0 and scene.can_enter[off_node]:
                yield Place(np.array((off_x, y, off_z)), int(label[off_node]))
        offset = scene.points - np.array(snapped)
        x, y, z = scene.points[int(np.einsum("ij,ij->i", offset, offset).argmin())].tolist()
        yield Place(np.array((x, y, z)), int(label[scene.mover.node_at(x, y, z)]))

    def _loaded(self) -> _Scene:
        if self._scene is None:
            raise RuntimeError("no scene is loaded; call load_scene first")
        return self._scene
