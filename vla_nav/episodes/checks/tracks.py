"""The walk of an episode as arrays: its actions, and where the data says that the agent was.

    actions      F  F  L  F  STOP              recorded in decisions (F F) (L F) (STOP)
    known        0     2     4                 poses are known before these actions
                 p0    p1    p2

Ground truth of VLN-CE knows a position before every action and after the last, and no heading but
the first; recorded steps know whole poses before every decision.

Axis legend: A actions, P known poses.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from vla_nav.episodes.types import LOOK_DOWN, MOVE_FORWARD, STOP, TURN_LEFT, TURN_RIGHT, Episode

_UNKNOWN = -1  # an id that is no action: it moves nothing


class Track(NamedTuple):
    """actions (A,) int64; known (P,) int64 into 0..A; positions (P, 3) and yaws (P,) float64 or
    None; key: where in the episode it comes from."""

    actions: np.ndarray
    known: np.ndarray
    positions: np.ndarray | None
    yaws: np.ndarray | None
    key: str

    @property
    def turns(self) -> np.ndarray:
        """(A + 1,) net turns to the left before each action and after the last."""
        signs = (self.actions == TURN_LEFT).astype(np.int64) - (self.actions == TURN_RIGHT)
        return np.concatenate([[0], np.cumsum(signs)])


def track_of(episode: Episode) -> Track | None:
    """The walk, from steps or from ground truth; None where the episode has no actions. Positions
    are None where they are not measured or do not fit the actions."""
    if episode.steps:
        return _of_steps(episode) if any(step.executed for step in episode.steps) else None
    truth = episode.metadata.get("ground_truth")
    return _of_ground_truth(truth) if isinstance(truth, dict) else None


def has_measured_poses(episode: Episode) -> bool:
    """Whether poses come from the data: those computed from the actions prove nothing of them."""
    return episode.metadata.get("poses") not in ("dead_reckoned", "unknown")


def action_ids(truth: dict[str, Any]) -> list[Any]:
    """The raw actions of a ground truth, whatever they are."""
    actions = truth.get("actions")
    return actions if isinstance(actions, list) else []


def _of_steps(episode: Episode) -> Track:
    executed = [step.executed for step in episode.steps]
    flat = (action for decision in executed for action in decision)
    actions = np.array([a if STOP <= a <= LOOK_DOWN else _UNKNOWN for a in flat], np.int64)
    ends = np.cumsum([len(decision) for decision in executed])
    known = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    if not has_measured_poses(episode):
        return Track(actions, known, None, None, "steps")
    positions = np.array([step.pose.position for step in episode.steps], np.float64)
    yaws = np.array([step.pose.yaw_rad for step in episode.steps])
    return Track(actions, known, positions, yaws, "steps")


def _of_ground_truth(truth: dict[str, Any]) -> Track:
    raw = action_ids(truth)
    valid = [a for a in raw if type(a) is int and STOP <= a <= LOOK_DOWN]
    actions = np.array(valid, np.int64)
    known = np.arange(len(actions) + 1)
    positions = None
    locations = _points(truth.get("locations"))
    if locations is not None and len(valid) == len(raw):
        reached = np.concatenate([[0], np.cumsum(actions == MOVE_FORWARD)])
        if len(locations) == reached[-1] + 1:
            positions = locations[reached]
    return Track(actions, known, positions, None, "ground_truth")


def _points(value: Any) -> np.ndarray | None:
    """(L, 3) float64 of finite points, or None."""
    try:
        points = np.asarray(value, np.float64)
    except (TypeError, ValueError, OverflowError):
        return None
    is_good = points.ndim == 2 and points.shape[1] == 3 and np.isfinite(points).all()
    return points if is_good else None


def heading_of(dx: float, dz: float) -> float:
    """Yaw of a movement in the ground plane: forward(yaw) = (-sin yaw, 0, -cos yaw)."""
    return math.atan2(-dx, -dz)
