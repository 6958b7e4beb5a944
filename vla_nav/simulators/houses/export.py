"""A house on disk: one GLB with a node per element, and its metadata as JSON beside it.

<folder>/<house>.glb     nodes named as in the metadata; flat quads, one colour a vertex
<folder>/<house>.json    rooms, doors, objects, floors, "semantic": {node name: id}
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import trimesh

from vla_nav.files import atomic_path, write_json
from vla_nav.simulators.houses.house import House
from vla_nav.simulators.houses.plan import CEILING_M, STOREY_M, Rect
from vla_nav.simulators.houses.shapes import quads_of_parts, refine

FORMAT_VERSION = 1


def house_meshes(house: House) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Per node: vertices (V, 3) float64 metres, faces (F, 3) int64, vertex colours (V, 4) uint8."""
    parts = [part for node in house.nodes for part in node.parts]
    corners, colours, counts = quads_of_parts(parts)
    ends = np.cumsum(counts)
    meshes = {}
    first_part = first_quad = 0
    for node in house.nodes:
        first_part += len(node.parts)
        last_quad = int(ends[first_part - 1])
        quads, shades = refine(
            corners[first_quad:last_quad], colours[first_quad:last_quad], house.options.detail
        )
        first_quad = last_quad
        starts = 4 * np.arange(len(quads))[:, None]
        faces = (starts + np.array([0, 1, 2, 0, 2, 3])).reshape(-1, 3)
        rgba = np.full((4 * len(quads), 4), 255, dtype=np.uint8)
        rgba[:, :3] = np.repeat(shades, 4, axis=0)
        meshes[node.name] = (quads.reshape(-1, 3), faces, rgba)
    return meshes


def export_house(house: House, folder: str | Path) -> Path:
    """Write `<folder>/<house>.glb` and its metadata, both atomically; return the GLB's path."""
    folder = Path(folder)
    scene = trimesh.Scene()
    for name, (vertices, faces, rgba) in house_meshes(house).items():
        mesh = trimesh.Trimesh(vertices, faces, vertex_colors=rgba, process=False, validate=False)
        scene.add_geometry(mesh, node_name=name, geom_name=name)
    target = folder / f"{house.name}.glb"
    data = trimesh.exchange.gltf.export_glb(scene)
    write_json(target.with_suffix(".json"), house_metadata(house))
    with atomic_path(target) as temporary:
        temporary.write_bytes(data)
    return target


def house_metadata(house: House) -> dict[str, Any]:
    """Everything a reader may want to know about a house, as plain JSON values (metres, world)."""
    plan = house.plan
    return {
        "format_version": FORMAT_VERSION,
        "name": house.name,
        "seed": house.seed,
        "floors": [
            {"index": floor, "y": _rounded(floor * STOREY_M), "ceiling_m": CEILING_M}
            for floor in range(plan.num_floors)
        ],
        "rooms": [
            {
                "name": room.name,
                "kind": room.kind,
                "floor": room.floor,
                "polygon": _polygon(room.rect),
            }
            for room in plan.rooms
        ],
        "doors": [
            {
                "name": door.name,
                "rooms": list(door.rooms),
                "floor": door.floor,
                "position": _rounded(door.centre[0], door.floor * STOREY_M, door.centre[1]),
                "axis": "x" if door.is_along_x else "z",
                "width_m": _rounded(door.width_m),
            }
            for door in plan.doors
        ],
        "objects": [
            {
                "name": item.name,
                "kind": item.kind,
                "colour": item.colour,
                "room": item.room,
                "floor": item.floor,
                "position": _rounded(*item.position),
                "size": _rounded(*item.size),
                "polygon": _polygon(item.rect),
            }
            for item in house.objects
        ],
        "semantic": {node.name: node.semantic_id for node in house.nodes},
    }


def _polygon(rect: Rect) -> list[list[float]]:
    """Corners (x, z), in order around."""
    corners = ((rect.x0, rect.z0), (rect.x1, rect.z0), (rect.x1, rect.z1), (rect.x0, rect.z1))
    return [_rounded(*corner) for corner in corners]


def _rounded(*values: float) -> Any:
    rounded = [round(float(value), 4) for value in values]
    return rounded if len(rounded) > 1 else rounded[0]
