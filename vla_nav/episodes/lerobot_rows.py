"""One episode of a foreign LeRobot set, v2 or v3, from its rows and its places in the videos.

    rows of the episode         action  pose?  other columns      -> executed, poses, metadata
    camera -> (file, first)     videos/front/file-002.mp4, 40     -> step s shows frame 40 + s
    task texts                                                    -> instruction

Poses that no column holds are dead-reckoned with the stated turn and step, or with 15 degrees and
0.25 m; metadata["poses"] says so. Columns that are neither are kept in `metadata` by their name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from vla_nav.episodes.lerobot_meta_files import ForeignInfo, number
from vla_nav.episodes.lerobot_steps import (
    action_column,
    executed_primitives,
    pose_column,
    poses_from_rows,
    steps_of,
)
from vla_nav.episodes.parquet_columns import ParquetColumns
from vla_nav.episodes.source import EpisodeError, SourceFacts
from vla_nav.episodes.types import Episode
from vla_nav.episodes.walked import ORIGIN, dead_reckon
from vla_nav.errors import UserError
from vla_nav.files import require_regular

DEFAULT_TURN_DEG, DEFAULT_STEP_M = 15.0, 0.25  # for dead reckoning, where the data states none
_INDICES = ("timestamp", "frame_index", "episode_index", "index", "task_index")
_KEPT_VALUES = 1_000_000  # numbers of one column and episode that metadata keeps


class Shown(NamedTuple):
    """Where a camera's frames of one episode are: a video, and the number of the first frame."""

    video: str
    first: int


class EpisodeRows:
    """Turns the rows of an episode into an `Episode`."""

    def __init__(self, info: ForeignInfo, *, dataset: str, split: str, role: str) -> None:
        self.info = info
        self._key = dataset, split, role
        self._action = action_column(info.features)
        self._pose = pose_column(info.features)
        stated = {key: info.raw.get(key) for key in ("turn_deg", "step_m")}
        stated = {
            key: None if value is None else number(value, f"{info.path}: {key}")
            for key, value in stated.items()
        }
        self._turn_deg, self._step_m = stated["turn_deg"], stated["step_m"]

    def facts(self, format: str) -> SourceFacts:
        """What the set says of itself: hardly anything; LeRobot has no turn angle or step."""
        notes = [f"LeRobot {self.info.version}, {self.info.fps:g} frames a second"]
        if self._action is None:
            notes.append("no column of primitives: steps have frames, nothing is taught")
        return SourceFacts(
            format=format,
            turn_deg=self._turn_deg,
            step_m=self._step_m,
            is_pose_measured=self._pose is not None,
            notes=tuple(notes),
        )

    def columns(self, file: ParquetColumns) -> list[str]:
        """The columns of a data file that are read: all but pictures and videos."""
        pictures = {*self.info.cameras("image"), *self.info.cameras("video")}
        wanted = [name for name in file.names if name not in pictures]
        for name in (self._action, self._pose, "frame_index"):
            if name is not None and name not in wanted:
                raise UserError(
                    f"{file.path}: has no column '{name}', which {self.info.path.name} lists; "
                    "copy the data set again"
                )
        return wanted

    def episode(
        self,
        index: int,
        rows: pa.Table,
        file: ParquetColumns,
        *,
        first_row: int,
        tasks: Sequence[Any],
        shown: Mapping[str, Shown],
        metadata: Mapping[str, Any],
    ) -> Episode:
        """Episode `index`. rows: its rows of `file`, which begin at the file's row `first_row`."""
        where = f"{file.path}: episode {index}"
        order = file.integers(rows, "frame_index")
        wrong = np.flatnonzero(order != np.arange(len(order)))
        if len(wrong):
            raise UserError(
                f"{where}: frame_index of row {wrong[0]} is {order[wrong[0]]}; expected "
                f"{wrong[0]}: rows are missing or out of order"
            )
        if not len(order):
            raise UserError(f"{where}: has no rows; remove it from meta/, or copy the file again")
        executed = None
        if self._action is not None:
            actions = file.integers(rows, self._action)
            executed = executed_primitives(actions, f"{where}, column '{self._action}'")
        extra: dict[str, Any] = {}
        num_steps = len(order) if executed is None else len(executed)
        if self._pose is not None:
            values = file.floats(rows, self._pose, size=7)
            poses = poses_from_rows(values, f"{where}, column '{self._pose}'")
        else:
            extra["poses"] = "dead_reckoned" if executed is not None else "unknown"
            poses = dead_reckon(
                ORIGIN,
                executed if executed is not None else [0] * (num_steps - 1),
                turn_deg=self._turn_deg or DEFAULT_TURN_DEG,
                step_m=self._step_m or DEFAULT_STEP_M,
            )
        base = f"{file.path.relative_to(self.info.root).as_posix()}#"
        images = [key for key in self.info.cameras("image") if key in file.names]
        frames = [
            {camera_name(key): f"{place.video}#{place.first + at}" for key, place in shown.items()}
            | {camera_name(key): f"{base}{first_row + at}/{key}" for key in images}
            for at in range(num_steps)
        ]
        steps = steps_of(poses, frames, executed)
        path = np.array([step.pose.position for step in steps], np.float64)
        dataset, split, role = self._key
        return Episode(
            dataset=dataset,
            split=split,
            role=role,
            episode_id=str(index),
            scene_id=str(metadata.get("scene_id", "")),
            instruction=_instruction(tasks, where),
            start_pose=steps[0].pose,
            goals=(),
            reference_path=path if self._pose is not None else np.zeros((0, 3)),
            embodiment=None,
            steps=steps,
            metadata={
                **metadata,
                **kept_columns(rows, (self._action, self._pose)),
                **({"tasks": list(tasks)} if len(tasks) > 1 else {}),
                **extra,
            },
        )


