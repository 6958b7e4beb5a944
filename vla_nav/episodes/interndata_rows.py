"""One episode of InternData-N1 from its parquet file and the pictures of its cameras.

    row                      0       1     ...  N - 1
    pose.125cm_30deg         T0      T1         T(N-1)        the body from the levellest camera;
    pose.60cm_15deg          T0'     T1'                      the others must agree with it
    ..._000000_0.jpg         frame 0, frame 1, ..., frame N - 1: the last is there, no further one

See `interndata_n1.py` for the layout and its sources.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from vla_nav.episodes.camera_axes import body_poses, check_same_body
from vla_nav.episodes.lerobot_meta_files import ForeignInfo, fill, whole
from vla_nav.episodes.lerobot_rows import kept_columns
from vla_nav.episodes.lerobot_steps import executed_primitives, steps_of
from vla_nav.episodes.lerobot_v2 import EPISODES
from vla_nav.episodes.parquet_columns import ParquetColumns, one_line
from vla_nav.episodes.types import Episode, Pose
from vla_nav.errors import UserError

SEPARATOR = "<INSTRUCTION_SEP>"
INTRINSIC, EXTRINSIC = "observation.camera_intrinsic", "observation.camera_extrinsic"
_SETTING = re.compile(r"(\d{1,4})cm_(\d{1,2})deg")
_FOLDER = re.compile(r"observation\.images\.(rgb|depth)(?:\.(.+))?")
_SUFFIXES = ("jpg", "png", "jpeg")
_TEXTS = ("sum_instruction", "revised_sub_instruction", "sub_instruction")


class _Placed(NamedTuple):
    """Poses of the body, the primitives that moved it, and what else there is to say."""

    poses: list[Pose]
    executed: list[int] | None
    about: dict[str, Any]


class InternRows:
    """Turns lines of `episodes.jsonl` of one scene into episodes."""

    def __init__(self, info: ForeignInfo, root: Path) -> None:
        """root: of all scenes; frame keys are relative to it."""
        self.info, self._root = info, root
        self._chunk, self._cameras = -1, {}

    def episodes(
        self, line: Mapping[str, Any], name: str, *, split: str, role: str
    ) -> Iterator[Episode]:
        """One episode for each instruction of the path: `name`, `name_1`, ..."""
        info, index = self.info, line["episode_index"]
        chunk = index // info.chunks_size
        path = fill(info.data_path, info.path, episode_chunk=chunk, episode_index=index)
        file = ParquetColumns(info.root / path)
        where = f"{file.path}: episode {index}"
        if not file.num_rows:
            raise UserError(f"{where}: has no rows; copy the file again")
        stated = whole(line.get("length", file.num_rows), f"{info.root / EPISODES}: length")
        if stated not in (file.num_rows, 2 * file.num_rows):
            raise UserError(
                f"{where}: has {file.num_rows} rows, length in {EPISODES} is {stated}; expected as "
                "many, or twice as many: the file is cut short"
            )
        rows = file.read_all(file.names)
        poses, executed, about = self._placed(file, rows, where)
        cameras = self._frames_of(chunk, index, rows.num_rows, where)
        num_steps = rows.num_rows if executed is None else len(executed)
        frames = [
            {camera: template.format(at) for camera, template in cameras.items()}
            for at in range(num_steps)
        ]
        steps = steps_of(poses, frames, executed)
        path_points = np.array([pose.position for pose in poses], np.float64)
        metadata = {
            **{key: value for key, value in line.items() if key not in ("length", "tasks")},
            **about,
            "tasks": line.get("tasks"),
            "cameras": {camera: _mounted(camera) for camera in cameras},
            **({"stated_length": stated} if stated != rows.num_rows else {}),
        }
        for number, text in enumerate(_instructions(line.get("tasks"), where)):
            yield Episode(
                dataset="interndata_n1",
                split=split,
                role=role,
                episode_id=f"{name}_{number}" if number else name,
                scene_id=info.root.name,
                instruction=text,
                start_pose=poses[0],
                goals=(),
                reference_path=path_points,
                embodiment=None,
                steps=steps,
                metadata=metadata,
            )

    def _placed(self, file: ParquetColumns, rows: pa.Table, where: str) -> _Placed:
        settings = [name for name in file.names if name.startswith("pose.")]
        known = {name for name in file.names if name in ("action", INTRINSIC, EXTRINSIC)}
        about = kept_columns(rows, {*settings, *known})
        if not settings:
            return self._camera_path(file, rows, where, about)
        if "action" not in file.names:
            raise UserError(f"{where}: has no column 'action'")
        mounted = sorted((-_mounted(s)["pitch_deg"], s) for s in settings if _mounted(s))
        if not mounted:
            raise UserError(
                f"{where}: columns {one_line(', '.join(settings), 80)} name no setting such as "
                "125cm_30deg"
            )
        first: list[Pose] = []
        for _, name in mounted:  # the levellest comes first
            camera = _mounted(name)
            found = body_poses(
                file.floats(rows, name, size=16).reshape(-1, 4, 4),
                height_m=camera["height_m"],
                pitch_deg=-camera["pitch_deg"],
                where=f"{where}, column '{one_line(name)}'",
            )
            if first:
                check_same_body(first, found.poses, f"{where}, column '{one_line(name)}'")
            else:
                first, about["axes"] = found.poses, found.axes
        actions = file.integers(rows, "action")
        executed = executed_primitives(actions, f"{where}, column 'action'")
        return _Placed(first, executed, about)

    def _camera_path(
        self, file: ParquetColumns, rows: pa.Table, where: str, about: dict[str, Any]
    ) -> _Placed:
        """vln_n1: actions are the camera's poses, the extrinsics its mounting on the body."""
        cameras = file.floats(rows, "action", size=16).reshape(-1, 4, 4)
        mounts = file.floats(rows, EXTRINSIC, size=16).reshape(-1, 4, 4)
        if np.abs(mounts - mounts[0]).max(initial=0) > 1e-4:
            raise UserError(
                f"{where}: '{EXTRINSIC}' changes from row to row; expected one mounting"
            )
        bodies = cameras.copy()
        bodies[:, :3, :3] = cameras[:, :3, :3] @ mounts[:, :3, :3].transpose(0, 2, 1)
        found = body_poses(
            bodies,
            height_m=float(mounts[0, 2, 3]),
            pitch_deg=0.0,
            where=f"{where}, column 'action'",
            allowed=("blender",),
        )
        about |= {"axes": found.axes, "motion": "continuous", EXTRINSIC: mounts[0].tolist()}
        if INTRINSIC in file.names:
            matrix = file.floats(rows, INTRINSIC, size=9)[0]
            about[INTRINSIC] = matrix.reshape(3, 3).tolist()
        return _Placed(found.poses, None, about)

    def _frames_of(self, chunk: int, index: int, count: int, where: str) -> dict[str, str]:
        """Camera -> frame key with {} for the number of the frame; the ends are looked at."""
        if chunk != self._chunk:
            self._chunk, self._cameras = chunk, self._list_cameras(chunk)
        result = {}
        for camera, folder in self._cameras.items():
            name = _found_name(folder, index)
            if name is None:
                raise UserError(f"{where}: {folder} has no frame 0 of it; copy it again")
            last, next_one = folder / name.format(count - 1), folder / name.format(count)
            if not last.is_file() or next_one.is_file():
                there = "is missing" if not last.is_file() else "is there, and one more"
                raise UserError(
                    f"{where}: has {count} rows, but frame {last.name} {there} in {folder}; "
                    "expected as many frames as rows"
                )
            result[camera] = f"{_escaped(folder.relative_to(self._root).as_posix())}/{name}"
        return result

    def _list_cameras(self, chunk: int) -> dict[str, Path]:
        parent = self.info.root / "videos" / f"chunk-{chunk:03d}"
        cameras = {}
        try:
            with os.scandir(parent) as entries:
                names = sorted(entry.name for entry in entries if entry.is_dir())
        except OSError:
            return {}
        for name in names:
            found = _FOLDER.fullmatch(name)
            if found is not None:
                camera = found[2] or "rgb"
                suffix = ".depth" if found[1] == "depth" else ""
                cameras[camera + suffix] = parent / name
        return cameras


