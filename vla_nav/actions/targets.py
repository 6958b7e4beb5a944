"""The place that an action asks for, for executions that go there instead of counting turns.

    waypoint   its pose; it has no height: the agent's own, or that of stairs leading there
    pointing   the point that its pixel shows (by depth, else on the floor), and its heading there
    STOP, primitives, and the grammar's fallback: no place, they are executed as they are

A decision goes no farther than its rule allows (`turn_then_forward(4)`: four steps' length), so a
far pixel is approached over several decisions, as it is with discrete steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from vla_nav.actions.pointing import ground_point
from vla_nav.actions.types import Action, ActionSpace, Pointing, Waypoint, camera_named
from vla_nav.episodes.types import Embodiment

STAIRS = 0.6  # rise over run of usual stairs (17 over 29 cm)
FAR_M = 100.0  # a pixel above the horizon is a direction: this far is beyond every scene's rooms
SPACES_WITH_TARGETS = ("waypoint", "pointing")


@dataclass(frozen=True, slots=True)
class Target:
    """A place in the agent's frame (metres), how it is reached, and what to do where it cannot be.

    up_m: heights above the agent's to look for a floor at, the likeliest first. yaw_rad: the
    heading to take there. reach_m: the longest way that this decision goes. primitives: the same
    action in discrete steps, for a place to which no way leads.
    """

    forward_m: float
    left_m: float
    up_m: tuple[float, ...]
    yaw_rad: float
    reach_m: float
    primitives: tuple[int, ...]


def target_of(
    space: ActionSpace,
    action: Action,
    embodiment: Embodiment,
    depth: dict[str, np.ndarray] | None = None,
) -> Target | None:
    """The place that `action` of `space` asks for; None for an action that names none.

    depth: camera name -> (H, W) float32 planar metres, as for `ActionSpace.primitives`.
    """
    reach_m = space.decision.count * embodiment.step_m
    if isinstance(action, Waypoint):
        forward_m, left_m = action.forward_m, action.left_m
        run_m = math.hypot(forward_m, left_m)
        up_m = (0.0, STAIRS * run_m, -STAIRS * run_m)
        reach_m = max(reach_m, run_m)
    elif isinstance(action, Pointing):
        camera = camera_named(embodiment, action.camera)
        forward_m, left_m, seen_up_m = ground_point(
            action, camera, (depth or {}).get(action.camera)
        )
        up_m = (seen_up_m, 0.0)  # on stairs or a floor; or on a wall that rises from the own floor
    else:
        return None
    distance_m = math.hypot(forward_m, left_m)
    scale = min(1.0, FAR_M / distance_m) if distance_m > 0 else 1.0
    return Target(
        forward_m * scale,
        left_m * scale,
        up_m,
        action.yaw_rad,
        reach_m,
        space.primitives(action, embodiment, depth),
    )
