"""An episode as one row of plain columns, and back, exactly.

The nested parts of an `Episode` are flattened into a few number columns per episode. Every distinct
pose is stored once (an expert's plans overlap from step to step) and named by its number:

    nav/poses         [x y z qx qy qz qw] * U            distinct poses, in order of first use
    nav/step_pose     [0, 3, 5, ...]                     S numbers of poses
    nav/step_executed [2, 5, 1]  nav/executed [3 3 1 1 1 1 1 0]     lengths, then the values
    nav/step_labels   [1, 1, 0]  nav/label_length [12, 9]           labels a step, lengths
    nav/label_primitives, nav/label_pose                 values of all labels, one after another

U distinct poses, S steps. All floats are float64 and come back bit for bit.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from vla_nav.episodes.types import (
    Camera,
    Embodiment,
    Episode,
    ExpertLabel,
    Goal,
    PixelTarget,
    Pose,
    Step,
)
from vla_nav.errors import UserError

KEY_COLUMNS = ("nav/dataset", "nav/split", "nav/role", "nav/episode_id")
FRAME_COLUMNS = ("nav/step_frames", "nav/frame_camera", "nav/frame_key")

_DOUBLES, _INT32S, _INT8S = (pa.list_(kind) for kind in (pa.float64(), pa.int32(), pa.int8()))
EPISODE_FIELDS: dict[str, pa.DataType] = {
    "nav/dataset": pa.string(),
    "nav/split": pa.string(),
    "nav/role": pa.string(),
    "nav/episode_id": pa.string(),
    "nav/scene_id": pa.string(),
    "nav/instruction": pa.string(),
    "nav/start_pose": _DOUBLES,  # x y z qx qy qz qw
    "nav/goals": _DOUBLES,  # x y z radius, for every goal
    "nav/reference_path": _DOUBLES,  # x y z, for every point
    "nav/embodiment": pa.string(),  # JSON, null where there is none
    "nav/metadata": pa.string(),  # JSON
    "nav/poses": _DOUBLES,
    "nav/step_pose": _INT32S,
    "nav/step_executed": _INT32S,
    "nav/executed": _INT8S,
    "nav/step_labels": _INT32S,
    "nav/label_length": _INT32S,
    "nav/label_primitives": _INT8S,
    "nav/label_pose": _INT32S,
    "nav/label_camera": pa.list_(pa.string()),  # null where the label has no pixel target
    "nav/label_pixel": _DOUBLES,  # u v yaw, for every label that has one
    "nav/step_frames": _INT32S,
    "nav/frame_camera": pa.list_(pa.string()),
    "nav/frame_key": pa.list_(pa.binary(16)),
    "nav/digest": pa.string(),  # xxh3-128 of all the above
}
_POSE_BITS = struct.Struct("<7d")
_DTYPES = {_DOUBLES: np.float64, _INT32S: np.int32, _INT8S: np.int8}


def episode_name(episode: Episode) -> str:
    """How errors name an episode: `episode train/guide/17` (empty parts left out)."""
    return "episode " + "/".join(part for part in episode.key if part)


def to_row(episode: Episode) -> dict[str, Any]:
    """The columns of `EPISODE_FIELDS` for one episode. Raises `UserError` for what has no place."""
    name = episode_name(episode)
    poses = _PoseTable()
    steps = episode.steps
    labels = [label for step in steps for label in step.labels]
    for label in labels:
        if len(label.primitives) != len(label.poses):
            raise UserError(
                f"{name}: an expert label has {len(label.primitives)} primitives and "
                f"{len(label.poses)} poses; each primitive needs the pose after it"
            )
    step_pose = [poses.number(step.pose) for step in steps]
    label_pose = [poses.number(pose) for label in labels for pose in label.poses]
    frames = [sorted(step.frames.items()) for step in steps]
    pixels = [label.pixel for label in labels]
    row: dict[str, Any] = {
        "nav/dataset": episode.dataset,
        "nav/split": episode.split,
        "nav/role": episode.role,
        "nav/episode_id": episode.episode_id,
        "nav/scene_id": episode.scene_id,
        "nav/instruction": episode.instruction,
        "nav/start_pose": [*episode.start_pose.position, *episode.start_pose.rotation],
        "nav/goals": _flat((*goal.position, goal.radius_m) for goal in episode.goals),
        "nav/reference_path": np.asarray(episode.reference_path, np.float64).reshape(-1),
        "nav/embodiment": embodiment_to_json(episode.embodiment),
        "nav/metadata": _metadata_to_json(episode.metadata, name),
        "nav/poses": poses.values,
        "nav/step_pose": step_pose,
        "nav/step_executed": [len(step.executed) for step in steps],
        "nav/executed": _flat(step.executed for step in steps),
        "nav/step_labels": [len(step.labels) for step in steps],
        "nav/label_length": [len(label.primitives) for label in labels],
        "nav/label_primitives": _flat(label.primitives for label in labels),
        "nav/label_pose": label_pose,
        "nav/label_camera": [None if pixel is None else pixel.camera for pixel in pixels],
        "nav/label_pixel": _flat((p.u, p.v, p.yaw_rad) for p in pixels if p is not None),
        "nav/step_frames": [len(pairs) for pairs in frames],
        "nav/frame_camera": [camera for pairs in frames for camera, _ in pairs],
        "nav/frame_key": [_key_bytes(key, name) for pairs in frames for _, key in pairs],
    }
    for column, kind in EPISODE_FIELDS.items():
        if kind in _DTYPES:
            row[column] = np.asarray(row[column], _DTYPES[kind])
        if kind == _DOUBLES and not np.isfinite(row[column]).all():
            raise UserError(f"{name}: {column[4:]} holds a non-finite number; allowed: finite ones")
    row["nav/digest"] = _digest(row)
    return row


class EpisodeColumns:
    """Episode rows of one arrow table, turned back into `Episode`s one at a time."""

    def __init__(self, table: pa.Table) -> None:
        """table: has every column of `EPISODE_FIELDS`."""
        self._text: dict[str, list[str | None]] = {}
        self._values: dict[str, Any] = {}
        self._offsets: dict[str, np.ndarray] = {}
        for column, kind in EPISODE_FIELDS.items():
            array = table.column(column).combine_chunks()
            if pa.types.is_list(kind):
                self._offsets[column] = array.offsets.to_numpy()
                values = array.values
                is_number = kind in _DTYPES
                self._values[column] = values.to_numpy() if is_number else values
            else:
                self._text[column] = array.to_pylist()
        self._embodiments: dict[str | None, Embodiment | None] = {None: None}

    def episode(self, row: int) -> Episode:
        """The episode of row `row`."""
        text = {column: values[row] for column, values in self._text.items()}
        poses = [
            Pose((x, y, z), (qx, qy, qz, qw))
            for x, y, z, qx, qy, qz, qw in _groups(self._list("nav/poses", row), 7)
        ]
        start = self._list("nav/start_pose", row)
        embodiment = text["nav/embodiment"]
        if embodiment not in self._embodiments:
            self._embodiments[embodiment] = embodiment_from_json(json.loads(embodiment or ""))
        return Episode(
            dataset=text["nav/dataset"] or "",
            split=text["nav/split"] or "",
            role=text["nav/role"] or "",
            episode_id=text["nav/episode_id"] or "",
            scene_id=text["nav/scene_id"] or "",
            instruction=text["nav/instruction"] or "",
            start_pose=Pose(tuple(start[:3]), tuple(start[3:])),
            goals=tuple(
                Goal((x, y, z), radius)
                for x, y, z, radius in _groups(self._list("nav/goals", row), 4)
            ),
            reference_path=np.array(self._slice("nav/reference_path", row)).reshape(-1, 3),
            embodiment=self._embodiments[embodiment],
            steps=self._steps(row, poses),
            metadata=json.loads(text["nav/metadata"] or "{}"),
        )

    def _steps(self, row: int, poses: list[Pose]) -> tuple[Step, ...]:
        labels = self._labels(row, poses)
        cameras = self._list("nav/frame_camera", row)
        keys = [key.hex() for key in self._list("nav/frame_key", row)]
        frames = list(zip(cameras, keys, strict=True))
        executed = self._list("nav/executed", row)
        steps = zip(
            self._list("nav/step_pose", row),
            _ranges(self._list("nav/step_frames", row)),
            _ranges(self._list("nav/step_executed", row)),
            _ranges(self._list("nav/step_labels", row)),
            strict=True,
        )
        return tuple(
            Step(poses[pose], dict(frames[f:f_end]), tuple(executed[e:e_end]), tuple(labels[a:b]))
            for pose, (f, f_end), (e, e_end), (a, b) in steps
        )

    def _labels(self, row: int, poses: list[Pose]) -> list[ExpertLabel]:
        primitives = self._list("nav/label_primitives", row)
        label_poses = [poses[number] for number in self._list("nav/label_pose", row)]
        pixels = _groups(self._list("nav/label_pixel", row), 3)
        targets = (
            None if camera is None else PixelTarget(camera, *next(pixels))
            for camera in self._list("nav/label_camera", row)
        )
        spans = _ranges(self._list("nav/label_length", row))
        return [
            ExpertLabel(tuple(primitives[a:b]), tuple(label_poses[a:b]), pixel)
            for (a, b), pixel in zip(spans, targets, strict=True)
        ]

    def _slice(self, column: str, row: int) -> Any:
        offsets = self._offsets[column]
        return self._values[column][offsets[row] : offsets[row + 1]]

    def _list(self, column: str, row: int) -> list[Any]:
        values = self._slice(column, row)
        return values.tolist() if isinstance(values, np.ndarray) else values.to_pylist()


def embodiment_to_json(embodiment: Embodiment | None) -> str | None:
    """JSON text of an embodiment, keys in the order of its fields."""
    return None if embodiment is None else json.dumps(asdict(embodiment), allow_nan=False)


def embodiment_from_json(value: Mapping[str, Any]) -> Embodiment:
    """The embodiment of decoded JSON; `KeyError` or `TypeError` where a field is amiss."""
    fields = dict(value)
    fields["cameras"] = tuple(Camera(**camera) for camera in fields["cameras"])
    return Embodiment(**fields)


class _PoseTable:
    """Distinct poses (compared bit by bit) in order of first use."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._known: dict[int, int] = {}
        self.values: list[float] = []

    def number(self, pose: Pose) -> int:
        known = self._known.get(id(pose))
        if known is not None:
            return known
        flat = (*pose.position, *pose.rotation)
        bits = _POSE_BITS.pack(*flat)
        number = self._numbers.setdefault(bits, len(self._numbers))
        if number * 7 == len(self.values):
            self.values.extend(flat)
        self._known[id(pose)] = number  # the episode keeps its poses alive meanwhile
        return number


