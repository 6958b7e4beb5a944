"""Where things lie in a LeRobot v3 data set, what its columns are, and our conventions in it.

    <root>/meta/info.json                          written last: without it there is no data set
    <root>/meta/stats.json                         minimum, maximum, mean, deviation, count
    <root>/meta/tasks.parquet                      task_index <-> instruction
    <root>/meta/checksums.json                     xxh3-128 and size of every other file
    <root>/meta/episodes/chunk-000/file-000.parquet   one row an episode: offsets, and `nav/*`
    <root>/data/chunk-000/file-000.parquet         one row a step: images, state, action, indices
    <root>/videos/<key>/chunk-000/file-000.mp4     only with storage "video": RGB cameras
    <root>/parts/                                  only while recording: batches of episodes

`info.json` has the keys of LeRobot v3.0 and one more, `vla_nav`, with everything a number in the
data needs to be understood: turn angle, step, cameras, frame, decision rule, expert.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from vla_nav.episodes.episode_rows import embodiment_from_json
from vla_nav.episodes.frames import MAX_DEPTH_M
from vla_nav.episodes.types import PRIMITIVE_NAMES, Camera, Embodiment
from vla_nav.errors import UserError, unknown_name

CODEBASE_VERSION = "v3.0"
FORMAT_VERSION = 1  # of the `vla_nav` key and the `nav/*` columns
CHUNK_FILES = 1000  # files in one chunk folder
DATA_FILE_BYTES = 100 * 2**20
VIDEO_FILE_BYTES = 200 * 2**20
DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
EPISODES_PATH = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
INFO, STATS, TASKS = "meta/info.json", "meta/stats.json", "meta/tasks.parquet"
CHECKSUMS = "meta/checksums.json"
PARTS, CONVENTIONS = "parts", "parts/conventions.json"
STORAGES = ("png", "video")

IMAGE_TYPE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
STATE_NAMES = ["x", "y", "z", "qx", "qy", "qz", "qw"]
ACTION_NAMES = ["forward_m", "left_m", "yaw_rad", "stop"]
NUMBER_COLUMNS: dict[str, pa.DataType] = {
    "observation.state": pa.list_(pa.float64(), 7),
    "action": pa.list_(pa.float32(), 4),
    "executed_primitive": pa.int64(),
    "expert_primitive": pa.int64(),
    "next.done": pa.bool_(),
    "timestamp": pa.float32(),
    "frame_index": pa.int64(),
    "episode_index": pa.int64(),
    "index": pa.int64(),
    "task_index": pa.int64(),
}
_FRAME = (
    "+Y up, -Z forward, right handed, metres; positions are floor points; rotations are unit "
    "quaternions xyzw; yaw counter-clockwise about +Y, 0 looks along -Z; relative poses are "
    "(forward, left, yaw) in the agent's frame"
)
_DEPTH = (
    f"planar z; 16-bit PNG in millimetres, rounded, clipped at {MAX_DEPTH_M} m, 0 = nothing hit"
)


@dataclass(frozen=True, slots=True)
class Conventions:
    """What a recorded data set states once about all of its episodes (`info.json`, key `vla_nav`).

    embodiment: body, motion and cameras; an episode's own may differ in camera height and pitch.
    decision: the rule by which primitives were grouped into steps, as plain JSON.
    recording: anything else that tells how it was recorded (expert, perturbation, horizon, seed).
    """

    dataset: str
    split: str
    embodiment: Embodiment
    decision: Any
    fps: int = 1
    storage: str = "png"
    recording: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, with the parts of the embodiment that people look for on top."""
        body = asdict(self.embodiment)
        return json.loads(
            json.dumps(
                {
                    "version": FORMAT_VERSION,
                    "dataset": self.dataset,
                    "split": self.split,
                    "turn_deg": body["turn_deg"],
                    "step_m": body["step_m"],
                    "cameras": body["cameras"],
                    "decision": self.decision,
                    "frame": _FRAME,
                    "depth": _DEPTH,
                    "primitives": list(PRIMITIVE_NAMES),
                    "embodiment": body,
                    "fps": self.fps,
                    "storage": self.storage,
                    "recording": dict(self.recording),
                },
                allow_nan=False,
            )
        )

    @staticmethod
    def from_json(value: Any, source: Path) -> Conventions:
        """The conventions that `to_json` wrote; `UserError` naming `source` where they are not."""
        try:
            if value["version"] != FORMAT_VERSION:
                raise UserError(
                    f"{source}: vla_nav.version is {value['version']}; this program reads "
                    f"{FORMAT_VERSION}; record the data set again"
                )
            return Conventions(
                dataset=value["dataset"],
                split=value["split"],
                embodiment=embodiment_from_json(value["embodiment"]),
                decision=value["decision"],
                fps=value["fps"],
                storage=value["storage"],
                recording=value["recording"],
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{source}: key vla_nav is incomplete ({error!r})") from None


def check_storage(storage: str) -> None:
    """Raise `UserError` unless `storage` is a known one."""
    if storage not in STORAGES:
        raise unknown_name("storage", storage, STORAGES)


def image_key(frame_name: str) -> str:
    """LeRobot's feature name of a frame: `front` -> `observation.images.front`."""
    return f"observation.images.{frame_name}"


def frame_names(embodiment: Embodiment) -> dict[str, Camera]:
    """Every frame that a step may have (`front`, `front.depth`, ...) and its camera."""
    names: dict[str, Camera] = {}
    for camera in embodiment.cameras:
        names[camera.name] = camera
        if camera.has_depth:
            names[f"{camera.name}.depth"] = camera
    return names


def video_names(conventions: Conventions) -> list[str]:
    """The frames kept as video: RGB cameras under storage `video`. Depth stays PNG."""
    cameras = conventions.embodiment.cameras
    return [camera.name for camera in cameras] if conventions.storage == "video" else []


def image_names(conventions: Conventions) -> list[str]:
    """The frames kept as PNG in the data parquet."""
    videos = video_names(conventions)
    return [name for name in frame_names(conventions.embodiment) if name not in videos]


def data_schema(conventions: Conventions) -> pa.Schema:
    """The schema of the data parquet files."""
    images = [(image_key(name), IMAGE_TYPE) for name in image_names(conventions)]
    schema = pa.schema([*images, *NUMBER_COLUMNS.items()])
    columns = {
        name: {"_type": "Image"}
        if kind == IMAGE_TYPE
        else {"feature": {"dtype": _dtype(kind), "_type": "Value"}, "length": kind.list_size}
        | {"_type": "Sequence"}
        if pa.types.is_fixed_size_list(kind)
        else {"dtype": _dtype(kind), "_type": "Value"}
        for name, kind in zip(schema.names, schema.types, strict=True)
    }
    return schema.with_metadata({"huggingface": json.dumps({"info": {"features": columns}})})


def features(conventions: Conventions) -> dict[str, Any]:
    """The `features` of `info.json`: every column of the data parquet, and the videos."""
    result: dict[str, Any] = {}
    videos = video_names(conventions)
    for name, camera in frame_names(conventions.embodiment).items():
        is_depth = name.endswith(".depth")
        result[image_key(name)] = {
            "dtype": "video" if name in videos else "image",
            "shape": [camera.height_px, camera.width_px, 1 if is_depth else 3],
            "names": ["height", "width", "channels"],
            "info": {"is_depth_map": is_depth} | ({"depth_unit": "mm"} if is_depth else {}),
        }
    names = {"observation.state": STATE_NAMES, "action": ACTION_NAMES}
    for name, kind in NUMBER_COLUMNS.items():
        shape = [kind.list_size] if pa.types.is_fixed_size_list(kind) else [1]
        result[name] = {"dtype": _dtype(kind), "shape": shape, "names": names.get(name)}
    return result


def chunk_and_file(number: int) -> tuple[int, int]:
    """(chunk_index, file_index) of the `number`-th file of a kind."""
    return divmod(number, CHUNK_FILES)


def _dtype(kind: pa.DataType) -> str:
    value = kind.value_type if pa.types.is_fixed_size_list(kind) else kind
    return {pa.float64(): "float64", pa.float32(): "float32", pa.int64(): "int64"}.get(
        value, "bool"
    )
