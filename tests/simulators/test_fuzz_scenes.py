"""Scene files cut, changed and forged: a stage or a refusal, in bounded time and memory."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import trimesh

from tests.episodes.fixtures.damage import cut, flipped, replaced
from tests.episodes.fixtures.hostile import nested_lists, pickled, png_of, write_sparse
from tests.episodes.fixtures.limited import GOOD, Limited
from vla_nav.errors import UserError
from vla_nav.simulators import scene_limits
from vla_nav.simulators.stage import load_stage

PLY = b"""ply
format binary_little_endian 1.0
element vertex 1000000000000
property float x
property float y
property float z
end_header
"""


@pytest.fixture(scope="module")
def limited() -> Iterator[Limited]:
    with Limited() as child:
        yield child


@pytest.fixture
def glb(tmp_path: Path) -> Path:
    """A room of two boxes, one with vertex colours."""
    scene = trimesh.Scene()
    box = trimesh.creation.box((4.0, 2.5, 4.0))
    scene.add_geometry(box, node_name="room")
    box = trimesh.creation.box((1.0, 1.0, 1.0))
    box.visual.vertex_colors = np.full((len(box.vertices), 4), 200, np.uint8)
    scene.add_geometry(box, node_name="table")
    path = tmp_path / "room.glb"
    path.write_bytes(scene.export(file_type="glb"))
    return path


def taken_apart(data: bytes) -> tuple[dict, bytes]:
    """The JSON and the binary chunk of a glb."""
    length = struct.unpack("<I", data[12:16])[0]
    return json.loads(data[20 : 20 + length]), data[28 + length :]


def put_together(tree: bytes, binary: bytes) -> bytes:
    """A glb of a JSON text and a binary chunk."""
    tree += b" " * (-len(tree) % 4)
    chunks = struct.pack("<II", len(tree), 0x4E4F534A) + tree
    chunks += struct.pack("<II", len(binary), 0x004E4942) + binary
    return struct.pack("<III", 0x46546C67, 2, 12 + len(chunks)) + chunks


def faults(limited: Limited, path: Path, damaged: list[tuple[str, bytes]]) -> list[str]:
    wrong = []
    for what, data in damaged:
        path.write_bytes(data)
        outcome = limited.load_scene(path)
        is_named = outcome.kind != "refused" or str(path) in outcome.text
        if outcome.kind not in GOOD or not is_named:
            wrong.append(f"{what}: {outcome.kind} {outcome.text[-700:]}")
    return wrong


def test_damaged_scenes_are_refused_or_read(limited: Limited, glb: Path) -> None:
    data = glb.read_bytes()
    assert limited.load_scene(glb).kind == "valid"
    damaged = cut(data) + flipped(data, seed=5, count=30) + replaced(data, seed=5)
    assert faults(limited, glb, damaged) == []


def test_numbers_that_lie_are_refused_or_read(limited: Limited, glb: Path) -> None:
    tree, binary = taken_apart(glb.read_bytes())
    damaged = []
    for group, keys in {
        "accessors": ("count", "byteOffset", "bufferView", "componentType"),
        "bufferViews": ("byteLength", "byteOffset", "byteStride", "buffer"),
        "buffers": ("byteLength",),
    }.items():
        for key in keys:
            for value in (2**31 - 1, 2**62, -1, 0, 1.5, "x", None, [1], 5123):
                changed = json.loads(json.dumps(tree))
                changed[group][0][key] = value
                damaged.append((f"{group}[0][{key}] = {value}", changed))
    for value in ([10**9] * 3, [float("nan")] * 3, [1e308] * 3, "x"):
        changed = json.loads(json.dumps(tree))
        changed["nodes"][-1]["translation"] = value
        damaged.append((f"translation {value}", changed))
    changed = json.loads(json.dumps(tree))
    changed["nodes"][0]["children"] = [0]
    damaged.append(("a node that is its own child", changed))
    ways = [(what, put_together(json.dumps(t).encode(), binary)) for what, t in damaged]
    assert faults(limited, glb, ways) == []


def test_files_that_a_scene_names_are_not_followed(limited: Limited, glb: Path) -> None:
    tree, binary = taken_apart(glb.read_bytes())
    ways = []
    for uri in ("/etc/passwd", "../../secret.bin", "http://127.0.0.1:9/x", "data:x;base64,????"):
        changed = json.loads(json.dumps(tree))
        changed["buffers"][0]["uri"] = uri
        changed["images"] = [{"uri": uri}]
        ways.append((uri, put_together(json.dumps(changed).encode(), binary)))
    assert faults(limited, glb, ways) == []


def textured(picture: bytes, **image: str) -> bytes:
    """A glb of one triangle that wears a picture, inside the file or as `image` says."""
    points = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0]], np.float32).tobytes()
    corners = np.array([[0, 0], [1, 0], [0, 1]], np.float32).tobytes()
    faces = np.array([0, 1, 2], np.uint32).tobytes()
    parts = [points, corners, faces, picture + b"\0" * (-len(picture) % 4)]
    views, at = [], 0
    for part in parts:
        views.append({"buffer": 0, "byteOffset": at, "byteLength": len(part)})
        at += len(part)
    floats = {"componentType": 5126, "count": 3}
    primitive = {"attributes": {"POSITION": 0, "TEXCOORD_0": 1}, "indices": 2, "material": 0}
    tree = {
        "asset": {"version": "2.0"},
        "scene": 0,
        "scenes": [{"nodes": [0]}],
        "nodes": [{"mesh": 0}],
        "meshes": [{"primitives": [primitive]}],
        "materials": [{"pbrMetallicRoughness": {"baseColorTexture": {"index": 0}}}],
        "textures": [{"source": 0}],
        "images": [image or {"bufferView": 3, "mimeType": "image/png"}],
        "accessors": [
            {"bufferView": 0, "type": "VEC3", "min": [0, 0, 0], "max": [1, 1, 0], **floats},
            {"bufferView": 1, "type": "VEC2", **floats},
            {"bufferView": 2, "componentType": 5125, "count": 3, "type": "SCALAR"},
        ],
        "bufferViews": views,
        "buffers": [{"byteLength": at}],
    }
    return put_together(json.dumps(tree).encode(), b"".join(parts))


@pytest.mark.parametrize("size", [(13000, 13000), (8193, 8192), (60000, 60000)])
def test_texture_of_absurd_size_is_refused(
    limited: Limited, tmp_path: Path, size: tuple[int, int]
) -> None:
    """Inside a glb, beside one, beside an obj; above Pillow's own limit too."""
    picture = png_of(*size)
    beside = tmp_path / "wall.png"
    beside.write_bytes(picture)
    inside = "data:image/png;base64," + base64.b64encode(picture).decode()
    (tmp_path / "wall.mtl").write_text("newmtl wall\nmap_Kd wall.png\n")
    obj = b"mtllib wall.mtl\nv 0 0 0\nv 1 0 0\nv 0 1 0\nvt 0 0\nvt 1 0\nvt 0 1\nusemtl wall\n"
    for name, data, named in (
        ("inside.glb", textured(picture), "inside.glb: image 0"),
        ("beside.glb", textured(b"", uri="wall.png"), "wall.png"),
        ("uri.glb", textured(b"", uri=inside), "uri.glb"),
        ("wall.obj", obj + b"f 1/1 2/2 3/3\n", "wall.png"),
    ):
        path = tmp_path / name
        path.write_bytes(data)
        outcome = limited.load_scene(path)
        assert outcome.kind == "refused", (name, outcome)
        assert str(tmp_path / named) in outcome.text
        assert "8192 x 8192" in outcome.text


