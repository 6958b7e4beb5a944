"""Going to a target along the shortest path: what `evaluation.execution=geodesic` does.

    target --snapped to the floor--> shortest path --cut at the reach--> pieces of one step
                                                                          + turns on the spot
         x target             F  a step's length of the path, in equal pieces
        /                     L  charged wherever half a turn has gathered; a bend of so much ends
       F                         a piece, so corners are not cut
      F
    F F L                     the agent ends on the path, facing along it, or at the target with
    start                     its heading

Each piece and each turn is charged as one primitive action, so the step limit and the number of
steps mean what they mean with discrete steps; the poses between are real, the primitives would not
lead through them again. A target without a way to it (off the floor, another island) is executed
by discrete steps instead and counted.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from vla_nav.actions.targets import Target
from vla_nav.episodes.types import (
    MOVE_FORWARD,
    TURN_LEFT,
    TURN_RIGHT,
    Embodiment,
    Pose,
    wrap_angle,
)

EXECUTIONS = {
    "discrete": "decisions are primitive actions, waypoints and pixels by turn, walk, turn",
    "geodesic": "the network's waypoints and pixels by the shortest path to them, a primitive "
    "action charged per step length and turn; chance and the expert by primitive actions",
}
_NOTHING_M = 1e-3
_BESIDE_M = 0.1
_SLACK = 0.1  # of a step, or of the reach: so much more is walked rather than left over
_AS_MEANT_M = 0.1  # a floor so near to what was asked for needs no comparison with others


class Call(NamedTuple):
    """Ask the episode's simulator lane for this method of the host."""

    method: str
    arguments: dict[str, Any]


class Walk(NamedTuple):
    """Where the agent is carried: a pose after each charged primitive. has_collided: it could not
    move towards its target at all."""

    primitives: tuple[int, ...]
    poses: tuple[Pose, ...]
    has_collided: bool


def execution_text(execution: str, records: Sequence[Mapping[str, Any]]) -> str:
    """How the decisions of a run were executed, for its report; with what went another way."""
    text = f"{execution}: {EXECUTIONS[execution]}"
    if execution == "geodesic":
        num_all = sum(one["num_decisions"] for one in records if one["execution"] == execution)
        num_other = sum(one["num_unreachable"] for one in records)
        text += f"; {num_other} of {num_all} decisions named a place without a way"
    return text


def approach(
    target: Target, pose: Pose, *, scene: str, body: Embodiment
) -> Generator[Call, Any, Walk | None]:
    """Ask the host for the way from `pose` to `target`; None where there is none.

    Of the floors at the target's heights the one is taken that lies least aside of it and is
    reached with the least detour: a pixel on a wall means the floor before it, not one behind.
    """
    x, y, z = pose.position
    sin, cos = math.sin(pose.yaw_rad), math.cos(pose.yaw_rad)
    place_x = x - target.forward_m * sin - target.left_m * cos
    place_z = z - target.forward_m * cos + target.left_m * sin
    best: tuple[float, np.ndarray] | None = None
    for up_m in dict.fromkeys(target.up_m):
        goal = yield Call("snap", {"scene": scene, "point": [place_x, y + up_m, place_z]})
        if goal is None:
            continue
        path = yield Call("shortest_path", {"scene": scene, "start": [x, y, z], "goal": list(goal)})
        if not math.isfinite(path["distance_m"]):
            continue
        aside_m = math.hypot(goal[0] - place_x, goal[2] - place_z)
        detour_m = max(0.0, path["distance_m"] - math.dist(pose.position, goal))
        if best is None or aside_m + detour_m < best[0]:
            best = aside_m + detour_m, _corners(path["points"], pose.position, goal)
        if aside_m + detour_m < _AS_MEANT_M:
            break
    if best is None:
        return None
    done = walk(best[1], pose, yaw_rad=target.yaw_rad, reach_m=target.reach_m, body=body)
    floor = yield Call("snap", {"scene": scene, "point": list(done.poses[-1].position)})
    if floor is None:
        return done
    last = Pose(tuple(map(float, floor)), done.poses[-1].rotation)
    return done._replace(poses=(*done.poses[:-1], last))


