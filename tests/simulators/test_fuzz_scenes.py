"""Scene files cut, changed and forged: a stage or a refusal, in bounded time and memory."""

from __future__ import annotations

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


@pytest.mark.xfail(reason="known fault: IndexError for a face that names no vertex")
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


@pytest.mark.xfail(reason="known fault: pillow alone bounds a texture's size", run=False)
def test_texture_of_absurd_size_is_refused(limited: Limited, tmp_path: Path) -> None:
    path = tmp_path / "wall.glb"
    picture = png_of(13000, 13000)
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
        "images": [{"bufferView": 3, "mimeType": "image/png"}],
        "accessors": [
            {"bufferView": 0, "type": "VEC3", "min": [0, 0, 0], "max": [1, 1, 0], **floats},
            {"bufferView": 1, "type": "VEC2", **floats},
            {"bufferView": 2, "componentType": 5125, "count": 3, "type": "SCALAR"},
        ],
        "bufferViews": views,
        "buffers": [{"byteLength": at}],
    }
    path.write_bytes(put_together(json.dumps(tree).encode(), b"".join(parts)))
    assert limited.load_scene(path).kind == "refused"


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


@pytest.mark.xfail(reason="known fault: a .ply is read whole", run=False)
def test_eight_gigabytes_are_refused(limited: Limited, tmp_path: Path) -> None:
    for suffix in (".glb", ".ply"):
        path = tmp_path / f"scene{suffix}"
        write_sparse(path)
        assert limited.load_scene(path).kind == "refused"