def test_textures_are_bounded_in_sum_and_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, binary = taken_apart(textured(png_of(64, 64)))
    tree["meshes"] *= 3  # three meshes in one material
    tree["nodes"] = [{"mesh": index} for index in range(3)]
    tree["scenes"][0]["nodes"] = [0, 1, 2]
    path = tmp_path / "walls.glb"
    path.write_bytes(put_together(json.dumps(tree).encode(), binary))
    monkeypatch.setattr(scene_limits, "MAX_SCENE_PIXELS", 64 * 64)
    stage = load_stage(path)
    assert len(stage.textures) == 1
    assert stage.face_texture.tolist() == [0, 0, 0]

    tree["images"] *= 2  # the same picture as two images
    tree["textures"].append({"source": 1})
    tree["materials"].append({"pbrMetallicRoughness": {"baseColorTexture": {"index": 1}}})
    primitive = tree["meshes"][0]["primitives"][0]
    tree["meshes"] = [{"primitives": [primitive | {"material": index}]} for index in (0, 1, 0)]
    path.write_bytes(put_together(json.dumps(tree).encode(), binary))
    with pytest.raises(UserError, match=r"walls\.glb: textures of more than 4096 pixels in all"):
        load_stage(path)
    monkeypatch.setattr(scene_limits, "MAX_SCENE_PIXELS", 2 * 64 * 64)
    assert load_stage(path).face_texture.tolist() == [0, 1, 0]