def _metadata_to_json(metadata: Mapping[str, Any], name: str) -> str:
    try:
        text = json.dumps(dict(metadata), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UserError(f"{name}: metadata is not plain JSON ({error})") from None
    if json.loads(text) != metadata:
        raise UserError(
            f"{name}: metadata changes when written as JSON; use string keys, lists (not tuples), "
            "numbers, strings, booleans and None only"
        )
    return text


def _key_bytes(key: str, name: str) -> bytes:
    try:
        data = bytes.fromhex(key)
    except ValueError:
        data = b""
    if len(data) != 16 or data.hex() != key:
        raise UserError(f"{name}: frame key '{key}' is not one that frames.frame_key makes")
    return data


def _digest(row: Mapping[str, Any]) -> str:
    digest = xxhash.xxh3_128()
    for column, value in row.items():
        body = value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode()
        digest.update(f"{column}:{len(body)}:".encode())
        digest.update(body)
    return digest.hexdigest()


def _flat(parts: Iterable[Iterable[Any]]) -> list[Any]:
    return list(chain.from_iterable(parts))


def _groups(values: list[float], size: int) -> Iterable[Any]:
    assert len(values) % size == 0, "a flat column must hold whole groups"
    return zip(*[iter(values)] * size, strict=True)


def _ranges(lengths: list[int]) -> Iterable[tuple[int, int]]:
    return pairwise(accumulate(lengths, initial=0))
