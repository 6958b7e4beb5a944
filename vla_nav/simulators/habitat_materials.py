"""A copy of a glTF file in which every surface has a material, for habitat-sim.

    primitive {POSITION, COLOR_0}               habitat-sim shows it black: its default material
                                                has no ambient colour, and scenes have no lights
    primitive {POSITION, COLOR_0, material: w}  w is white and not metallic: its own colours

glTF gives a surface without a material the default one, which is white (glTF 2.0, 5.19 material).
Houses of the procedural generator and many exports of tools are such files.
"""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

from vla_nav.errors import UserError

_JSON, _HEADER, _CHUNK = b"JSON", struct.Struct("<4sII"), struct.Struct("<I4s")
_WHITE = {"pbrMetallicRoughness": {"baseColorFactor": [1, 1, 1, 1], "metallicFactor": 0}}


def with_materials(path: Path, folder: Path) -> Path:
    """`path` itself if every surface has a material or it is no glTF file; else a copy of it in
    `folder`, of the same name, in which every surface has one. Raises `UserError` if damaged."""
    ending = path.suffix.lower()
    if ending not in (".glb", ".gltf"):
        return path
    with path.open("rb") as file:
        document = _read_json(file, path, is_binary=ending == ".glb")
        try:
            bare = _bare_primitives(document)
            if not bare:
                return path
            materials = document.setdefault("materials", [])
            materials.append(_WHITE)
            for primitive in bare:
                primitive["material"] = len(materials) - 1
            _keep_neighbours(document, path.parent)
        except (AttributeError, TypeError) as error:
            raise _damaged(path, error) from None
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / path.name
        text = json.dumps(document).encode()
        with target.open("wb") as copy:
            if ending == ".gltf":
                copy.write(text)
                return target
            text += b" " * (-len(text) % 4)
            start = file.tell()
            size = path.stat().st_size - start + _HEADER.size + _CHUNK.size + len(text)
            copy.write(_HEADER.pack(b"glTF", 2, size) + _CHUNK.pack(len(text), _JSON) + text)
            shutil.copyfileobj(file, copy)
    return target


def has_bare_surfaces(path: Path) -> bool:
    """Whether a .glb file has a surface without a material. Raises `UserError` if damaged."""
    with path.open("rb") as file:
        document = _read_json(file, path, is_binary=True)
    try:
        return bool(_bare_primitives(document))
    except (AttributeError, TypeError) as error:
        raise _damaged(path, error) from None


def _read_json(file: BinaryIO, path: Path, *, is_binary: bool) -> dict[str, Any]:
    """The file's JSON; of a binary one the position is then at the chunk after it."""
    try:
        if is_binary:
            file.seek(_HEADER.size)
            size, kind = _CHUNK.unpack(file.read(_CHUNK.size))
            if kind != _JSON:
                raise ValueError("its first part is not JSON")
            document = json.loads(file.read(size))
        else:
            document = json.load(file)
        if not isinstance(document, dict):
            raise ValueError("its JSON is not an object")
    except (ValueError, struct.error) as error:
        raise _damaged(path, error) from None
    return document


def _damaged(path: Path, error: Exception) -> UserError:
    return UserError(f"{path}: the scene file is damaged ({error}); write or download it again")


def _bare_primitives(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        primitive
        for mesh in document.get("meshes", [])
        for primitive in mesh.get("primitives", [])
        if "material" not in primitive
    ]


def _keep_neighbours(document: dict[str, Any], folder: Path) -> None:
    """Files that the document names relative to itself are named in full."""
    for kind in ("buffers", "images"):
        for entry in document.get(kind, []):
            uri = entry.get("uri", "")
            if uri and not uri.startswith("data:"):
                entry["uri"] = f"{quote(str(folder.absolute()))}/{uri}"
