"""The number columns that make a recorded episode useful to a plain LeRobot user.

    observation.state   the agent's pose at the step: x y z qx qy qz qw, world, float64
    action              what was executed, as motion to the next step's pose in the agent's frame:
                        forward_m, left_m, yaw_rad, and stop (1 where the agent called STOP)
    executed_primitive  the first primitive executed, -1 where none was
    expert_primitive    the first primitive of the expert's first label, -1 where there is none

The last step has no successor; its motion is dead reckoning of its primitives (turn angle and step
length of the embodiment, no collisions), which is nil for STOP.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from vla_nav.episodes.frames import depth_to_millimetres
from vla_nav.episodes.lerobot_layout import NUMBER_COLUMNS
from vla_nav.episodes.types import (
    MOVE_FORWARD,
    STOP,
    TURN_LEFT,
    TURN_RIGHT,
    Embodiment,
    Episode,
    Step,
    wrap_angle,
)

STEP_COLUMNS: dict[str, pa.DataType] = {
    name: NUMBER_COLUMNS[name]
    for name in ("observation.state", "action", "executed_primitive", "expert_primitive")
}


def step_columns(episode: Episode) -> dict[str, Any]:
    """`STEP_COLUMNS` of an episode: lists with one value (or one short row) per step."""
    steps = episode.steps
    actions = [
        (*step.pose.relative(following.pose), float(STOP in step.executed))
        for step, following in pairwise(steps)
    ]
    if steps:
        last = steps[-1]
        actions.append((*_dead_reckoning(last, episode.embodiment), float(STOP in last.executed)))
    return {
        "observation.state": [[*step.pose.position, *step.pose.rotation] for step in steps],
        "action": actions,
        "executed_primitive": [step.executed[0] if step.executed else -1 for step in steps],
        "expert_primitive": [
            step.labels[0].primitives[0] if step.labels and step.labels[0].primitives else -1
            for step in steps
        ],
    }


def image_sums(frame: np.ndarray | None, name: str) -> np.ndarray:
    """Exact integer sums of one frame, so that statistics do not depend on any order.

    Returns (5, C) int64, flat: count, minimum, maximum, sum, sum of squares per channel; C is 3 for
    RGB (0 .. 255) and 1 for depth (millimetres). All zero where there is no frame.
    """
    num_channels = 1 if name.endswith(".depth") else 3
    if frame is None:
        return np.zeros(5 * num_channels, np.int64)
    values = depth_to_millimetres(frame) if num_channels == 1 else frame
    values = values.reshape(-1, num_channels).astype(np.int64)
    count = np.full(num_channels, len(values))
    rows = (count, values.min(0), values.max(0), values.sum(0), (values * values).sum(0))
    return np.concatenate(rows)


def _dead_reckoning(step: Step, embodiment: Embodiment | None) -> tuple[float, float, float]:
    if embodiment is None:
        return 0.0, 0.0, 0.0
    forward = left = yaw = 0.0
    for primitive in step.executed:
        if primitive == MOVE_FORWARD:
            forward += embodiment.step_m * math.cos(yaw)
            left += embodiment.step_m * math.sin(yaw)
        elif primitive in (TURN_LEFT, TURN_RIGHT):
            sign = 1 if primitive == TURN_LEFT else -1
            yaw = wrap_angle(yaw + sign * math.radians(embodiment.turn_deg))
    return forward, left, yaw