def _found_name(folder: Path, index: int) -> str | None:
    """The template of an episode's file names in a folder, with {} for the frame's number."""
    for suffix in _SUFFIXES:
        for number in ("{}", "{:03d}"):
            name = f"episode_{index:06d}_{number}.{suffix}"
            if (folder / name.format(0)).is_file():
                return name
    return None


def _mounted(name: str) -> dict[str, float]:
    """Height and pitch (positive upward) that a camera's or a column's name states; {} if none."""
    found = _SETTING.search(name)
    if found is None:
        return {}
    return {"height_m": int(found[1]) / 100, "pitch_deg": 0.0 - int(found[2])}


def _instructions(tasks: Any, where: str) -> list[str]:
    """The texts of the path: several set apart in one, or the summary of vln_n1's parts."""
    first = tasks[0] if isinstance(tasks, list) and tasks else None
    if isinstance(first, str):
        return [text.strip() for text in first.split(SEPARATOR) if text.strip()] or [""]
    for key in _TEXTS:
        for task in tasks if isinstance(tasks, list) else ():
            if isinstance(task, dict) and isinstance(task.get(key), str):
                return [task[key]]
    raise UserError(f"{where}: tasks is {str(tasks)[:60]}; expected texts, or tables of them")


def _escaped(path: str) -> str:
    return path.replace("{", "{{").replace("}", "}}")
