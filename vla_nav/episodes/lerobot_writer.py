"""Recording into a LeRobot v3 data set with many processes, none of which can spoil it.

    process 1:  add add add ... -> parts/part-4f1c....arrow     a part = some whole episodes,
    process 2:  add add ...     -> parts/part-a90b....arrow     written at once, or not at all
                                        |
    finalise(root, order)  ->  data/ videos/ meta/ ... meta/info.json last, then parts/ goes

A process killed at any moment loses its unwritten part and nothing else; `completed_episodes` tells
which episodes need not be recorded again. The final files depend on the episodes and their order
only, not on who wrote which part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from vla_nav.episodes.episode_rows import EPISODE_FIELDS, KEY_COLUMNS, episode_name, to_row
from vla_nav.episodes.frames import encode_png, frame_key
from vla_nav.episodes.lerobot_finalise import disk_space_errors, finalise, open_part
from vla_nav.episodes.lerobot_layout import (
    CONVENTIONS,
    IMAGE_TYPE,
    INFO,
    PARTS,
    Conventions,
    check_storage,
    frame_names,
    image_key,
    image_names,
    video_names,
)
from vla_nav.episodes.lerobot_reader import LeRobotDataset
from vla_nav.episodes.step_columns import STEP_COLUMNS, image_sums, step_columns
from vla_nav.episodes.types import Camera, Embodiment, Episode
from vla_nav.episodes.video import encode_clip
from vla_nav.errors import UserError
from vla_nav.files import atomic_path, read_json, require_free_space, write_json

EpisodeKey = tuple[str, str, str, str]

_PART_BYTES = 32 * 2**20  # a part is written when it holds this much, or enough episodes
_PNG_SHARE = 0.6  # of the raw size: what rendered RGB and depth take as PNG, rounded up
_STEP_BYTES = 600  # state, labels and indices of one step on disk, rounded up


class LeRobotWriter:
    """Writes the episodes of one process. Use one writer per process, on the same root."""

    def __init__(
        self,
        root: str | Path,
        *,
        dataset: str,
        split: str,
        embodiment: Embodiment,
        decision: Any,
        fps: int = 1,
        storage: str = "png",
        recording: Mapping[str, Any] | None = None,
        episodes_per_part: int = 32,
    ) -> None:
        """root: folder of the data set; it is made, or continued if recording was interrupted.

        decision, recording: plain JSON, see `Conventions`. storage: "png" or "video".
        Raises `UserError` where the folder holds a finished set or one of other conventions.
        """
        check_storage(storage)
        self.root = Path(root)
        self.conventions = Conventions(
            dataset, split, embodiment, decision, fps, storage, dict(recording or {})
        )
        self._frames = frame_names(embodiment)
        self._images = image_names(self.conventions)
        self._videos = video_names(self.conventions)
        self._schema = part_schema(self.conventions)
        self._episodes_per_part = episodes_per_part
        self._rows: list[dict[str, Any]] = []
        self._num_bytes = 0
        self._claim_root()

    def add(self, episode: Episode, frames: Mapping[str, np.ndarray]) -> None:
        """Take one whole episode; it is on disk after its part is full or after `flush`.

        frames: frame key -> RGB (H, W, 3) uint8 or depth (H, W) float32 metres, every frame that
        the steps name. A key must be `frame_key` of its frame.
        """
        self._check(episode)
        encoded = self._encode(episode, frames)
        row = to_row(episode) | step_columns(episode)
        for name in self._images:
            row[image_key(name)] = [
                {"bytes": encoded[step.frames[name]], "path": None} if name in step.frames else None
                for step in episode.steps
            ]
        row["clips"] = [self._clip(episode, frames, name) for name in self._videos]
        firsts = [
            episode.steps[0].frames.get(name) if episode.steps else None for name in self._frames
        ]
        row["image_sums"] = np.concatenate(
            [
                image_sums(None if key is None else frames[key], name)
                for key, name in zip(firsts, self._frames, strict=True)
            ]
            or [np.zeros(0, np.int64)]
        )
        self._rows.append(row)
        self._num_bytes += sum(map(len, encoded.values())) + sum(map(len, row["clips"]))
        if len(self._rows) >= self._episodes_per_part or self._num_bytes >= _PART_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what was added as one part, whole or not at all."""
        if not self._rows:
            return
        columns = [
            pa.array([row[field.name] for row in self._rows], field.type) for field in self._schema
        ]
        table = pa.Table.from_arrays(columns, schema=self._schema)
        names = "\n".join(row["nav/digest"] for row in self._rows).encode()
        target = self.root / PARTS / f"part-{xxhash.xxh3_128_hexdigest(names)}.arrow"
        with disk_space_errors(target), atomic_path(target) as temporary:
            _write_arrow(table, temporary)
        self._rows, self._num_bytes = [], 0

    def finalise(self, order: Sequence[EpisodeKey] | None = None) -> None:
        """`flush`, then `finalise` the data set: call it in one process, after all others."""
        self.flush()
        finalise(self.root, order)

    def __enter__(self) -> LeRobotWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.flush()

    def _claim_root(self) -> None:
        if (self.root / INFO).exists():
            raise UserError(
                f"{self.root}: holds a finished data set; choose another folder, or delete it to "
                "record again"
            )
        own, path = self.conventions.to_json(), self.root / CONVENTIONS
        is_begun = any((self.root / PARTS).glob("part-*.arrow"))
        if not path.exists() or (not is_begun and read_json(path) != own):
            with disk_space_errors(path):
                write_json(path, own)
        there = read_json(path)
        for key in own:
            if there.get(key) != own[key]:
                raise UserError(
                    f"{path}: recording was begun with {key}={there.get(key)}, now it is "
                    f"{own[key]}; record with the first value, or delete {self.root}"
                )

    def _check(self, episode: Episode) -> None:
        name, own = episode_name(episode), self.conventions
        for key, value, expected in (
            ("dataset", episode.dataset, own.dataset),
            ("split", episode.split, own.split),
        ):
            if value != expected:
                raise UserError(f"{name}: {key} is '{value}'; this data set's is '{expected}'")
        body = episode.embodiment
        if body is not None and _fixed(body) != _fixed(own.embodiment):
            raise UserError(
                f"{name}: embodiment {_fixed(body)} differs from the data set's "
                f"{_fixed(own.embodiment)}; only camera height and pitch may vary"
            )

    def _encode(self, episode: Episode, frames: Mapping[str, np.ndarray]) -> dict[str, bytes]:
        name = episode_name(episode)
        encoded: dict[str, bytes] = {}
        seen: set[str] = set()
        for number, step in enumerate(episode.steps):
            for frame_name, key in step.frames.items():
                where = f"{name}: step {number}, frame '{frame_name}'"
                camera = self._frames.get(frame_name)
                if camera is None:
                    raise UserError(f"{where}: no such camera; allowed: {', '.join(self._frames)}")
                if key not in frames:
                    raise UserError(f"{where}: its key {key} is not among the frames given")
                if key not in seen:
                    _check_frame(frames[key], key, camera, where)
                    seen.add(key)
                if frame_name in self._images and key not in encoded:
                    encoded[key] = encode_png(frames[key])
        return encoded

    def _clip(self, episode: Episode, frames: Mapping[str, np.ndarray], name: str) -> bytes:
        if not episode.steps:
            return b""
        for number, step in enumerate(episode.steps):
            if name not in step.frames:
                raise UserError(
                    f"{episode_name(episode)}: step {number} has no frame '{name}'; with "
                    "storage=video every step needs one of every camera"
                )
        clip = [frames[step.frames[name]] for step in episode.steps]
        return encode_clip(clip, fps=self.conventions.fps)


