"""The spaces that the tests of this folder go through, and bodies to execute their actions."""

from __future__ import annotations

from vla_nav.actions import ChunkSpace, DiscreteSpace, PointingSpace, WaypointSpace
from vla_nav.episodes.types import Camera, Embodiment

SPACES = {
    "discrete": DiscreteSpace(),
    "discrete_looks": DiscreteSpace(looks=True, fallback="stop"),
    "chunk": ChunkSpace(length=3),
    "chunk_turns": ChunkSpace(length=10, decision="turn_then_forward(4)"),
    "polar": WaypointSpace(),
    "polar_yaw": WaypointSpace(order=("distance", "bearing", "yaw"), decision="fixed(5)"),
    "cartesian": WaypointSpace(coordinates="cartesian", grid_m=0.125),
    "cartesian_order": WaypointSpace(
        coordinates="cartesian", order=("x", "yaw", "y"), turn_deg=15, fallback="stop"
    ),
    "pointing": PointingSpace(num_u=7, num_v=5),
    "pointing_cameras": PointingSpace(
        cameras=("front", "left"), waypoint={"coordinates": "cartesian"}
    ),
}


def embodiment(*, turn_deg: float = 30.0, step_m: float = 0.25, pitch_deg: float = 0.0):
    cameras = tuple(Camera(name, 64, 48, 90.0, 1.25, pitch_deg, True) for name in ("front", "left"))
    return Embodiment(cameras, 0.2, 1.5, turn_deg, step_m, True)
