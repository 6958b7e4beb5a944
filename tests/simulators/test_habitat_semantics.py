"""The semantic mesh written for habitat-sim holds the ids of the mesh simulator's own reader."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import trimesh
from mesh_scenes import SceneBuilder, two_floors_with_stairs

from vla_nav.simulators.habitat_scene import find_scene
from vla_nav.simulators.habitat_semantics import write_semantics
from vla_nav.simulators.stage import load_stage


def triangles_of_ply(path: Path) -> list[tuple]:
    """(id, corners) of every triangle, sorted; back from Z-up to Y-up."""
    data = path.read_bytes()
    head, body = data.split(b"end_header\n", 1)
    counts = {
        line.split()[1]: int(line.split()[2]) for line in head.split(b"\n") if b"element" in line
    }
    vertex = np.dtype([("p", "<f4", 3), ("rgb", "u1", 3), ("id", "<u4")])
    vertices = np.frombuffer(body, vertex, counts[b"vertex"])
    face = np.dtype([("n", "u1"), ("c", "<i4", 3)])
    faces = np.frombuffer(body, face, counts[b"face"], counts[b"vertex"] * vertex.itemsize)
    assert len(body) == counts[b"vertex"] * vertex.itemsize + counts[b"face"] * face.itemsize
    assert (faces["n"] == 3).all()
    corners = vertices["p"][faces["c"]][..., [0, 2, 1]] * np.float32([1, 1, -1])
    ids = vertices["id"][faces["c"]]
    assert (ids == ids[:, :1]).all()
    return triangles(ids[:, 0], corners)


def triangles(ids: np.ndarray, corners: np.ndarray) -> list[tuple]:
    rounded = np.round(corners.astype(np.float64), 4) + 0.0
    return sorted(
        (int(i), *sorted(map(tuple, c))) for i, c in zip(ids, rounded.tolist(), strict=True)
    )


def placed_scene(folder: Path) -> Path:
    """One mesh in two places, turned, scaled and below a moved parent."""
    scene = trimesh.Scene()
    box = trimesh.creation.box((1.0, 2.0, 3.0))
    turn = trimesh.transformations.rotation_matrix(0.7, (1, 2, 3), (0.1, 0.2, 0.3))
    scene.add_geometry(box, node_name="parent", geom_name="box", transform=turn)
    move = trimesh.transformations.translation_matrix((4, 0.5, -2)) @ np.diag([2.0, 1.5, 0.5, 1.0])
    scene.graph.update("child", "parent", matrix=move, geometry="box")
    scene.add_geometry(trimesh.creation.icosphere(1), node_name="ball", geom_name="ball")
    path = folder / "placed.glb"
    path.write_bytes(scene.export(file_type="glb"))
    return path


@pytest.mark.parametrize("make", ["stairs", "placed"])
@pytest.mark.parametrize("has_table", [False, True])
def test_ids_and_triangles_are_those_of_the_mesh_reader(tmp_path, make, has_table):
    if make == "stairs":
        path = two_floors_with_stairs().write(tmp_path / "stairs.glb")
    else:
        path = placed_scene(tmp_path)
    if has_table:
        names = [*load_stage(path).names.values()]
        table = {name: 300 + 7 * number for number, name in enumerate(names[1:])}
        path.with_suffix(".json").write_text(json.dumps({"semantic": table}))
    stage = load_stage(path)
    assert write_semantics(path, tmp_path / "x.ply", up_axis="y")
    expected = triangles(stage.semantic_ids, stage.vertices[stage.faces])
    assert triangles_of_ply(tmp_path / "x.ply") == expected
    assert len({one[0] for one in expected}) > 2


def test_a_z_up_file_is_written_as_it_is(tmp_path):
    path = two_floors_with_stairs().write(tmp_path / "stairs.glb")
    stage = load_stage(path, up_axis="z")
    assert write_semantics(path, tmp_path / "x.ply", up_axis="z")
    assert triangles_of_ply(tmp_path / "x.ply") == triangles(
        stage.semantic_ids, stage.vertices[stage.faces]
    )


def test_the_stage_config_names_it_only_when_asked_for(tmp_path):
    path = SceneBuilder().room(0, 0, 2, 2).write(tmp_path / "s.glb")
    for semantic in (False, True):
        scene = find_scene(path, folder=tmp_path / "m", semantic=semantic)
        stage = json.loads(Path(scene.scene_id).read_text())
        assert ("semantic_asset" in stage) == semantic
    assert Path(stage["semantic_asset"]).is_file()


def test_files_that_cannot_be_read_have_no_semantic_mesh(tmp_path):
    path = SceneBuilder().room(0, 0, 2, 2).write(tmp_path / "s.glb")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert not write_semantics(path, tmp_path / "x.ply", up_axis="y")
    document = whole.replace(b'"POSITION"', b'"POSITIOM"')
    path.write_bytes(document)
    assert not write_semantics(path, tmp_path / "x.ply", up_axis="y")
    assert not (tmp_path / "x.ply").exists()