def walk(
    points: np.ndarray, pose: Pose, *, yaw_rad: float, reach_m: float, body: Embodiment
) -> Walk:
    """The walk from `pose` along a polyline (P, 3) that begins there, at most `reach_m` of it.

    yaw_rad: the heading to take at the polyline's end, relative to `pose`. Never empty: where the
    agent is at the end already, one step on the spot is charged.
    """
    turn_rad = math.radians(body.turn_deg)
    primitives: list[int] = []
    poses: list[Pose] = []
    position, heading = pose.position, pose.yaw_rad
    charged = heading  # the heading that the charged turns amount to, so that none is ever free

    def turn_to(wanted_rad: float) -> None:
        """Face `wanted_rad`, charging a turn wherever half of one has gathered."""
        nonlocal heading, charged
        num_left = round(wrap_angle(wanted_rad - charged) / turn_rad)
        for count in range(1, abs(num_left) + 1):
            charged += math.copysign(turn_rad, num_left)
            primitives.append(TURN_LEFT if num_left > 0 else TURN_RIGHT)
            yaw = wanted_rad if count == abs(num_left) else charged
            poses.append(Pose.from_yaw(position, yaw))
        heading = wanted_rad

    places, is_whole = _pieces(points, reach_m=reach_m, step_m=body.step_m, turn_rad=turn_rad)
    for place in places:
        turn_to(math.atan2(-(place[0] - position[0]), -(place[2] - position[2])))
        position = place
        primitives.append(MOVE_FORWARD)
        poses.append(Pose.from_yaw(position, heading))
    if is_whole:
        turn_to(pose.yaw_rad + yaw_rad)
        if poses:
            poses[-1] = Pose.from_yaw(position, heading)
    if not primitives:
        return Walk((MOVE_FORWARD,), (pose,), True)
    return Walk(tuple(primitives), tuple(poses), False)


def _corners(points: np.ndarray, start: Sequence[float], goal: Sequence[float]) -> np.ndarray:
    """The path between exactly these ends. A corner beside an end is where a backend looked from
    (a cell's centre, a hair off the wall), and would be walked to and fro."""
    inner = np.asarray(points, np.float64).reshape(-1, 3)[1:-1]
    ends = np.array([start, goal], np.float64)
    away = np.linalg.norm(inner[:, None] - ends[None], axis=2).min(axis=1)  # (P - 2,)
    return np.concatenate([ends[:1], inner[away > _BESIDE_M], ends[1:]])


def _pieces(
    points: np.ndarray, *, reach_m: float, step_m: float, turn_rad: float
) -> tuple[list[tuple[float, float, float]], bool]:
    """Ends of the pieces of a polyline, and whether they come to its end.

    Lengths are horizontal, as those of MOVE_FORWARD are on stairs. Pieces are equal where no bend
    ends one, and at most a tenth longer than a step.
    """
    points = np.asarray(points, np.float64)
    legs = np.diff(points[:, [0, 2]], axis=0)
    lengths = np.linalg.norm(legs, axis=1)  # (P - 1,)
    is_whole = float(lengths.sum()) <= reach_m * (1 + _SLACK)
    left_m = float(lengths.sum()) if is_whole else reach_m
    if left_m < _NOTHING_M:
        return [], is_whole
    step_m = left_m / max(1, math.ceil(left_m / step_m - _SLACK))
    places: list[tuple[float, float, float]] = []
    at, piece_m = points[0], step_m  # piece_m: to go in this piece
    since: float | None = None  # the heading at this piece's beginning
    for point, (leg_x, leg_z), leg_m in zip(
        points[1:], legs.tolist(), lengths.tolist(), strict=True
    ):
        if leg_m < _NOTHING_M:
            continue
        heading = math.atan2(-leg_x, -leg_z)
        if since is not None and abs(wrap_angle(heading - since)) >= turn_rad / 2:
            if piece_m < step_m:
                places.append(_place(at))
            piece_m, since = step_m, None
        since = heading if since is None else since
        while leg_m > _NOTHING_M and left_m > _NOTHING_M:
            part_m = min(leg_m, piece_m, left_m)
            at = at + (point - at) * (part_m / leg_m)
            leg_m, piece_m, left_m = leg_m - part_m, piece_m - part_m, left_m - part_m
            if piece_m < _NOTHING_M:
                places.append(_place(at))
                piece_m, since = step_m, heading
    if piece_m < step_m:
        places.append(_place(at))
    if is_whole and places:
        places[-1] = _place(points[-1])
    return places, is_whole


def _place(point: np.ndarray) -> tuple[float, float, float]:
    return float(point[0]), float(point[1]), float(point[2])
