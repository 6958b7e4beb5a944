"""Surfaces without a material get the white one that glTF says they have, and nothing else moves.

habitat-sim would show them black, silently: houses of the generator are such files.
"""

from __future__ import annotations

import json
import os
import struct
import tempfile
from pathlib import Path

import numpy as np
import pytest
import trimesh

from vla_nav.episodes.types import Camera, Embodiment, Pose
from vla_nav.errors import UserError
from vla_nav.simulators.habitat_materials import with_materials
from vla_nav.simulators.habitat_scene import find_scene
from vla_nav.simulators.opening import SimulatorSetup

RED, BLUE = (200, 40, 30, 255), (30, 60, 200, 255)


def box(extents: tuple[float, ...], center: tuple[float, ...]) -> trimesh.Trimesh:
    made = trimesh.creation.box(extents)
    made.apply_translation(center)
    return made


def scene() -> trimesh.Scene:
    """A floor and a red box of vertex colours; a blue box with a material."""
    red, blue = box((1, 1, 1), (0, 0.5, 0)), box((1, 1, 1), (3, 0.5, 0))
    red.visual.vertex_colors = np.tile(np.array(RED, np.uint8), (len(red.vertices), 1))
    material = trimesh.visual.material.PBRMaterial(baseColorFactor=BLUE)
    blue.visual = trimesh.visual.TextureVisuals(material=material)
    return trimesh.Scene([box((9, 0.1, 9), (0, -0.05, 0)), red, blue])


def document(path: Path) -> dict:
    data = path.read_bytes()
    if path.suffix == ".gltf":
        return json.loads(data)
    (size,) = struct.unpack("<I", data[12:16])
    assert struct.unpack("<I", data[8:12])[0] == len(data)
    return json.loads(data[20 : 20 + size])


def materials(path: Path) -> list[int | None]:
    return [
        primitive.get("material")
        for mesh in document(path)["meshes"]
        for primitive in mesh["primitives"]
    ]


def test_bare_surfaces_get_a_white_material_and_the_rest_stays(tmp_path: Path) -> None:
    path = tmp_path / "in" / "scene.glb"
    path.parent.mkdir()
    scene().export(path)
    before = path.read_bytes()
    assert materials(path) == [None, None, 0]
    copy = with_materials(path, tmp_path / "out")
    assert copy == tmp_path / "out" / "scene.glb"
    assert path.read_bytes() == before
    assert materials(copy) == [1, 1, 0]
    white = document(copy)["materials"][1]["pbrMetallicRoughness"]
    assert white == {"baseColorFactor": [1, 1, 1, 1], "metallicFactor": 0}
    again, first = trimesh.load(copy), trimesh.load(path)
    for name, mesh in first.geometry.items():
        assert np.array_equal(mesh.vertices, again.geometry[name].vertices)
        assert np.array_equal(mesh.faces, again.geometry[name].faces)
    assert with_materials(copy, tmp_path / "third") == copy
    assert not (tmp_path / "third").exists()


def test_files_beside_a_gltf_are_still_found(tmp_path: Path) -> None:
    path = tmp_path / "with space" / "scene.gltf"
    path.parent.mkdir()
    for name, data in trimesh.exchange.gltf.export_gltf(scene()).items():
        (path.parent / name.replace("model.gltf", "scene.gltf")).write_bytes(data)
    copy = with_materials(path, tmp_path / "out")
    assert materials(copy) == [1, 1, 0]
    uris = {buffer["uri"] for buffer in document(copy)["buffers"]}
    beside = str(path.parent).replace(" ", "%20")
    assert uris
    assert all(uri.startswith(f"{beside}/") for uri in uris)


def test_other_files_are_left_alone_and_damaged_ones_named(tmp_path: Path) -> None:
    ply = tmp_path / "scene.ply"
    scene().to_mesh().export(ply)
    assert with_materials(ply, tmp_path / "out") == ply
    bad = tmp_path / "bad.glb"
    text = b'{"meshes": [{"primitives": [7]}]}   '
    for body in (
        b"glTF",
        struct.pack("<4sII", b"glTF", 2, 20) + struct.pack("<I4s", 0, b"BIN\0"),
        struct.pack("<4sII", b"glTF", 2, 99) + struct.pack("<I4s", len(text), b"JSON") + text,
    ):
        bad.write_bytes(body)
        with pytest.raises(UserError, match=r"bad\.glb: the scene file is damaged"):
            with_materials(bad, tmp_path / "out")


def test_the_stage_of_a_bare_file_shows_the_copy_and_collides_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "scene.glb"
    scene().export(path)
    for up_axis in ("y", "z"):
        told = find_scene(path, folder=tmp_path / f"stages_{up_axis}", up_axis=up_axis)
        stage = json.loads(Path(told.scene_id).read_text())
        assert materials(Path(stage["render_asset"])) == [1, 1, 0]
        assert stage["collision_asset"] == str(path)


@pytest.mark.habitat
def test_copies_do_not_pile_up_and_a_closed_worker_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / f"scene{number}.glb" for number in range(3)]
    for file in files:
        scene().export(file)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    setup = SimulatorSetup("habitat", {}, os.environ["VLA_NAV_HABITAT_PYTHON"])
    simulator = setup.opened(Embodiment((), 0.18, 1.5, 30.0, 0.25, True))
    counts = []
    try:
        for file in (*files, *files):
            simulator.load_scene(str(file))
            counts.append(len(list((tmp_path / "tmp").rglob("*.glb"))))
    finally:
        simulator.close()
    assert counts == [1] * 6
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.habitat
def test_habitat_shows_their_own_colours(tmp_path: Path) -> None:
    path = tmp_path / "scene.glb"
    scene().export(path)
    camera = Camera("front", 33, 33, 90.0, 0.5)
    setup = SimulatorSetup("habitat", {}, os.environ["VLA_NAV_HABITAT_PYTHON"])
    simulator = setup.opened(Embodiment((camera,), 0.18, 1.5, 30.0, 0.25, True))
    try:
        simulator.load_scene(str(path))
        for x, colour in ((0.0, RED), (3.0, BLUE)):
            simulator.reset(Pose.from_yaw((x, 0.0, 2.0), 0.0))
            seen = simulator.observe().rgb["front"]
            # the encoding of vertex colours by the exporter rounds once
            assert np.abs(seen[16, 16].astype(int) - colour[:3]).max() <= 2
    finally:
        simulator.close()
