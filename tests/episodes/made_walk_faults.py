"""Made faults of single episodes: poses (D1), actions (D2), geometry (D3)."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from tests.episodes.checked_sets import (
    STATED,
    UNSTATED,
    ListSource,
    PaintedFrames,
    episode,
    with_metadata,
    with_step,
    with_truth,
)
from tests.episodes.made_faults import NUM, PLAIN, RECORDED, fault, one_of
from vla_nav.episodes.types import Episode, Goal, Pose

# Poses -----------------------------------------------------------------------------------------


def rotated(rotation: tuple[float, ...]) -> Episode:
    plain = RECORDED[7]
    return with_step(plain, 20, pose=Pose(plain.steps[20].pose.position, rotation))


@fault("D101", also="D208")
def norm_that_is_not_one() -> ListSource:
    x, y, z, w = RECORDED[7].steps[20].pose.rotation
    return one_of(rotated((x, 0.9 * y, z, 0.9 * w)), base=RECORDED)


@fault("D102", also="D208")
def quaternion_written_wxyz() -> ListSource:
    _, y, _, w = RECORDED[7].steps[20].pose.rotation
    return one_of(rotated((w, 0.0, y, 0.0)), base=RECORDED)


@fault("D103")
def agent_tilted_by_a_camera_pitch() -> ListSource:
    _, y, _, w = RECORDED[7].steps[20].pose.rotation
    c, s = math.cos(0.2), math.sin(0.2)
    return one_of(rotated((w * s, y * c, -y * s, w * c)), base=RECORDED)


@fault("D104")
def number_that_is_not_finite() -> ListSource:
    return one_of(with_metadata(PLAIN[7], extra={"deep": [1, {"er": [0.5, math.nan]}]}))


@fault("D105", NUM)
def headings_that_look_away_from_the_path() -> ListSource:
    return along_the_path(sign=1, off_rad=math.pi / 2)


def along_the_path(sign: int, off_rad: float) -> ListSource:
    """Paths that begin along the start heading, but for a sign and an angle."""
    made = []
    for plain in PLAIN:
        start = np.array(plain.start_pose.position)
        yaw = sign * plain.start_pose.yaw_rad + off_rad
        edge = np.add(start, [-2 * math.sin(yaw), 0, -2 * math.cos(yaw)])
        path = np.array([start, edge, plain.goals[0].position])
        made.append(replace(plain, reference_path=path))
    return ListSource(made)


@fault("D106", NUM, also="D206")
def headings_of_an_older_release() -> ListSource:
    made = []
    for number, plain in enumerate(PLAIN):
        position, yaw = plain.start_pose.position, plain.start_pose.yaw_rad
        turned = Pose.from_yaw(position, yaw + 0.7 + 0.9 * (number % 7))
        made.append(replace(plain, start_pose=turned))
    return ListSource(made)


# Actions ---------------------------------------------------------------------------------------


@fault("D201")
def ground_truth_that_lacks_an_episode() -> ListSource:
    return one_of(replace(PLAIN[7], metadata={"info": PLAIN[7].metadata["info"]}))


@fault("D202", NUM)
def episodes_without_actions() -> ListSource:
    return ListSource([replace(e, metadata={"info": e.metadata["info"]}) for e in PLAIN])


@fault("D203")
def ground_truth_that_ends_elsewhere() -> ListSource:
    truth = PLAIN[7].metadata["ground_truth"]
    goal = Goal(tuple(np.add(truth["locations"][-1], [0.5, 0, 0]).tolist()), 0.3)
    path = np.vstack([PLAIN[7].reference_path, [goal.position]])
    info = {"geodesic_distance": 9.0}
    return one_of(with_metadata(replace(PLAIN[7], goals=(goal,), reference_path=path), info=info))


@fault("D204")
def location_that_is_missing() -> ListSource:
    truth = PLAIN[7].metadata["ground_truth"]
    return one_of(with_truth(PLAIN[7], locations=truth["locations"][:-1]))


@fault("D205")
def stop_that_is_missing() -> ListSource:
    truth = PLAIN[7].metadata["ground_truth"]
    return one_of(with_truth(PLAIN[7], actions=truth["actions"][:-1]))


def moved_at_the_end(aside_m: float, ahead_m: float) -> Episode:
    """The last location moved aside of its step and ahead along it."""
    locations = [list(p) for p in PLAIN[7].metadata["ground_truth"]["locations"]]
    dx, _, dz = np.subtract(locations[-1], locations[-2]) / 0.25
    locations[-1][0] += ahead_m * dx - aside_m * dz
    locations[-1][2] += ahead_m * dz + aside_m * dx
    return with_truth(PLAIN[7], locations=locations)


@fault("D206")
def agent_that_slid_along_a_wall() -> ListSource:
    return one_of(moved_at_the_end(aside_m=0.1, ahead_m=-0.05))


@fault("D207", also="D206")
def step_that_is_too_long() -> ListSource:
    return one_of(moved_at_the_end(aside_m=0.0, ahead_m=0.12))


@fault("D208")
def heading_that_does_not_follow_the_turns() -> ListSource:
    plain = RECORDED[7]
    last = plain.steps[-1].pose
    turned = Pose.from_yaw(last.position, last.yaw_rad + math.radians(4))
    return one_of(with_step(plain, len(plain.steps) - 1, pose=turned), base=RECORDED)


@fault("D209", also="D206")
def turns_of_30_stated_as_15() -> ListSource:
    return ListSource([episode(number, turn_deg=30.0) for number in range(NUM)])


@fault("D210", also="D212")
def turn_angle_that_nobody_states() -> ListSource:
    return ListSource(PLAIN, UNSTATED)


@fault("D211", also="D206")
def steps_of_20_cm_stated_as_25() -> ListSource:
    return ListSource([episode(number, step_m=0.2) for number in range(NUM)])


@fault("D212")
def step_length_that_nobody_states() -> ListSource:
    return ListSource(PLAIN, replace(STATED, step_m=None))


@fault("D213", also="D206")
def turn_angles_that_are_mixed() -> ListSource:
    return ListSource([*PLAIN[:15], *(episode(n, turn_deg=30.0) for n in range(15, NUM))])


@fault("D214", also="D206")
def left_and_right_exchanged() -> ListSource:
    swap = {2: 3, 3: 2}
    made = []
    for plain in PLAIN:
        actions = plain.metadata["ground_truth"]["actions"]
        made.append(with_truth(plain, actions=[swap.get(a, a) for a in actions]))
    return ListSource(made)


@fault("D215")
def action_that_never_occurs() -> ListSource:
    return ListSource([episode(number, sides=(2,)) for number in range(NUM)])


@fault("D216")
def label_text_outside_the_grammar() -> ListSource:
    return one_of(with_metadata(RECORDED[7], unparsed=["go forward a bit"]), base=RECORDED)


@fault("D217", also="D204")
def action_id_that_is_unknown() -> ListSource:
    actions = PLAIN[7].metadata["ground_truth"]["actions"]
    return one_of(with_truth(PLAIN[7], actions=[9, *actions]))


@fault("D218")
def step_that_teaches_nothing() -> ListSource:
    return one_of(with_step(RECORDED[7], 3, labels=()), base=RECORDED)


@fault("D219", also="D218")
def stop_that_is_never_taught() -> ListSource:
    last = len(RECORDED[7].steps) - 1
    return one_of(with_step(RECORDED[7], last, labels=()), base=RECORDED)


@fault("D220")
def label_with_a_pose_too_few() -> ListSource:
    label = replace(RECORDED[7].steps[3].labels[0], poses=())
    return one_of(with_step(RECORDED[7], 3, labels=(label,)), base=RECORDED)


@fault("D221")
def records_that_contradict_one_another() -> ListSource:
    return one_of(with_metadata(RECORDED[7], conflicts=[[3, "turn left 15 degree"]]), base=RECORDED)


@fault("D222")
def turns_of_an_unknown_angle() -> ListSource:
    made = [with_metadata(e, poses="dead_reckoned") for e in RECORDED]
    return ListSource(made, UNSTATED, frames=PaintedFrames())


# Geometry --------------------------------------------------------------------------------------


@fault("D301")
def geodesic_shorter_than_the_straight_line() -> ListSource:
    straight = math.dist(PLAIN[7].start_pose.position, PLAIN[7].goals[0].position)
    assert straight > 0.5
    return one_of(with_metadata(PLAIN[7], info={"geodesic_distance": straight - 0.1}))


@fault("D302")
def goal_that_cannot_be_reached() -> ListSource:
    return one_of(with_metadata(PLAIN[7], info={"geodesic_distance": math.inf}))


@fault("D303", also="D203 D304")
def goal_on_another_floor() -> ListSource:
    x, y, z = PLAIN[7].goals[0].position
    info = {"geodesic_distance": 9.0}
    return one_of(with_metadata(replace(PLAIN[7], goals=(Goal((x, y + 3, z), 0.3),)), info=info))


@fault("D304")
def path_that_ends_far_from_the_goal() -> ListSource:
    return one_of(replace(PLAIN[7], reference_path=PLAIN[7].reference_path[:-1]))


@fault("D305")
def path_that_begins_elsewhere() -> ListSource:
    return one_of(replace(PLAIN[7], reference_path=PLAIN[7].reference_path[1:]))


@fault("D306")
def start_within_the_radius() -> ListSource:
    goal = replace(PLAIN[7].goals[0], radius_m=7.0)
    return one_of(replace(PLAIN[7], goals=(goal,)))


@fault("D307")
def episode_without_goals() -> ListSource:
    return one_of(replace(PLAIN[7], goals=()))


@fault("D308")
def episode_longer_than_the_limit() -> ListSource:
    actions = PLAIN[7].metadata["ground_truth"]["actions"]
    return one_of(with_truth(PLAIN[7], actions=[2, 3] * 240 + actions))
