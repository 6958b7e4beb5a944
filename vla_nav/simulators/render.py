"""RGB, depth and semantic images of a stage from a pinhole camera, by ray casting.

Pixel (i, j) (column, row) of a W x H image looks along, in the camera's frame (x right, y up,
-z forward), with f = tan(hfov / 2):

    d = ( (2 (i + 1/2) / W - 1) f,   -(2 (j + 1/2) / H - 1) f H / W,   -1 )

d is not normalised, so Embree's ray parameter is the planar depth. Shading is `lambert`, one
directional light plus ambient, two-sided, or `flat`, the stored colours, which is what habitat-sim
shows of a stage. Either is constant over a face, so it is computed once per stage; only faces with
a texture or vertex colours are coloured per pixel.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from vla_nav.episodes.types import Camera, Pose
from vla_nav.simulators.cameras import check_camera
from vla_nav.simulators.rays import Hits, RayScene
from vla_nav.simulators.stage import Stage

SHADINGS = ("lambert", "flat")
AMBIENT = 0.4
_LIGHT = np.array([0.4, 0.8, 0.55]) / np.linalg.norm([0.4, 0.8, 0.55])
_CAMERAS_KEPT = 16
_BACKGROUND = 0  # every channel of a pixel that hits nothing


class Images(NamedTuple):
    """`rgb` (H, W, 3) uint8; `depth` (H, W) float32 metres, planar, 0 = no hit; `semantic` (H, W)
    uint32, 0 = no hit. None where not asked for."""

    rgb: np.ndarray
    depth: np.ndarray | None
    semantic: np.ndarray | None


def camera_directions(camera: Camera) -> np.ndarray:
    """(H * W, 3) float32 ray directions in the level agent's frame, pitch applied, planar z of 1
    along the camera's own axis."""
    check_camera(camera)
    tan_x = math.tan(math.radians(camera.hfov_deg) / 2)
    tan_y = tan_x * camera.height_px / camera.width_px
    x = (2 * (np.arange(camera.width_px) + 0.5) / camera.width_px - 1) * tan_x
    y = -(2 * (np.arange(camera.height_px) + 0.5) / camera.height_px - 1) * tan_y
    directions = np.empty((camera.height_px, camera.width_px, 3))
    directions[..., 0] = x
    directions[..., 1] = y[:, None]
    directions[..., 2] = -1
    pitch = math.radians(camera.pitch_deg)
    cos, sin = math.cos(pitch), math.sin(pitch)
    tilt = np.array([[1, 0, 0], [0, cos, -sin], [0, sin, cos]])  # about +x, upward
    return (directions.reshape(-1, 3) @ tilt.T).astype(np.float32)


def rotation_matrix(rotation: tuple[float, float, float, float]) -> np.ndarray:
    """(3, 3) matrix of a unit quaternion `xyzw`."""
    x, y, z, w = rotation
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ],
        np.float32,
    )


