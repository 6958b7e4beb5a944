"""Ground-truth actions and locations of VLN-CE, aligned.

`locations` has the start and one entry per MOVE_FORWARD; turns, looks and STOP have none:

    actions                 F    L    F    R   STOP
    locations          l0   l1        l2               1 + number of F
    position before    l0   l1   l1   l2   l2
    and at the end                              l2

Aligning by index, as if there were one location per action, gives wrong poses.
Locations need not replay kinematically: agents slide along obstacles. That is no error.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from vla_nav.episodes.types import (
    LOOK_DOWN,
    MOVE_FORWARD,
    STOP,
    TURN_LEFT,
    TURN_RIGHT,
    Episode,
    Pose,
)
from vla_nav.errors import UserError

_START_TOLERANCE_M = 0.25  # one step: a first location farther away is another episode's


def align_by_forward(
    actions: Sequence[int], locations: Sequence[Sequence[float]], *, where: str = "ground truth"
) -> np.ndarray:
    """Positions before every action and after the last: (A + 1, 3) float64, metres, world.

    Raises `UserError` starting with `where` unless there is one location more than forwards.
    """
    is_forward = np.array([action == MOVE_FORWARD for action in actions], np.int64)
    num_forward = int(is_forward.sum())
    if len(locations) != num_forward + 1:
        raise UserError(
            f"{where}: {len(locations)} locations do not fit {num_forward} MOVE_FORWARD actions; "
            f"there must be {num_forward + 1} (the start, and one after each)"
        )
    reached = np.concatenate([[0], np.cumsum(is_forward)])
    return np.asarray(locations, np.float64)[reached]


def ground_truth_poses(episode: Episode, *, turn_deg: float) -> tuple[Pose, ...]:
    """Poses before every ground-truth action and after the last, A + 1 of them.

    episode: read with `gt`. turn_deg: the data set's turn angle (R2R-CE 15, RxR-CE 30); positions
    come from the locations, headings from the start heading and the turns.
    """
    truth = episode.metadata.get("ground_truth")
    if truth is None:
        raise UserError(
            f"episode {episode.episode_id}: has no ground truth; read the file with its gt file"
        )
    actions = truth["actions"]
    positions = align_by_forward(actions, truth["locations"])
    signs = [(action == TURN_LEFT) - (action == TURN_RIGHT) for action in actions]
    turns = np.concatenate([[0], np.cumsum(signs)])
    start = episode.start_pose.yaw_rad
    return tuple(
        Pose.from_yaw((x, y, z), start + math.radians(turn_deg) * turn)
        for (x, y, z), turn in zip(positions.tolist(), turns.tolist(), strict=True)
    )


def check_ground_truth(truth: Any, episode: Episode, where: str) -> None:
    """Raise `UserError` starting with `where` unless `truth` can be that of `episode`."""
    if not isinstance(truth, dict):
        raise UserError(f"{where}: is not in the file; use the gt file of the same split and role")
    actions, locations = truth.get("actions"), truth.get("locations")
    if not isinstance(actions, list) or not all(
        type(action) is int and STOP <= action <= LOOK_DOWN for action in actions
    ):
        raise UserError(f"{where}: key actions must be a list of ids {STOP} .. {LOOK_DOWN}")
    if STOP in actions[:-1]:
        raise UserError(f"{where}: key actions has STOP before the end")
    if not isinstance(locations, list) or not all(
        isinstance(p, list) and len(p) == 3 and all(isinstance(x, int | float) for x in p)
        for p in locations
    ):
        raise UserError(f"{where}: key locations must be a list of points [x, y, z]")
    if not all(abs(x) <= sys.float_info.max for point in locations for x in point):  # NaN: false
        raise UserError(f"{where}: key locations holds a non-finite number")
    positions = align_by_forward(actions, locations, where=where)
    num_forward = truth.get("forward_steps", actions.count(MOVE_FORWARD))
    if num_forward != actions.count(MOVE_FORWARD):
        raise UserError(
            f"{where}: key forward_steps is {num_forward}; "
            f"actions have {actions.count(MOVE_FORWARD)} MOVE_FORWARD"
        )
    distance_m = math.dist(positions[0], episode.start_pose.position)
    if distance_m > _START_TOLERANCE_M:
        raise UserError(
            f"{where}: starts {distance_m:.2f} m from the episode's start_position; "
            "use the gt file of the same split and role"
        )
