"""`waypoint`: labels from poses, grids, and the way back to the expert's own primitives."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spaces import embodiment

from vla_nav.actions import Primitives, Stop, Waypoint, WaypointSpace
from vla_nav.actions.decisions import cut
from vla_nav.actions.manoeuvre import dead_reckon
from vla_nav.episodes.types import MOVE_FORWARD as F
from vla_nav.episodes.types import STOP, ExpertLabel, Pose, Step
from vla_nav.episodes.types import TURN_LEFT as L
from vla_nav.episodes.types import TURN_RIGHT as R
from vla_nav.errors import UserError


def walk(start: Pose, primitives, *, turn_deg: float, step_m: float) -> list[Pose]:
    """Poses after each primitive, by the frame's own definition (episodes/types.py)."""
    x, y, z = start.position
    yaw, poses = start.yaw_rad, []
    for primitive in primitives:
        if primitive == F:
            x, z = x - step_m * math.sin(yaw), z - step_m * math.cos(yaw)
        elif primitive in (L, R):
            yaw += math.radians(turn_deg) * (1 if primitive == L else -1)
        poses.append(Pose.from_yaw((x, y, z), yaw))
    return poses


def decisions(turn_deg: float, max_forward: int):
    """Every (turns, steps) decision; half a circle is written as left turns."""
    half = round(180 / turn_deg)
    for turns, steps in itertools.product(range(-half + 1, half + 1), range(max_forward + 1)):
        if turns or steps:
            yield ((L,) * turns if turns >= 0 else (R,) * -turns) + (F,) * steps


EXACT = {
    "polar": WaypointSpace(),
    "polar_15": WaypointSpace(turn_deg=15),
    "polar_yaw": WaypointSpace(order=("bearing", "distance", "yaw")),
    "cartesian": WaypointSpace(coordinates="cartesian", grid_m=0.125),
    "cartesian_yxyaw": WaypointSpace(
        coordinates="cartesian", grid_m=0.125, order=("y", "x", "yaw")
    ),
    "cartesian_90": WaypointSpace(coordinates="cartesian", turn_deg=90),  # on a grid of a step
}


@pytest.mark.parametrize("space", EXACT.values(), ids=EXACT.keys())
@pytest.mark.parametrize("heading_deg", [0.0, 77.0, 180.0])
def test_label_tokens_action_primitives_give_the_decision_back(space, heading_deg):
    turn_deg, start = space.turn_deg, Pose.from_yaw((3.0, 1.0, -2.0), math.radians(heading_deg))
    body = embodiment(turn_deg=turn_deg)
    for decision in decisions(turn_deg, 4):
        plan = (*decision, R, F, STOP) if decision[-1] == F else (*decision, STOP)
        plan = (*decision[: decision.index(F) + 4], R, STOP) if F in decision else plan
        expected = cut(plan, space.decision)
        poses = walk(start, plan, turn_deg=turn_deg, step_m=0.25)
        action = space.label(start, ExpertLabel(plan, tuple(poses)))
        decoded, is_parsed = space.decode(space.encode(action))
        assert is_parsed
        assert space.primitives(decoded, body) == expected


@pytest.mark.parametrize("space", EXACT.values(), ids=EXACT.keys())
def test_executed_primitives_give_the_same_tokens_as_their_label(space):
    start = Pose.from_yaw((0.0, 0.0, 0.0), 1.0)
    for decision in decisions(space.turn_deg, 4):
        plan = (*decision, R, STOP)
        poses = walk(start, plan, turn_deg=space.turn_deg, step_m=0.25)
        if cut(plan, space.decision) != decision:
            continue
        label = space.encode(space.label(start, ExpertLabel(plan, tuple(poses))))
        assert space.encode(space.executed(Step(start, {}, decision, ()))) == label


