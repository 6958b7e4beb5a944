"""The scene, the body and the end of a pipe of the worker tests."""

import io
from pathlib import Path

import trimesh

from vla_nav.episodes.types import Camera, Embodiment, Pose

BODY = Embodiment((Camera("front", 17, 13, 90.0, 1.0, -5.0, True),), 0.2, 1.5, 30.0, 0.25, True)
START = Pose.from_yaw((-2.0, 0.0, 1.0), 0.3)


def write_rooms(folder: Path) -> str:
    """Two rooms of 4 x 5 m with a wall between them and a door in it; the file."""
    boxes = [
        ((8.4, 0.1, 5.4), (0.0, -0.05, 0.0)),
        ((8.4, 0.1, 5.4), (0.0, 2.65, 0.0)),
        *(((8.4, 2.6, 0.2), (0.0, 1.3, z)) for z in (-2.6, 2.6)),
        *(((0.2, 2.6, 5.4), (x, 1.3, 0.0)) for x in (-4.1, 4.1)),
        ((0.2, 2.6, 3.0), (0.0, 1.3, -1.1)),
        ((0.2, 2.6, 1.0), (0.0, 1.3, 2.1)),
    ]
    parts = []
    for size, centre in boxes:
        box = trimesh.creation.box(size)
        box.apply_translation(centre)
        box.visual.face_colors = [int(40 + 20 * len(parts)), 120, 200, 255]
        parts.append(box)
    path = folder / "rooms.glb"
    trimesh.Scene(parts).export(path)
    return str(path)


def reader_of(stream: io.BytesIO):
    def read(count: int) -> bytes:
        data = stream.read(count)
        if len(data) < count:
            raise EOFError
        return data

    return read
