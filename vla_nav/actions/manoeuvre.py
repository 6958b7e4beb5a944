"""Turn, walk, turn: the primitives that reach a pose, and the pose that primitives reach.

    forward_m ^      target (x, y, yaw)
              |    .-'
              |  .'  walk m steps at heading a
              |.'
    left <----+----  turn to a = k * turn_deg, ..., then turn by yaw - a

Only headings that are multiples of `turn_deg` and whole steps exist, so a target is matched by
search over (k, m): among the end points in the target's own grid cell the one with no final turn,
then the fewest turns, then the nearest; without one in the cell, the nearest of all.
"""

from __future__ import annotations

import math
from functools import lru_cache

from vla_nav.episodes.types import MOVE_FORWARD, STOP, TURN_LEFT, TURN_RIGHT, wrap_angle

_TIE = 1e-4  # a value this close above a cell's lower edge belongs to it, whatever the rounding


def grid_index(value: float, grid: float) -> int:
    """The nearest multiple of `grid`; ties go up, with a margin against rounding noise."""
    return math.floor(value / grid + 0.5 + _TIE)


def dead_reckon(
    primitives: tuple[int, ...], *, turn_deg: float, step_m: float
) -> tuple[float, float, float]:
    """Where the primitives lead without obstacles: (forward_m, left_m, yaw_rad) of the start."""
    forward = left = 0.0
    num_turns = 0
    for primitive in primitives:
        if primitive == TURN_LEFT:
            num_turns += 1
        elif primitive == TURN_RIGHT:
            num_turns -= 1
        elif primitive == MOVE_FORWARD:
            yaw = math.radians(num_turns * turn_deg)
            forward += step_m * math.cos(yaw)
            left += step_m * math.sin(yaw)
        elif primitive == STOP:
            break
    return forward, left, wrap_angle(math.radians(num_turns * turn_deg))


def turns(num_left: int) -> tuple[int, ...]:
    """`num_left` turns to the left, or as many to the right where it is negative."""
    return (TURN_LEFT,) * num_left if num_left >= 0 else (TURN_RIGHT,) * -num_left


def turns_to(angle_rad: float, turn_deg: float) -> int:
    """The signed number of left turns nearest to an angle; half a circle turns left."""
    return grid_index(math.degrees(wrap_angle(angle_rad)), turn_deg)


def polar_plan(
    bearing_rad: float, distance_m: float, yaw_rad: float, *, turn_deg: float, step_m: float
) -> tuple[int, ...]:
    """Turn to the bearing, walk the distance, turn to the final yaw; never empty."""
    num_first = turns_to(bearing_rad, turn_deg)
    num_steps = grid_index(distance_m, step_m)
    num_last = turns_to(yaw_rad - math.radians(num_first * turn_deg), turn_deg)
    plan = turns(num_first) + (MOVE_FORWARD,) * num_steps + turns(num_last)
    return plan or (MOVE_FORWARD,)


@lru_cache(maxsize=65536)
def cartesian_plan(
    forward_m: float,
    left_m: float,
    yaw_rad: float,
    *,
    turn_deg: float,
    step_m: float,
    grid_m: float,
) -> tuple[int, ...]:
    """Turn, walk and turn to a pose given in grid cells of `grid_m`; never empty (drawn above)."""
    cell = grid_index(forward_m, grid_m), grid_index(left_m, grid_m)
    half_circle = round(180 / turn_deg)
    max_steps = math.ceil((math.hypot(forward_m, left_m) + grid_m) / step_m)
    best: tuple[tuple[float, ...], tuple[int, ...]] | None = None
    for num_first in range(-half_circle + 1, half_circle + 1):
        heading = math.radians(num_first * turn_deg)
        num_last = turns_to(yaw_rad - heading, turn_deg)
        for num_steps in range(max_steps + 1):
            if num_steps == 0 and num_first != 0:
                continue  # without a step, one turn to the final yaw is all there is
            x, y = num_steps * step_m * math.cos(heading), num_steps * step_m * math.sin(heading)
            error = round(math.hypot(x - forward_m, y - left_m), 6)
            is_outside = (grid_index(x, grid_m), grid_index(y, grid_m)) != cell
            num_turns = abs(num_first) + abs(num_last)
            has_last = num_last != 0 and num_steps > 0
            rank = (
                is_outside,
                error if is_outside else 0.0,
                has_last,
                num_turns,
                error,
                num_steps,
            )
            if best is None or rank < best[0]:
                plan = turns(num_first) + (MOVE_FORWARD,) * num_steps + turns(num_last)
                best = rank, plan
    assert best is not None
    return best[1] or (MOVE_FORWARD,)