class Renderer:
    """Renders one stage with one of `SHADINGS`; ray directions are kept per camera."""

    def __init__(self, stage: Stage, rays: RayScene, *, shading: str = "lambert") -> None:
        self._rays = rays
        self._stage = stage
        self._light = _face_light(stage, shading)  # (F,)
        self._face_rgba = _packed_colours(stage, self._light)  # (F + 1,) uint32, last = background
        self._semantic = np.append(stage.semantic_ids, np.uint32(0))
        self._texels = _Texels(stage) if stage.textures else None
        self._directions: dict[Camera, np.ndarray] = {}
        self._origins: dict[int, np.ndarray] = {}

    def render(self, camera: Camera, pose: Pose, *, semantic: bool = False) -> Images:
        """The images of `camera` carried by an agent at `pose`; depth if the camera has it."""
        directions = self._camera_directions(camera)
        count = len(directions)
        origins = self._origins.get(count)
        if origins is None:
            origins = self._origins[count] = np.empty((count, 3), np.float32)
        x, y, z = pose.position
        origins[:] = (x, y + camera.height_m, z)
        hits = self._rays.first_hits(origins, directions @ rotation_matrix(pose.rotation).T)

        shape = (camera.height_px, camera.width_px)
        rgba = self._face_rgba.take(hits.face, mode="wrap").view(np.uint8).reshape(count, 4)
        rgb = np.ascontiguousarray(rgba[:, :3])
        if self._stage.corner_rgb is not None:
            self._interpolate_corner_colours(rgb, hits)
        if self._texels is not None:
            self._texels.paint(rgb, hits, self._light)
        depth = labels = None
        if camera.has_depth:
            depth = np.where(hits.face >= 0, hits.distance, np.float32(0)).reshape(shape)
        if semantic:
            labels = self._semantic.take(hits.face, mode="wrap").reshape(shape)
        return Images(rgb.reshape(*shape, 3), depth, labels)

    def _camera_directions(self, camera: Camera) -> np.ndarray:
        directions = self._directions.get(camera)
        if directions is None:
            if len(self._directions) >= _CAMERAS_KEPT:
                self._directions.pop(next(iter(self._directions)))
            directions = self._directions[camera] = camera_directions(camera)
        return directions

    def _interpolate_corner_colours(self, rgb: np.ndarray, hits: Hits) -> None:
        corners = self._stage.corner_rgb
        pixels = np.flatnonzero((hits.face >= 0) & ~np.isnan(corners[hits.face, 0, 0]))
        face = hits.face[pixels]
        colour = _barycentric(corners[face], hits.u[pixels], hits.v[pixels])
        rgb[pixels] = _to_bytes(colour * self._light[face, None])


class _Texels:
    """All textures of a stage in one buffer, sampled at the nearest texel, repeating."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._rgb = np.concatenate([image.reshape(-1, 3) for image in stage.textures])
        self._height, self._width = np.array([image.shape[:2] for image in stage.textures]).T
        sizes = self._height * self._width
        self._first = np.cumsum(sizes) - sizes

    def paint(self, rgb: np.ndarray, hits: Hits, light: np.ndarray) -> None:
        """Overwrite the pixels of textured faces in `rgb` (n, 3)."""
        stage = self._stage
        pixels = np.flatnonzero((hits.face >= 0) & (stage.face_texture[hits.face] >= 0))
        face = hits.face[pixels]
        texture = stage.face_texture[face]
        uv = _barycentric(stage.corner_uv[face], hits.u[pixels], hits.v[pixels])
        uv -= np.floor(uv)
        width, height = self._width[texture], self._height[texture]
        column = np.minimum((uv[:, 0] * width).astype(np.int64), width - 1)
        row = np.minimum(((1 - uv[:, 1]) * height).astype(np.int64), height - 1)
        texel = self._rgb[self._first[texture] + row * width + column]
        rgb[pixels] = _to_bytes(texel / 255 * stage.face_rgb[face] * light[face, None])


def _barycentric(corners: np.ndarray, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """(n, C) value at (u, v) of corner values (n, 3, C)."""
    u, v = u[:, None], v[:, None]
    return (1 - u - v) * corners[:, 0] + u * corners[:, 1] + v * corners[:, 2]


def _face_light(stage: Stage, shading: str) -> np.ndarray:
    """(F,) float32 in [AMBIENT, 1]: ambient plus two-sided Lambert, or 1 throughout."""
    if shading == "flat":
        return np.ones(len(stage.faces), np.float32)
    a, b, c = (stage.vertices[stage.faces[:, k]] for k in range(3))
    normal = np.cross(b - a, c - a)
    length = np.linalg.norm(normal, axis=1)
    cosine = np.abs(normal @ _LIGHT) / np.maximum(length, 1e-12)
    return (AMBIENT + (1 - AMBIENT) * cosine).astype(np.float32)


def _packed_colours(stage: Stage, light: np.ndarray) -> np.ndarray:
    """(F + 1,) uint32 of RGBA bytes: the shaded base colour per face, then the background."""
    rgba = np.full((len(stage.faces) + 1, 4), _BACKGROUND, np.uint8)
    rgba[:-1, :3] = _to_bytes(stage.face_rgb * light[:, None])
    return rgba.view(np.uint32).ravel()


def _to_bytes(colour: np.ndarray) -> np.ndarray:
    return (np.clip(colour, 0, 1) * 255 + 0.5).astype(np.uint8)
