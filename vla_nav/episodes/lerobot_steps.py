"""Rows of a foreign LeRobot episode -> primitives and poses: which columns are what.

An `action` column of whole numbers holds primitives. Two habits exist:

    row            0    1    2    3                 row           0    1    2    3
    action        -1    1    3    1   (arrived by)  action        1    3    1    0   (leaves by)
    executed       1    3    1  STOP                executed      1    3    1    0

With -1 in front an action is the one that led to its row, so it moves up one row and the STOP that
is never stored is added (InternRobotics/InternNav at 7a5c624, internnav/dataset/
internvla_n1_lerobot_dataset.py: `actions[1:] + [0]`). A feature whose names are x y z qx qy qz qw
is the agent's pose in our frame. Without one, poses are dead-reckoned from the primitives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vla_nav.episodes.types import LOOK_DOWN, PRIMITIVE_NAMES, STOP, ExpertLabel, Pose, Step
from vla_nav.episodes.walked import HORIZON
from vla_nav.errors import UserError

ACTION_COLUMNS = ("executed_primitive", "action", "observation.action")
POSE_NAMES = ["x", "y", "z", "qx", "qy", "qz", "qw"]
_START = -1
_UNIT = 1e-3  # how far from 1 the norm of a float32 quaternion may be


def executed_primitives(actions: np.ndarray, where: str) -> list[int]:
    """What was executed from each row on: (rows,) stored actions -> primitives.

    One shorter than `actions` where a STOP is stored as the action that led to the last row.
    where: file and column, for messages. Raises `UserError` for an unknown action.
    """
    values: list[int] = actions.tolist()
    first = 0
    if values and values[0] == _START:
        first = 1
        values = values[1:] if len(values) > 1 and values[-1] == STOP else [*values[1:], STOP]
    for row, value in enumerate(values, first):
        if not STOP <= value <= LOOK_DOWN:
            names = ", ".join(f"{i} {name}" for i, name in enumerate(PRIMITIVE_NAMES))
            raise UserError(
                f"{where}: row {row} is {value}; allowed: {names}, and -1 in the first row alone"
            )
    return values


def steps_of(
    poses: Sequence[Pose], frames: Sequence[Mapping[str, str]], executed: Sequence[int] | None
) -> tuple[Step, ...]:
    """Steps of one episode. poses: of every step, and possibly one after the last.

    The label of a step is what was executed from there on, at most `HORIZON` primitives and none
    after STOP. executed None: the motion is not made of primitives, so there is nothing to teach.
    """
    if executed is None:
        return tuple(Step(pose, seen, (), ()) for pose, seen in zip(poses, frames, strict=True))
    after = [*poses[1:], poses[-1]][: len(executed)]
    steps = []
    for at, primitive in enumerate(executed):
        ahead = tuple(executed[at : at + HORIZON])
        if STOP in ahead:
            ahead = ahead[: ahead.index(STOP) + 1]
        label = ExpertLabel(ahead, tuple(after[at : at + len(ahead)]))
        steps.append(Step(poses[at], frames[at], (primitive,), (label,)))
    return tuple(steps)


def poses_from_rows(values: np.ndarray, where: str) -> list[Pose]:
    """(rows, 7) x y z qx qy qz qw -> poses; `UserError` for non-finite or non-unit values."""
    bad = np.flatnonzero(~np.isfinite(values).all(axis=1))
    if len(bad):
        raise UserError(f"{where}: row {bad[0]} has a non-finite number; expected a pose")
    norms = np.linalg.norm(values[:, 3:], axis=1)
    bad = np.flatnonzero(np.abs(norms - 1) > _UNIT)
    if len(bad):
        raise UserError(
            f"{where}: row {bad[0]} has a quaternion of norm {norms[bad[0]]:.4f}; expected "
            "qx qy qz qw of norm 1"
        )
    return [Pose(tuple(row[:3]), tuple(row[3:])) for row in values.tolist()]


def action_column(features: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The column of primitives: whole numbers, one a row; None where actions are continuous."""
    for name in ACTION_COLUMNS:
        feature = features.get(name)
        is_number = feature is not None and feature.get("shape") in ([1], [], None)
        if is_number and str(feature.get("dtype", "")).startswith(("int", "uint")):
            return name
    return None


def pose_column(features: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The column whose names are x y z qx qy qz qw, or None."""
    for name, feature in features.items():
        names = feature.get("names")
        if isinstance(names, dict) and len(names) == 1:
            names = next(iter(names.values()))
        if names == POSE_NAMES:
            return name
    return None
