"""Points to pixels and back for a pinhole camera on the agent.

agent frame: x forward, y left, z up from the floor point; the camera sits at z = height_m and
is pitched up by pitch_deg. u, v in [0, 1] from the image's left and top edge; depth is planar.

        z ^   / optical axis (pitch)
          | /             u = 1/2 - left / (2 depth tan(hfov / 2))
  camera  o               v = 1/2 - up   / (2 depth tan(vfov / 2))
          |               tan(vfov / 2) = tan(hfov / 2) * height_px / width_px
----------+-----> x       left, up, depth: in the camera's own axes
"""

from __future__ import annotations

import math

import numpy as np

from vla_nav.episodes.types import Camera, Pose

_NEAR_M = 0.05


def to_agent_frame(points: np.ndarray, pose: Pose) -> np.ndarray:
    """World points (P, 3) in metres as (forward, left, up) of the agent (P, 3)."""
    offset = np.asarray(points, dtype=np.float64).reshape(-1, 3) - np.asarray(pose.position)
    sin, cos = math.sin(pose.yaw_rad), math.cos(pose.yaw_rad)
    forward = -offset[:, 0] * sin - offset[:, 2] * cos
    left = -offset[:, 0] * cos + offset[:, 2] * sin
    return np.stack([forward, left, offset[:, 1]], axis=1)


def project(points_agent: np.ndarray, camera: Camera) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Agent-frame points (P, 3) -> u, v, planar depth in metres, each (P,).

    Points at or behind the camera have depth <= 0.05 and u, v NaN.
    """
    sin, cos = _pitch(camera)
    tan_u, tan_v = _tangents(camera)
    forward, left = points_agent[:, 0], points_agent[:, 1]
    up = points_agent[:, 2] - camera.height_m
    depth = forward * cos + up * sin
    ahead = np.where(depth > _NEAR_M, depth, np.nan)
    u = 0.5 - left / (2 * ahead * tan_u)
    v = 0.5 - (up * cos - forward * sin) / (2 * ahead * tan_v)
    return u, v, depth


def unproject(u: float, v: float, depth_m: float, camera: Camera) -> tuple[float, float, float]:
    """A pixel and its planar depth -> (forward, left, up) of the agent, metres."""
    forward, left, up = ray(u, v, camera)
    return forward * depth_m, left * depth_m, camera.height_m + up * depth_m


def ray(u: float, v: float, camera: Camera) -> tuple[float, float, float]:
    """The direction of a pixel in agent axes, scaled to planar depth 1."""
    sin, cos = _pitch(camera)
    tan_u, tan_v = _tangents(camera)
    left, up = (0.5 - u) * 2 * tan_u, (0.5 - v) * 2 * tan_v
    return cos - up * sin, left, up * cos + sin


def sample_depth(depth: np.ndarray, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Planar depth (H, W) read at u, v (P,), interpolated linearly in 1/depth; inf where empty.

    1/depth is linear in pixel coordinates on any plane, so a floor is read exactly between pixel
    centres, where depth itself changes by half a metre a row.
    """
    height, width = depth.shape
    inverse = np.where(depth > 0, 1 / np.maximum(depth, 1e-6), 0.0)
    x = np.clip(u * width - 0.5, 0, width - 1)
    y = np.clip(v * height - 0.5, 0, height - 1)
    x0, y0 = np.floor(x).astype(int), np.floor(y).astype(int)
    x1, y1 = np.minimum(x0 + 1, width - 1), np.minimum(y0 + 1, height - 1)
    fx, fy = x - x0, y - y0
    top = inverse[y0, x0] * (1 - fx) + inverse[y0, x1] * fx
    bottom = inverse[y1, x0] * (1 - fx) + inverse[y1, x1] * fx
    value = top * (1 - fy) + bottom * fy
    with np.errstate(divide="ignore"):
        return np.where(value > 0, 1 / np.maximum(value, 1e-12), np.inf)


def _pitch(camera: Camera) -> tuple[float, float]:
    pitch = math.radians(camera.pitch_deg)
    return math.sin(pitch), math.cos(pitch)


def _tangents(camera: Camera) -> tuple[float, float]:
    tan_u = math.tan(math.radians(camera.hfov_deg) / 2)
    return tan_u, tan_u * camera.height_px / camera.width_px
