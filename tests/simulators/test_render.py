"""The camera model against hand-computed values, and what each pixel shows."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import trimesh
from mesh_scenes import SceneBuilder, embodiment
from PIL import Image

from vla_nav.episodes.types import Camera, Pose
from vla_nav.errors import UserError
from vla_nav.simulators.mesh import MeshSimulator
from vla_nav.simulators.rays import RayScene
from vla_nav.simulators.render import AMBIENT, Renderer, camera_directions
from vla_nav.simulators.stage import load_stage

CAMERA = Camera("front", 63, 97, 79.0, 0.88, has_depth=True)
ORIGIN = Pose.from_yaw((0, 0, 0), 0.0)


def renderer(builder: SceneBuilder, folder) -> Renderer:
    stage = load_stage(builder.write(folder / "scene.glb"))
    return Renderer(stage, RayScene(stage.vertices, stage.faces))


def project(camera: Camera, pose: Pose, point) -> tuple[float, float, float]:
    """Column, row (pixel centres at .5) and planar depth of a world point: an independent oracle
    that goes from world to pixel, by angles and similar triangles."""
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


@pytest.mark.parametrize("yaw", [0.0, 0.7, -2.4])
@pytest.mark.parametrize("pitch", [0.0, -20.0, 12.5])
@pytest.mark.parametrize("size", [(63, 97), (130, 64)])
def test_a_small_box_shows_at_its_projection_with_its_planar_depth(tmp_path, yaw, pitch, size):
    camera = dataclasses.replace(CAMERA, width_px=size[0], height_px=size[1], pitch_deg=pitch)
    pose = Pose.from_yaw((1.0, 0.5, -2.0), yaw)
    local = np.array([0.35, 0.9, -3.0])  # right, above the floor, ahead of the agent
    cos, sin = math.cos(yaw), math.sin(yaw)
    centre = np.array([cos * local[0] + sin * local[2], local[1], -sin * local[0] + cos * local[2]])
    centre += pose.position
    scene = SceneBuilder().box(centre - 0.1, centre + 0.1)
    images = renderer(scene, tmp_path).render(camera, pose, semantic=True)
    column, row, depth = project(camera, pose, centre)
    rows, columns = np.nonzero(images.semantic)
    # The box is about 3 px wide: its centroid is within a pixel of the projected centre.
    assert abs(columns.mean() + 0.5 - column) < 1.0
    assert abs(rows.mean() + 0.5 - row) < 1.0
    near = images.depth[int(row), int(column)]
    assert depth - 0.1 * math.sqrt(3) - 1e-3 < near < depth


def test_depth_is_planar_and_exact_on_a_facing_wall(tmp_path):
    scene = SceneBuilder().box((-20, -20, -4.1), (20, 20, -4.0))
    images = renderer(scene, tmp_path).render(CAMERA, ORIGIN)
    assert images.depth.dtype == np.float32
    np.testing.assert_allclose(images.depth, 4.0, rtol=1e-5)  # float32; ray length would be 5.8


def test_depth_of_the_floor_follows_the_row(tmp_path):
    scene = SceneBuilder().box((-50, -0.1, -50), (50, 0, 50))
    images = renderer(scene, tmp_path).render(CAMERA, ORIGIN)
    rows = np.arange(CAMERA.height_px)
    tangent = (rows + 0.5 - CAMERA.height_px / 2) / (
        CAMERA.width_px / 2 / math.tan(math.radians(CAMERA.hfov_deg) / 2)
    )
    seen = CAMERA.height_m / np.where(tangent > 0, tangent, np.nan)
    column = images.depth[:, 31]
    inside = seen < 49
    np.testing.assert_allclose(column[inside], seen[inside], rtol=1e-4)
    assert (column[tangent < 0] == 0).all()  # sky: no hit


def test_nothing_in_view_is_black_with_zero_depth_and_id(tmp_path):
    scene = SceneBuilder().box((-1, 0, 5), (1, 2, 6))  # behind
    images = renderer(scene, tmp_path).render(CAMERA, ORIGIN, semantic=True)
    assert not images.rgb.any()
    assert not images.depth.any()
    assert not images.semantic.any()
    assert images.rgb.shape == (97, 63, 3)
    assert images.rgb.dtype == np.uint8
    assert images.semantic.dtype == np.uint32


def test_the_camera_stands_above_the_floor_point(tmp_path):
    scene = SceneBuilder().box((-9, -9, -4.1), (9, 0.88 + 0.5, -4.0))  # its top 0.5 m above the eye
    images = renderer(scene, tmp_path).render(CAMERA, ORIGIN)
    focal_px = 63 / 2 / math.tan(math.radians(79) / 2)
    top_row = 97 / 2 - focal_px * 0.5 / 4.0
    assert abs((images.depth[:, 31] == 0).sum() - top_row) <= 1


def test_faces_differ_in_shade_and_keep_their_hue(tmp_path):
    scene = SceneBuilder().box((-1, 0, -5), (1, 0.6, -3), rgb=(200, 100, 0))
    pixels = renderer(scene, tmp_path).render(CAMERA, ORIGIN).rgb.reshape(-1, 3)
    pixels = np.unique(pixels[pixels.any(axis=1)], axis=0).astype(float)
    assert len(pixels) == 2  # the front and the top
    np.testing.assert_allclose(pixels[:, 1] / pixels[:, 0], 0.5, atol=0.01)
    assert (pixels[:, 0] >= 200 * AMBIENT - 1).all()
    assert (pixels[:, 0] <= 200).all()
    assert (pixels[:, 2] == 0).all()


def test_flat_shading_shows_the_stored_colour_on_every_face(tmp_path):
    scene = SceneBuilder().box((-1, 0.3, -3), (1, 1.5, -2), rgb=(200, 100, 40))
    stage = load_stage(scene.write(tmp_path / "scene.glb"))
    flat = Renderer(stage, RayScene(stage.vertices, stage.faces), shading="flat")
    images = flat.render(CAMERA, Pose.from_yaw((2.5, 0.9, 0.0), 0.8), semantic=True)
    colours = np.unique(images.rgb[images.semantic > 0], axis=0)
    np.testing.assert_array_equal(colours, [[200, 100, 40]])  # several faces are in view
    with pytest.raises(UserError, match=r"shading.*'?phong"):
        MeshSimulator(embodiment(), shading="phong")


def test_a_texture_is_sampled_where_its_uv_says(tmp_path):
    # A quad 2 m ahead; image: top row red, green; bottom row blue, white.
    image = Image.fromarray(
        np.array([[[255, 0, 0], [0, 255, 0]], [[0, 0, 255], [255, 255, 255]]], np.uint8)
    )
    corners = [[-1, -0.12, -2], [1, -0.12, -2], [1, 1.88, -2], [-1, 1.88, -2]]
    mesh = trimesh.Trimesh(corners, [[0, 1, 2], [0, 2, 3]], process=False)
    mesh.visual = trimesh.visual.TextureVisuals(
        uv=[[0, 0], [1, 0], [1, 1], [0, 1]],
        material=trimesh.visual.material.PBRMaterial(baseColorTexture=image),
    )
    camera = dataclasses.replace(CAMERA, width_px=64, height_px=64, hfov_deg=60.0)
    rgb = renderer(SceneBuilder().add(mesh), tmp_path).render(camera, ORIGIN).rgb
    quarter = {"top_left": rgb[20, 20], "top_right": rgb[20, 44]}
    quarter |= {"bottom_left": rgb[44, 20], "bottom_right": rgb[44, 44]}
    light = quarter["top_left"][0]
    assert light > 255 * AMBIENT - 1
    np.testing.assert_array_equal(quarter["top_left"], (light, 0, 0))
    np.testing.assert_array_equal(quarter["top_right"], (0, light, 0))
    np.testing.assert_array_equal(quarter["bottom_left"], (0, 0, light))
    np.testing.assert_array_equal(quarter["bottom_right"], (light, light, light))


def test_vertex_colours_are_interpolated(tmp_path):
    corners = [[-1, -0.12, -2], [1, -0.12, -2], [1, 1.88, -2], [-1, 1.88, -2]]
    colours = np.array([[0, 0, 0], [255, 255, 255], [255, 255, 255], [0, 0, 0]], np.uint8)
    mesh = trimesh.Trimesh(corners, [[0, 1, 2], [0, 2, 3]], vertex_colors=colours, process=False)
    plain = SceneBuilder().box((3, 0, -9), (4, 1, -8), rgb=(255, 0, 0))  # no vertex colours
    camera = dataclasses.replace(CAMERA, width_px=64, height_px=64, hfov_deg=40.0)
    rgb = renderer(plain.add(mesh), tmp_path).render(camera, ORIGIN).rgb.astype(float)
    half_width = 2 * math.tan(math.radians(20))
    x = (2 * (np.arange(64) + 0.5) / 64 - 1) * half_width
    light = rgb[32, 63, 0] / ((x[63] + 1) / 2)
    np.testing.assert_allclose(rgb[32, :, 0], light * (x + 1) / 2, atol=1.5)  # rounding
    assert (rgb[..., 0] == rgb[..., 2]).all()


def test_semantic_ids_are_those_of_the_nodes(tmp_path):
    scene = (
        SceneBuilder()
        .box((-2, 0, -4), (-0.5, 2, -3), name="left")
        .box((0.5, 0, -4), (2, 2, -3), name="right")
    )
    made = renderer(scene, tmp_path)
    images = made.render(CAMERA, ORIGIN, semantic=True)
    assert images.semantic[48, 10] == 1
    assert images.semantic[48, 52] == 2
    assert images.semantic[48, 31] == 0


@pytest.mark.parametrize("hfov", [180.0, 360.0, 0.0, -90.0, 179.5, math.nan])
def test_a_field_of_view_beyond_a_pinhole_is_refused(hfov):
    with pytest.raises(UserError, match=r"'front'.*hfov_deg.*\[1, 179\]"):
        camera_directions(dataclasses.replace(CAMERA, hfov_deg=hfov))


def test_an_empty_image_is_refused():
    with pytest.raises(UserError, match="0x97"):
        camera_directions(dataclasses.replace(CAMERA, width_px=0))


def test_one_pixel_looks_straight_ahead():
    camera = dataclasses.replace(CAMERA, width_px=1, height_px=1)
    np.testing.assert_allclose(camera_directions(camera), [[0, 0, -1]], atol=1e-7)