def kept_columns(rows: pa.Table, known: Collection[str | None]) -> dict[str, Any]:
    """Columns without a field of their own, one value a row: numbers, texts, lists of them."""
    return {
        name: rows.column(name).to_pylist()
        for name in rows.column_names
        if name not in _INDICES
        and name not in known
        and rows.column(name).nbytes <= 8 * _KEPT_VALUES
        and _is_plain(rows.schema.field(name))
    }


def each_or_error(
    entries: Iterable[Mapping[str, Any]], read: Callable[[Any], Episode]
) -> Iterator[Episode | EpisodeError]:
    """The episode of every entry of meta/, or in its place why it cannot be read."""
    for entry in entries:
        try:
            yield read(entry)
        except UserError as error:
            yield EpisodeError(str(error), str(entry.get("episode_index", "")))


def camera_name(key: str) -> str:
    """`observation.images.front` -> `front`."""
    return key.removeprefix("observation.images.").removeprefix("observation.")


def check_file(root: Path, path: str, where: str) -> None:
    """Raise `UserError` unless a file of the set is there, and is a file."""
    try:
        require_regular(root / path)
    except FileNotFoundError:
        raise UserError(
            f"{root / path}: no such file, {where} has its frames there; copy it again"
        ) from None
    except OSError as error:
        raise UserError(
            f"{root / path}: cannot be read ({error.strerror}), {where} has its frames there; copy "
            "it again"
        ) from None


def dataset_name(root: Path, split: str) -> str:
    """What the set is called: its folder, or the one above where that is the split's."""
    root = root.resolve()
    return root.parent.name if root.name == split else root.name


def _instruction(tasks: Sequence[Any], where: str) -> str:
    if not tasks or not isinstance(tasks[0], str):
        raise UserError(f"{where}: tasks is {str(list(tasks))[:60]}; expected a list of texts")
    return tasks[0]


def _is_plain(field: pa.Field) -> bool:
    """Whether the values are numbers, texts or lists of them."""
    kind = field.type
    while (
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    ):
        kind = kind.value_type
    return (
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
    )
