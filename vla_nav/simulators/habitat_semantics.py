"""Semantic ids of a bare GLB, in a file that habitat-sim reads them from.

    node "sofa_3" (id 7) --+
    node "wall_0" (id 1) --+-->  S_semantic.ply:  vertices with colours and `object_id`, triangles
    node ...             --+

A GLB has no semantic ids that habitat-sim knows of. They are the mesh simulator's: from `S.json`
beside the scene, key "semantic" ({node or mesh name: id}); without it a node's place in the file
plus one (glTF 2.0, sections 3.5 to 3.7: nodes, accessors, meshes).
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

_COMPONENTS = {5121: "<u1", 5123: "<u2", 5125: "<u4", 5126: "<f4"}
_MAX_ID = 65535  # habitat-sim keeps them in 16 bits
_TRIANGLES = 4
_VERTEX = np.dtype([("position", "<f4", 3), ("rgb", "u1", 3), ("object_id", "<u4")])
_FACE = np.dtype([("count", "u1"), ("corners", "<i4", 3)])


def write_semantics(path: Path, target: Path, *, up_axis: str) -> bool:
    """Write the semantic mesh of the GLB `path`; False where it has none that can be told.

    up_axis: of the file, "y" or "z". The PLY is Z-up, as habitat-sim takes such files.
    """
    try:
        document, binary = _read_glb(path)
        ids = _semantic_table(path)
        parts = list(_parts(document, binary, ids))
    except (KeyError, IndexError, ValueError, TypeError, struct.error):
        return (
            False  # an extension (compressed meshes): habitat-sim may render it, ids are not told
        )
    if not parts or max(part[2] for part in parts) > _MAX_ID:
        return False
    vertices, faces, first = [], [], 0
    for points, triangles, semantic_id in parts:
        part = np.zeros(len(points), _VERTEX)
        if up_axis == "y":
            points = np.stack([points[:, 0], -points[:, 2], points[:, 1]], axis=1)
        part["position"] = points
        part["rgb"] = (semantic_id & 255, semantic_id >> 8, 255 - (semantic_id & 255))
        part["object_id"] = semantic_id
        vertices.append(part)
        face = np.zeros(len(triangles), _FACE)
        face["count"], face["corners"] = 3, triangles + first
        faces.append(face)
        first += len(points)
    header = (
        "ply\nformat binary_little_endian 1.0\n"
        f"element vertex {first}\n"
        "property float x\nproperty float y\nproperty float z\n"
        "property uchar red\nproperty uchar green\nproperty uchar blue\n"
        "property uint object_id\n"
        f"element face {sum(map(len, faces))}\nproperty list uchar int vertex_indices\n"
        "end_header\n"
    )
    body = b"".join(part.tobytes() for part in (*vertices, *faces))
    target.write_bytes(header.encode("ascii") + body)
    return True


def _read_glb(path: Path) -> tuple[dict[str, Any], bytes]:
    data = path.read_bytes()
    (size,) = struct.unpack_from("<I", data, 12)
    document = json.loads(data[20 : 20 + size])
    start = 20 + size + 8
    return document, data[start:]


def _semantic_table(path: Path) -> dict[str, int] | None:
    beside = path.with_suffix(".json")
    if not beside.is_file():
        return None
    table = json.loads(beside.read_text(encoding="utf-8")).get("semantic")
    return table if isinstance(table, dict) else None


def _parts(document: dict[str, Any], binary: bytes, ids: dict[str, int] | None) -> Any:
    """(points (n, 3) float64 in the file's frame, triangles (m, 3), semantic id) per node."""
    nodes, meshes = document["nodes"], document["meshes"]
    scene = document["scenes"][document.get("scene", 0)]
    waiting = [(index, np.eye(4)) for index in scene["nodes"]]
    found = []
    while waiting:
        index, parent = waiting.pop()
        node = nodes[index]
        transform = parent @ _matrix(node)
        waiting += [(child, transform) for child in node.get("children", ())]
        if "mesh" in node:
            found.append((node["mesh"], node.get("name", ""), transform))
    for place, (mesh_index, name, transform) in enumerate(sorted(found, key=lambda one: one[:2])):
        mesh = meshes[mesh_index]
        if ids is None:
            semantic_id = place + 1
        else:
            semantic_id = int(ids.get(name, ids.get(mesh.get("name", ""), 0)))
        for primitive in mesh["primitives"]:
            if primitive.get("mode", _TRIANGLES) != _TRIANGLES:
                continue
            points = _accessor(document, binary, primitive["attributes"]["POSITION"], 3)
            if "indices" in primitive:
                triangles = _accessor(document, binary, primitive["indices"], 1).reshape(-1, 3)
            else:
                triangles = np.arange(len(points)).reshape(-1, 3)
            world = points @ transform[:3, :3].T + transform[:3, 3]
            yield world, triangles.astype(np.int64), semantic_id


def _matrix(node: dict[str, Any]) -> np.ndarray:
    """(4, 4) of a node: its matrix (stored by columns), or translation, rotation and scale."""
    if "matrix" in node:
        return np.array(node["matrix"], np.float64).reshape(4, 4).T
    x, y, z, w = node.get("rotation", (0.0, 0.0, 0.0, 1.0))
    rotation = np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )
    matrix = np.eye(4)
    matrix[:3, :3] = rotation * np.array(node.get("scale", (1.0, 1.0, 1.0)))
    matrix[:3, 3] = node.get("translation", (0.0, 0.0, 0.0))
    return matrix


def _accessor(document: dict[str, Any], binary: bytes, index: int, width: int) -> np.ndarray:
    accessor = document["accessors"][index]
    view = document["bufferViews"][accessor["bufferView"]]
    dtype = np.dtype(_COMPONENTS[accessor["componentType"]])
    start = view.get("byteOffset", 0) + accessor.get("byteOffset", 0)
    stride = view.get("byteStride", dtype.itemsize * width)
    count = accessor["count"]
    if "sparse" in accessor or start + stride * (count - 1) + dtype.itemsize * width > len(binary):
        raise ValueError("an accessor beyond the buffer")
    shape, strides = (count, width), (stride, dtype.itemsize)
    return np.ndarray(shape, dtype, binary, start, strides).copy()
