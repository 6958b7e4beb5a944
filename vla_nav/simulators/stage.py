"""A stage: one GLB, glTF, PLY or OBJ file as a flat triangle soup with colours and semantic ids.

    node "sofa_3"  ──transform──┐
    node "wall_0"  ──transform──┼──>  vertices (V, 3), faces (F, 3), per face: colour,
    node ...       ──transform──┘     texture, corner colours, semantic id

Semantic ids come from `<stem>.json` beside the file, key "semantic": {node or geometry name: id};
without it a node's id is its place in the file plus one. Colours are display values: neither a
base colour factor nor a texture is gamma-converted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import trimesh

from vla_nav.errors import UserError, unknown_name
from vla_nav.files import read_json
from vla_nav.simulators.scene_limits import Resolver, Textures, check_file_size, check_own_images

SUFFIXES = (".glb", ".gltf", ".ply", ".obj")
_UP_ROTATIONS = {  # from the file's axes to +Y up, -Z forward
    "y": np.eye(3),
    "z": np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, -1.0, 0.0]]),
}
_DEFAULT_RGB = (0.6, 0.6, 0.6)


@dataclass(frozen=True, slots=True)
class Stage:
    """Triangles in the world frame (+Y up, metres) and what they look like.

    V vertices, F faces. Colours are float32 in [0, 1].
    """

    path: str
    vertices: np.ndarray  # (V, 3) float32
    faces: np.ndarray  # (F, 3) int32
    face_rgb: np.ndarray  # (F, 3) base colour; multiplies the texture where there is one
    semantic_ids: np.ndarray  # (F,) uint32
    corner_rgb: np.ndarray | None  # (F, 3 corners, 3), NaN for faces without vertex colours
    face_texture: np.ndarray | None  # (F,) int32 index into `textures`, -1 for none
    corner_uv: np.ndarray | None  # (F, 3 corners, 2), v upward as in OBJ and trimesh
    textures: tuple[np.ndarray, ...]  # each (H, W, 3) uint8
    names: Mapping[int, str]  # semantic id -> node name


class _Part(NamedTuple):
    vertices: np.ndarray
    faces: np.ndarray
    rgb: np.ndarray  # (f, 3)
    corner_rgb: np.ndarray | None
    corner_uv: np.ndarray | None
    texture: np.ndarray | None


def load_stage(path: str | Path, *, up_axis: str = "y") -> Stage:
    """Read a scene file. `up_axis` is the file's up direction, "y" (glTF) or "z" (raw MP3D).

    Raises `UserError` for a missing, damaged, empty, unknown or too large file (the limits are
    those of `scene_limits.py`) and for bad metadata.
    """
    path = Path(path)
    if up_axis not in _UP_ROTATIONS:
        raise unknown_name("up axis", up_axis, _UP_ROTATIONS)
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(f"{path}: not a scene file; a stage is one of {', '.join(SUFFIXES)}")
    scene = _read_scene(path)
    semantic = _semantic_table(path)

    textures = Textures(path)
    parts: list[_Part] = []
    ids: list[int] = []
    names: dict[int, str] = {}
    place = {name: index for index, name in enumerate(scene.geometry)}
    node_names = sorted(  # by place in the file; trimesh keeps nodes in a set
        scene.graph.nodes_geometry, key=lambda node: (place[scene.graph[node][1]], node)
    )
    for index, node in enumerate(node_names):
        transform, geometry_name = scene.graph[node]
        geometry = scene.geometry[geometry_name]
        if not isinstance(geometry, trimesh.Trimesh) or len(geometry.faces) == 0:
            continue
        if semantic is None:
            semantic_id = index + 1
        else:
            semantic_id = semantic.get(node, semantic.get(geometry_name, 0))
        names[semantic_id] = node
        ids.append(semantic_id)
        parts.append(_part(f"{path}: mesh {geometry_name!r}", geometry, transform, textures))
    if not parts:
        raise UserError(f"{path}: holds no triangles; export the scene's meshes into it")
    return _joined(path, parts, ids, names, _UP_ROTATIONS[up_axis])


def _read_scene(path: Path) -> trimesh.Scene:
    try:
        size = path.stat().st_size
    except OSError:
        raise UserError(
            f"{path}: no such scene file; check the data path and the scene id, "
            "or write houses with `vla-nav houses`"
        ) from None
    if size == 0:
        raise UserError(f"{path}: the scene file is empty; write or download it again")
    check_file_size(path, size)
    resolver = Resolver(str(path))
    try:
        if path.suffix.lower() in (".glb", ".gltf"):
            check_own_images(path)
        scene = trimesh.load_scene(path, process=False, resolver=resolver)
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001 - trimesh raises whatever the parser met
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:160]
        raise UserError(
            f"{path}: the scene file is damaged ({reason}); write or download it again"
        ) from None
    if resolver.refusal is not None:
        raise resolver.refusal
    return scene


def _semantic_table(path: Path) -> dict[str, int] | None:
    """{node name: id} of the metadata beside the scene; None where there is none."""
    metadata_path = path.with_suffix(".json")
    if not metadata_path.exists():
        return None
    metadata: Any = read_json(metadata_path)
    table = metadata.get("semantic") if isinstance(metadata, dict) else None
    if table is None:
        return None
    if not isinstance(table, dict) or not all(
        isinstance(value, int) and 0 <= value < 2**32 for value in table.values()
    ):
        raise UserError(
            f"{metadata_path}: 'semantic' must map node names to ids in [0, 4294967295]; "
            "mend it or write the house again"
        )
    return table


def _part(
    where: str, geometry: trimesh.Trimesh, transform: np.ndarray, textures: Textures
) -> _Part:
    vertices = np.asarray(geometry.vertices)
    if vertices.ndim != 2 or vertices.shape[1] != 3:
        raise UserError(
            f"{where}: vertices of shape {vertices.shape}; (n, 3) is needed; export the scene again"
        )
    vertices = vertices @ transform[:3, :3].T + transform[:3, 3]
    faces = np.asarray(geometry.faces)
    if faces.min() < 0 or faces.max() >= len(vertices):
        raise UserError(
            f"{where}: faces name vertices {faces.min()} to {faces.max()}; it has 0 to "
            f"{len(vertices) - 1}; export the scene again"
        )
    if np.linalg.det(transform[:3, :3]) < 0:  # a mirrored node turns its triangles inside out
        faces = faces[:, ::-1]
    rgb = np.tile(np.float32(_DEFAULT_RGB), (len(faces), 1))
    corner_rgb = corner_uv = texture = None
    visual = geometry.visual
    if isinstance(visual, trimesh.visual.TextureVisuals):
        material = visual.material
        rgb[:] = _material_rgb(material)
        image = getattr(material, "baseColorTexture", None) or getattr(material, "image", None)
        if image is not None and visual.uv is not None and len(visual.uv) == len(vertices):
            texture = textures.decode(image)
            corner_uv = np.asarray(visual.uv, np.float32)[faces]
        colours = visual.vertex_attributes.get("color") if visual.vertex_attributes else None
        if colours is not None and texture is None:
            corner_rgb = _unit_rgb(np.asarray(colours))[faces]
    elif visual.kind == "face":
        rgb = _unit_rgb(np.asarray(visual.face_colors))
    elif visual.kind == "vertex":
        corner_rgb = _unit_rgb(np.asarray(visual.vertex_colors))[faces]
        if (corner_rgb == corner_rgb[:, :1]).all():  # one colour per face: the cheap way
            rgb, corner_rgb = np.ascontiguousarray(corner_rgb[:, 0]), None
    return _Part(vertices, faces, rgb, corner_rgb, corner_uv, texture)


def _material_rgb(material: Any) -> np.ndarray:
    """(3,) base colour of a PBR or simple material; white under a texture that names none."""
    colour = getattr(material, "baseColorFactor", None)
    if colour is None:
        has_image = getattr(material, "baseColorTexture", None) is not None
        has_image = has_image or getattr(material, "image", None) is not None
        if has_image:
            return np.ones(3, np.float32)
        colour = getattr(material, "diffuse", None)
    if colour is None:
        return np.ones(3, np.float32)
    return _unit_rgb(np.asarray(colour)[None])[0]


def _unit_rgb(colours: np.ndarray) -> np.ndarray:
    """(n, 3) float32 in [0, 1] from RGB(A) integers or floats."""
    scale = np.iinfo(colours.dtype).max if np.issubdtype(colours.dtype, np.integer) else 1.0
    return (colours[:, :3] / scale).astype(np.float32)


def _joined(
    path: Path, parts: list[_Part], ids: list[int], names: dict[int, str], up: np.ndarray
) -> Stage:
    counts = [len(part.faces) for part in parts]
    first = np.cumsum([0, *(len(part.vertices) for part in parts)])
    vertices = np.concatenate([part.vertices for part in parts]) @ up.T
    if not np.isfinite(vertices).all():
        raise UserError(f"{path}: vertices hold NaN or infinity; export the scene again")
    corner_rgb = corner_uv = face_texture = None
    textures: list[np.ndarray] = []
    places: dict[int, int] = {}  # of the textures, by identity: parts share them
    if any(part.corner_rgb is not None for part in parts):
        corner_rgb = np.full((sum(counts), 3, 3), np.nan, np.float32)
    if any(part.texture is not None for part in parts):
        corner_uv = np.zeros((sum(counts), 3, 2), np.float32)
        face_texture = np.full(sum(counts), -1, np.int32)
    start = 0
    for part, count in zip(parts, counts, strict=True):
        here = slice(start, start + count)
        start += count
        if part.corner_rgb is not None:
            corner_rgb[here] = part.corner_rgb
        if part.texture is not None:
            corner_uv[here] = part.corner_uv
            place = places.setdefault(id(part.texture), len(textures))
            if place == len(textures):
                textures.append(part.texture)
            face_texture[here] = place
    return Stage(
        path=str(path),
        vertices=np.ascontiguousarray(vertices, np.float32),
        faces=np.concatenate(
            [part.faces + offset for part, offset in zip(parts, first[:-1], strict=True)]
        ).astype(np.int32),
        face_rgb=np.concatenate([part.rgb for part in parts]).astype(np.float32),
        semantic_ids=np.repeat(np.array(ids, np.uint32), counts),
        corner_rgb=corner_rgb,
        face_texture=face_texture,
        corner_uv=corner_uv,
        textures=tuple(textures),
        names=names,
    )
