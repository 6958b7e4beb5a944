"""Scene files as triangle soups: transforms, colours, semantic ids; and files that are none."""

from __future__ import annotations

import json

import numpy as np
import pytest
import trimesh
from mesh_scenes import SceneBuilder

from vla_nav.errors import UserError
from vla_nav.simulators.stage import load_stage


def two_boxes() -> SceneBuilder:
    return (
        SceneBuilder()
        .box((0, 0, 0), (1, 1, 1), rgb=(255, 0, 0), name="sofa")
        .box((2, 0, 0), (3, 2, 1), rgb=(0, 51, 255), name="lamp")
    )


def test_glb_keeps_every_node_with_its_colour_and_a_default_id(tmp_path):
    stage = load_stage(two_boxes().write(tmp_path / "a.glb"))
    assert len(stage.faces) == 24
    assert sorted(stage.names.items()) == [(1, "sofa"), (2, "lamp")]
    for semantic_id, rgb, low, high in (
        (1, (1, 0, 0), (0, 0, 0), (1, 1, 1)),
        (2, (0, 0.2, 1), (2, 0, 0), (3, 2, 1)),
    ):
        faces = stage.semantic_ids == semantic_id
        assert faces.sum() == 12
        np.testing.assert_allclose(stage.face_rgb[faces], np.tile(rgb, (12, 1)), atol=1 / 255)
        corners = stage.vertices[stage.faces[faces]].reshape(-1, 3)
        np.testing.assert_allclose([corners.min(0), corners.max(0)], [low, high], atol=1e-6)


def test_node_transforms_place_rotate_and_mirror(tmp_path):
    mesh = trimesh.creation.box((2, 1, 1))
    turn = trimesh.transformations.rotation_matrix(np.pi / 2, (0, 1, 0))
    turn[:3, 3] = 5, 0, 0
    mirror = np.diag([-1.0, 1, 1, 1])
    scene = trimesh.Scene()
    scene.add_geometry(mesh, node_name="turned", geom_name="box", transform=turn)
    scene.add_geometry(mesh, node_name="mirrored", geom_name="box2", transform=mirror)
    path = tmp_path / "a.glb"
    path.write_bytes(scene.export(file_type="glb"))
    stage = load_stage(path)
    ids = {name: key for key, name in stage.names.items()}
    turned = stage.vertices[stage.faces[stage.semantic_ids == ids["turned"]]].reshape(-1, 3)
    np.testing.assert_allclose(
        [turned.min(0), turned.max(0)], [(4.5, -0.5, -1), (5.5, 0.5, 1)], atol=1e-6
    )
    for name in ("turned", "mirrored"):  # normals point out of the box
        a, b, c = np.moveaxis(stage.vertices[stage.faces[stage.semantic_ids == ids[name]]], 1, 0)
        normal, outward = np.cross(b - a, c - a), (a + b + c) / 3
        outward = outward - (outward.max(0) + outward.min(0)) / 2
        assert (np.einsum("ij,ij->i", normal, outward) > 0).all()


def test_metadata_beside_the_scene_gives_the_ids(tmp_path):
    path = two_boxes().write(tmp_path / "house.glb")
    (tmp_path / "house.json").write_text(json.dumps({"semantic": {"sofa": 70, "lamp": 9}}))
    assert dict(load_stage(path).names) == {70: "sofa", 9: "lamp"}
    (tmp_path / "house.json").write_text(json.dumps({"rooms": []}))
    assert dict(load_stage(path).names) == {1: "sofa", 2: "lamp"}
    (tmp_path / "house.json").write_text(json.dumps({"semantic": {"sofa": -1}}))
    with pytest.raises(UserError, match=r"house\.json.*semantic"):
        load_stage(path)


def test_ply_carries_vertex_colours(tmp_path):
    colours = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255]], np.uint8)
    mesh = trimesh.Trimesh([[0, 0, 0], [1, 0, 0], [0, 1, 0]], [[0, 1, 2]], vertex_colors=colours)
    path = tmp_path / "a.ply"
    path.write_bytes(mesh.export(file_type="ply"))
    stage = load_stage(path)
    np.testing.assert_allclose(stage.corner_rgb[0], np.eye(3), atol=1e-6)


def test_obj_is_read_and_z_up_is_turned(tmp_path):
    path = tmp_path / "a.obj"
    path.write_text("v 0 0 0\nv 1 0 0\nv 0 2 3\nf 1 2 3\n")
    np.testing.assert_allclose(load_stage(path).vertices[2], (0, 2, 3))
    # Raw Matterport: z is up; y north becomes -z.
    np.testing.assert_allclose(load_stage(path, up_axis="z").vertices[2], (0, 3, -2))


def test_unknown_up_axis_is_refused(tmp_path):
    with pytest.raises(UserError, match="up axis 'x'"):
        load_stage(tmp_path / "a.glb", up_axis="x")


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("missing.glb", None, "no such scene file"),
        ("empty.glb", b"", "empty"),
        ("noise.glb", b"this is no mesh at all" * 9, "damaged"),
        (
            "noise.ply",
            b"ply\nformat ascii 1.0\nelement vertex 3\nend_header\n1 2",
            "damaged|no tri",
        ),
        ("points.obj", b"v 0 0 0\nv 1 0 0\n", "no triangles|damaged"),
        ("scene.txt", b"text", "not a scene file"),
    ],
)
def test_bad_files_are_one_clear_line(tmp_path, name, content, says):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=says) as caught:
        load_stage(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("share", [0.02, 0.3, 0.9, 0.99])
def test_truncated_glb_is_a_user_error(tmp_path, share):
    whole = two_boxes().write(tmp_path / "a.glb").read_bytes()
    (tmp_path / "a.glb").write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(UserError, match=r"a\.glb"):
        load_stage(tmp_path / "a.glb")


def test_a_folder_is_not_a_scene(tmp_path):
    (tmp_path / "a.glb").mkdir()
    with pytest.raises(UserError, match=r"a\.glb"):
        load_stage(tmp_path / "a.glb")