def test_accessors_of_other_shapes_are_refused_or_read(limited: Limited, glb: Path) -> None:
    tree, binary = taken_apart(glb.read_bytes())
    ways = []
    for index, accessor in enumerate(tree["accessors"]):
        for kind in ("SCALAR", "VEC2", "VEC3", "VEC4", "MAT4"):
            changed = json.loads(json.dumps(tree))
            changed["accessors"][index] = accessor | {"type": kind}
            ways.append((f"{index} {kind}", put_together(json.dumps(changed).encode(), binary)))
    assert faults(limited, glb, ways) == []


def test_damaged_textures_are_refused_or_read(limited: Limited, tmp_path: Path) -> None:
    path = tmp_path / "wall.glb"
    picture = png_of(64, 64)
    data = textured(picture)
    path.write_bytes(data)
    assert limited.load_scene(path).kind == "valid"
    ways = [(what, textured(changed)) for what, changed in cut(picture) + replaced(picture, seed=6)]
    damaged = ways + cut(data) + flipped(data, seed=6, count=30) + replaced(data, seed=6)
    assert faults(limited, path, damaged) == []


@pytest.mark.parametrize("vertex", [24, 2**31, 2**32 - 1])
def test_faces_of_vertices_that_are_not_there_are_refused(
    limited: Limited, tmp_path: Path, vertex: int
) -> None:
    path = tmp_path / "wall.glb"
    tree, binary = taken_apart(textured(png_of(64, 64)))
    at = tree["bufferViews"][2]["byteOffset"]
    binary = binary[:at] + struct.pack("<I", vertex) + binary[at + 4 :]
    path.write_bytes(put_together(json.dumps(tree).encode(), binary))
    outcome = limited.load_scene(path)
    assert outcome.kind == "refused"
    assert f"{path}: mesh" in outcome.text
    assert str(vertex) in outcome.text


def test_other_things_in_the_place_of_a_scene(limited: Limited, tmp_path: Path) -> None:
    ways = [
        ("pickle", pickled(tmp_path / "executed")),
        ("nested", put_together(b'{"extras":' + nested_lists() + b"}", b"")),
        ("words", b"o x\nv 1 2\nf 1 2 3\n"),
        ("ply of 10^12 points", PLY),
    ]
    for suffix in (".glb", ".ply", ".obj", ".gltf"):
        assert faults(limited, tmp_path / f"scene{suffix}", ways) == []
    assert not (tmp_path / "executed").exists()


def test_eight_gigabytes_are_refused(limited: Limited, tmp_path: Path) -> None:
    for suffix in (".glb", ".ply"):
        path = tmp_path / f"scene{suffix}"
        write_sparse(path)
        outcome = limited.load_scene(path)
        assert outcome.kind == "refused"
        assert str(path) in outcome.text
        assert outcome.wall_s < 5
    write_sparse(tmp_path / "wall.bin")
    tree, _ = taken_apart(textured(b""))
    tree["buffers"][0]["uri"] = "wall.bin"
    path = tmp_path / "scene.gltf"
    path.write_text(json.dumps(tree))
    outcome = limited.load_scene(path)
    assert outcome.kind == "refused"
    assert f"{tmp_path / 'wall.bin'}: {8 << 30} bytes" in outcome.text
