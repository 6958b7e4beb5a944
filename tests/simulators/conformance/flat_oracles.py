"""What a walk, a path and an image must be, worked out from coordinates alone.

dead_reckoning   complex numbers: heading h = e^(i yaw), forward in the plane (-z, -x)
round_corner     two tangents and an arc about a corner at the agent's radius
project          world point -> column, row, planar depth, by similar triangles
depth_of_boxes   (H, W) planar depth of axis-aligned boxes by the slab method
steady           pixels whose neighbours see (nearly) the same plane: no edge runs through them
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from vla_nav.episodes.types import MOVE_FORWARD, TURN_LEFT, TURN_RIGHT, Camera, Pose

Box = tuple[tuple[float, float, float], tuple[float, float, float]]  # low, high corner


def dead_reckoning(
    start: Pose, actions: Iterable[int], *, step_m: float, turn_deg: float
) -> list[tuple[float, float, float]]:
    """(x, z, yaw) after each action on free ground."""
    x, _, z = start.position
    place, heading = complex(-z, -x), complex(math.cos(start.yaw_rad), math.sin(start.yaw_rad))
    turn = complex(math.cos(math.radians(turn_deg)), math.sin(math.radians(turn_deg)))
    after = []
    for action in actions:
        if action == MOVE_FORWARD:
            place += step_m * heading
        elif action == TURN_LEFT:
            heading *= turn
        elif action == TURN_RIGHT:
            heading *= turn.conjugate()
        after.append((-place.imag, -place.real, math.atan2(heading.imag, heading.real)))
    return after


def round_corner(corner, start, goal, radius: float, *, away) -> float:
    """Length from start to goal (x, z) round a disc, on the side of `away` (from its centre)."""
    vectors = [np.subtract(point, corner) for point in (start, goal)]
    tangents = [math.sqrt(v @ v - radius**2) for v in vectors]
    arc = 0.0
    for v in vectors:
        cosine = np.dot(v, away) / np.linalg.norm(v) / np.linalg.norm(away)
        arc += math.acos(cosine) - math.acos(radius / np.linalg.norm(v))
    return sum(tangents) + radius * arc


def project(camera: Camera, pose: Pose, point) -> tuple[float, float, float]:
    """Column, row (of the image plane, pixel i spans [i, i + 1]) and planar depth of a point."""
    yaw, pitch = pose.yaw_rad, math.radians(camera.pitch_deg)
    dx, dy, dz = np.subtract(point, pose.position) - (0, camera.height_m, 0)
    ahead, right = -dx * math.sin(yaw) - dz * math.cos(yaw), dx * math.cos(yaw) - dz * math.sin(yaw)
    depth = ahead * math.cos(pitch) + dy * math.sin(pitch)
    up = dy * math.cos(pitch) - ahead * math.sin(pitch)
    focal_px = camera.width_px / 2 / math.tan(math.radians(camera.hfov_deg) / 2)
    return (
        camera.width_px / 2 + focal_px * right / depth,
        camera.height_px / 2 - focal_px * up / depth,
        depth,
    )


def depth_of_boxes(camera: Camera, pose: Pose, boxes: list[Box]) -> np.ndarray:
    """(H, W) planar depth through pixel centres, 0 where no box is hit. The eye is outside."""
    columns, rows = np.meshgrid(np.arange(camera.width_px), np.arange(camera.height_px))
    focal_px = camera.width_px / 2 / math.tan(math.radians(camera.hfov_deg) / 2)
    right = (columns + 0.5 - camera.width_px / 2) / focal_px
    up = (camera.height_px / 2 - rows - 0.5) / focal_px
    yaw, pitch = pose.yaw_rad, math.radians(camera.pitch_deg)
    ahead = math.cos(pitch) - up * math.sin(pitch)  # per unit of planar depth
    rise = math.sin(pitch) + up * math.cos(pitch)
    along = np.stack(
        [
            -ahead * math.sin(yaw) + right * math.cos(yaw),
            rise,
            -ahead * math.cos(yaw) - right * math.sin(yaw),
        ],
        axis=-1,
    )
    eye = np.add(pose.position, (0, camera.height_m, 0))
    nearest = np.full(along.shape[:2], np.inf)
    for low, high in boxes:
        with np.errstate(divide="ignore", invalid="ignore"):
            first, second = (np.array(low) - eye) / along, (np.array(high) - eye) / along
        enter, leave = np.minimum(first, second).max(-1), np.maximum(first, second).min(-1)
        nearest = np.where((enter <= leave) & (enter > 0), np.minimum(nearest, enter), nearest)
    return np.where(np.isfinite(nearest), nearest, 0.0)


def steady(depth: np.ndarray, *, bend: float = 0.02) -> np.ndarray:
    """(H, W) bool: 1 / depth, which is linear in the image on a plane, has no bend here.

    A bend at a pixel means that an edge runs through its neighbourhood, where one backend may see
    this surface and the other that one."""
    inverse = np.pad(1 / np.where(depth > 0, depth, np.inf), 1, mode="edge")
    middle = inverse[1:-1, 1:-1]
    across = inverse[1:-1, 2:] + inverse[1:-1, :-2] - 2 * middle
    down = inverse[2:, 1:-1] + inverse[:-2, 1:-1] - 2 * middle
    flat = np.maximum(np.abs(across), np.abs(down)) < bend * np.maximum(middle, 1e-3)
    flat &= depth > 0
    flat[[0, -1], :] = flat[:, [0, -1]] = False
    inner = np.ones_like(flat)  # a pixel's centre may lie on the edge: its neighbours go as well
    for row in (-1, 0, 1):
        for column in (-1, 0, 1):
            inner &= np.roll(flat, (row, column), (0, 1))
    return inner