def test_a_label_is_the_pose_in_the_agents_frame():
    space = WaypointSpace(coordinates="cartesian", grid_m=0.05, range_m=3, decision="fixed(5)")
    start = Pose.from_yaw((5.0, 0.0, 5.0), math.radians(90))  # looks along -X
    plan = (F, F, L, L, L, F, STOP)
    poses = walk(start, plan, turn_deg=30, step_m=0.25)
    action = space.label(start, ExpertLabel(plan, tuple(poses)))
    assert isinstance(action, Waypoint)
    assert (action.forward_m, action.left_m) == pytest.approx((0.5, 0.0), abs=1e-9)
    assert action.yaw_rad == pytest.approx(math.radians(90))
    assert space.primitives(space.decode(space.encode(action)).action, embodiment()) == plan[:5]


def test_stop_is_a_label_only_when_it_is_next():
    space = WaypointSpace()
    pose = Pose.from_yaw((0.0, 0.0, 0.0), 0.0)
    assert space.label(pose, ExpertLabel((STOP,), (pose,))) == Stop()
    ahead = walk(pose, (F, STOP), turn_deg=30, step_m=0.25)
    assert space.label(pose, ExpertLabel((F, STOP), tuple(ahead))) == Waypoint(0.25, 0.0, 0.0)
    assert space.encode(Stop()) == (0,)
    assert space.executed(Step(pose, {}, (STOP,), ())) == Stop()


def test_a_sliding_step_keeps_its_place_and_not_its_heading():
    """A label says where the expert comes to stand, so its bearing is that of the displacement."""
    space = WaypointSpace()
    decoded = space.decode(space.encode(Waypoint(0.0, 0.5, math.radians(60)))).action
    assert space.primitives(decoded, embodiment()) == (L, L, L, F, F)


def test_blocked_decision_asks_for_a_step_all_the_same():
    assert EXACT["polar"].decode(EXACT["polar"].encode(Waypoint(0.0, 0.0, 0.0))).action == Waypoint(
        0.25, 0.0, 0.0
    )


@given(
    st.lists(st.sampled_from((F, L, R)), min_size=1, max_size=8).map(tuple),
    st.sampled_from(("polar_yaw", "cartesian")),
)
def test_executed_waypoints_end_near_where_they_point(primitives, name):
    space = EXACT[name]
    target = dead_reckon(primitives, turn_deg=30, step_m=0.25)
    if math.hypot(*target[:2]) > 1.0:
        return
    action = space.decode(space.encode(Primitives(primitives))).action
    ends = dead_reckon(space.primitives(action, embodiment()), turn_deg=30, step_m=0.25)
    # Half a step along the way, half a turn (15 degrees at 1 m) across it, half a cell of the grid.
    assert math.dist(ends[:2], target[:2]) <= 0.125 + 0.27 + 0.18
    if math.hypot(*target[:2]) > 0.13:
        assert math.cos(ends[2] - target[2]) == pytest.approx(1.0, abs=1e-6)


def test_far_waypoints_are_clipped_to_the_range():
    space = WaypointSpace(range_m=2.0)
    clipped = space.decode(space.encode(Waypoint(10.0, 0.0, 0.0))).action
    assert clipped == Waypoint(2.0, 0.0, 0.0)
    grid = WaypointSpace(coordinates="cartesian", range_m=2.0)
    assert grid.decode(grid.encode(Waypoint(-9, 9, 0))).action == Waypoint(-2.0, 2.0, 0.0)


def test_rounding_noise_does_not_change_a_token():
    space = WaypointSpace(coordinates="cartesian")
    for offset in (-1e-7, 0.0, 1e-7):  # y lies on the border of two cells
        assert space.encode(Waypoint(0.25, 0.125 + offset, 0.5)) == space.encode(
            Waypoint(0.25, 0.125, 0.5)
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"coordinates": "spherical"}, "actions.coordinates"),
        ({"order": ["bearing"]}, "must hold each of"),
        ({"order": ["bearing", "distance", "distance"]}, "actions.order"),
        ({"coordinates": "cartesian", "order": ["x", "y"]}, "actions.order"),
        ({"angle_deg": 50}, "divide 360"),
        ({"grid_m": 0.0}, "actions.grid_m"),
        ({"grid_m": 2.0}, "range_m"),
    ],
)
def test_impossible_grids_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        WaypointSpace(**options)