def _write_arrow(table: pa.Table, path: Path) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as out:
        out.write_table(table.combine_chunks())


def part_schema(conventions: Conventions) -> pa.Schema:
    """Columns of a part file: one row an episode, step columns as lists."""
    images = [(image_key(name), pa.list_(IMAGE_TYPE)) for name in image_names(conventions)]
    steps = [(name, pa.list_(kind)) for name, kind in STEP_COLUMNS.items()]
    extra = [("clips", pa.list_(pa.binary())), ("image_sums", pa.list_(pa.int64()))]
    return pa.schema([*EPISODE_FIELDS.items(), *images, *steps, *extra])


def completed_episodes(root: str | Path) -> set[EpisodeKey]:
    """(dataset, split, role, episode_id) of every episode that is already on disk under `root`.

    Raises `UserError` where a part or the finished data set is damaged.
    """
    root = Path(root)
    if (root / INFO).exists():
        return set(LeRobotDataset(root).keys())
    return {
        key
        for table in map(open_part, sorted((root / PARTS).glob("part-*.arrow")))
        for key in zip(*(table[name].to_pylist() for name in KEY_COLUMNS), strict=True)
    }


def estimate_bytes(embodiment: Embodiment, *, num_steps: int) -> int:
    """Bytes that recording `num_steps` steps takes on disk at most: parts and final files."""
    pixels = sum(
        camera.width_px * camera.height_px * (3 + 2 * camera.has_depth)
        for camera in embodiment.cameras
    )
    return 2 * int(num_steps * (pixels * _PNG_SHARE + _STEP_BYTES))


def require_space_to_record(root: str | Path, embodiment: Embodiment, *, num_steps: int) -> None:
    """Raise `UserError` unless the disk of `root` has room for that many steps."""
    needed = estimate_bytes(embodiment, num_steps=num_steps)
    require_free_space(root, needed, what=f"recording {num_steps} steps")


def _check_frame(frame: np.ndarray, key: str, camera: Camera, where: str) -> None:
    if frame.shape[:2] != (camera.height_px, camera.width_px):
        raise UserError(
            f"{where}: got {frame.shape[1]}x{frame.shape[0]} pixels; "
            f"the camera has {camera.width_px}x{camera.height_px}"
        )
    if frame_key(frame) != key:
        raise UserError(f"{where}: its key {key} is not frame_key of its pixels")


def _fixed(body: Embodiment) -> dict[str, Any]:
    """What may not vary within a data set."""
    cameras = [
        (camera.name, camera.width_px, camera.height_px, camera.has_depth)
        for camera in body.cameras
    ]
    return {"turn_deg": body.turn_deg, "step_m": body.step_m, "cameras": cameras}
