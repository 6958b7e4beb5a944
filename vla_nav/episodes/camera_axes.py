"""Camera-to-world matrices of other conventions -> the agent's poses in ours.

    camera axes        right  up   forward       world       ours (x, y, z)
    opencv             +x     -y   +z            +z up       (X, Z, -Y)
    opengl             +x     +y   -z            +y up       (X, Y, Z)
    blender            +x     +z   +y

A camera is fixed on the body: `pitch_deg` below the horizon, `height_m` above the floor point, no
roll. That tells the convention apart: with the right one the body's up axis is the world's.

    pitched down by p:   up_body = cos p * up - sin p * forward
                         forward_body = cos p * forward + sin p * up
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from vla_nav.episodes.types import Pose
from vla_nav.errors import UserError

AXES: dict[str, tuple[tuple[float, float, float], tuple[float, float, float]]] = {
    "opencv": ((0.0, -1.0, 0.0), (0.0, 0.0, 1.0)),  # up, forward
    "opengl": ((0.0, 1.0, 0.0), (0.0, 0.0, -1.0)),
    "blender": ((0.0, 0.0, 1.0), (0.0, 1.0, 0.0)),
}
_UP = {"+z up": 2, "+y up": 1}
_TILT_DEG = 15.0  # how far a body may lean: a robot's may, a wrong convention is 60 or more away


class BodyPoses(NamedTuple):
    """The agent's poses, and the convention that they were found in, such as "opencv, +z up"."""

    poses: list[Pose]
    axes: str


def body_poses(
    matrices: np.ndarray,
    *,
    height_m: float,
    pitch_deg: float,
    where: str,
    allowed: Sequence[str] = tuple(AXES),
) -> BodyPoses:
    """(N, 4, 4) float64 camera to world, metres -> level poses at the floor point.

    pitch_deg: of the camera, positive downward. Raises `UserError` beginning with `where` for
    matrices that are no rigid motions, or where no convention fits.
    """
    _check_rigid(matrices, where)
    rotation, position = matrices[:, :3, :3], matrices[:, :3, 3]
    sine, cosine = math.sin(math.radians(pitch_deg)), math.cos(math.radians(pitch_deg))
    best = (math.inf, "", "", np.zeros((0, 3)))
    for world, axis in _UP.items():
        for name in allowed:
            up, forward = np.array(AXES[name])
            lean = (rotation @ (cosine * up - sine * forward))[:, axis]
            tilt = float(np.degrees(np.arccos(np.clip(lean, -1, 1))).max(initial=0.0))
            if tilt < best[0] - 1e-3:  # the first of equals: +z up before +y up
                best = (tilt, name, world, rotation @ (cosine * forward + sine * up))
    tilt, name, world, heading = best
    if tilt > _TILT_DEG:
        raise UserError(
            f"{where}: with a camera pitched {pitch_deg:g} degrees down the body leans {tilt:.0f} "
            f"degrees, whichever of {', '.join(allowed)} the axes are; expected camera to world "
            "matrices, upright"
        )
    x, y, z = position.T
    if world == "+z up":
        places = np.stack([x, z - height_m, -y], axis=1)
        yaws = np.arctan2(-heading[:, 0], heading[:, 1])
    else:
        places = np.stack([x, y - height_m, z], axis=1)
        yaws = np.arctan2(-heading[:, 0], -heading[:, 2])
    pairs = zip(places.tolist(), yaws.tolist(), strict=True)
    return BodyPoses([Pose.from_yaw(tuple(p), yaw) for p, yaw in pairs], f"{name}, {world}")


def check_same_body(first: Sequence[Pose], other: Sequence[Pose], where: str) -> None:
    """Raise `UserError` where two cameras of one body place it differently (2 cm, 2 degrees)."""
    for at, (a, b) in enumerate(zip(first, other, strict=True)):
        gap = math.dist(a.position, b.position)
        turn = abs(math.degrees(a.relative(b)[2]))
        if gap > 0.02 or turn > 2:
            raise UserError(
                f"{where}: row {at} places the body {gap:.2f} m and {turn:.0f} degrees from where "
                "the first camera has it; the columns belong to different paths"
            )


def _check_rigid(matrices: np.ndarray, where: str) -> None:
    rotation = matrices[:, :3, :3]
    with np.errstate(all="ignore"):
        product = rotation @ rotation.transpose(0, 2, 1)
        is_rigid = (
            np.isfinite(matrices).all(axis=(1, 2))
            & (np.abs(product - np.eye(3)) < 1e-2).all(axis=(1, 2))
            & (np.linalg.det(np.nan_to_num(rotation, posinf=0, neginf=0)) > 0)
            & (np.abs(matrices[:, 3] - [0, 0, 0, 1]) < 1e-3).all(axis=1)
        )
    bad = np.flatnonzero(~is_rigid)
    if len(bad):
        raise UserError(
            f"{where}: row {bad[0]} is no rigid motion (a rotation and a place, last row 0 0 0 1)"
        )
