"""Every code of the data checks: found on one made fault and alone, not found without it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.episodes.checked_sets import (
    BODY,
    SCENE,
    STATED,
    UNSTATED,
    ListSource,
    PaintedFrames,
    episode,
    recorded,
    with_metadata,
    with_step,
    with_truth,
)
from tests.episodes.made_episodes import body
from tests.episodes.made_episodes import episodes as any_episodes
from vla_nav.episodes.checks import CODES, SEVERITIES, DataReport, check_source
from vla_nav.episodes.checks.findings import MAX_EXAMPLES
from vla_nav.episodes.types import Camera, Episode, Goal, Pose

NUM = 24
PLAIN = [episode(number) for number in range(NUM)]
RECORDED = [recorded(number) for number in range(NUM)]
Fault = Callable[[], ListSource]
FAULTS: dict[str, tuple[Fault, int, set[str]]] = {}  # the set, episodes with it, other codes


def fault(code: str, count: int = 1, *, also: str = "") -> Callable[[Fault], Fault]:
    def keep(make: Fault) -> Fault:
        FAULTS[code] = make, count, set(also.split())
        return make

    return keep


def one_of(changed: Episode, at: int = 7, base: list[Episode] = PLAIN) -> ListSource:
    """The clean set with one episode exchanged."""
    frames = PaintedFrames() if base[0].steps else None
    return ListSource([*base[:at], changed, *base[at + 1 :]], frames=frames)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("scenes")
    (root / SCENE).parent.mkdir(parents=True)
    (root / SCENE).write_bytes(b"")
    return root


def codes(report: DataReport) -> set[str]:
    return {finding.code for finding in report.findings}


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


# Identity --------------------------------------------------------------------------------------


@fault("D401")
def episode_id_that_occurs_twice() -> ListSource:
    return one_of(replace(PLAIN[7], episode_id="3"))


@fault("D402")
def episode_under_two_ids() -> ListSource:
    return one_of(replace(PLAIN[3], episode_id="again"))


@fault("D403")
def episode_of_another_split() -> ListSource:
    return one_of(replace(PLAIN[7], split="train"))


@fault("D404", also="D411")
def guide_read_as_a_follower() -> ListSource:
    info = {**PLAIN[7].metadata["info"], "role": "guide"}
    return one_of(with_metadata(replace(PLAIN[7], role="follower"), info=info))


@fault("D411", NUM)
def guides_and_followers() -> ListSource:
    return one_of(replace(PLAIN[7], role="follower"))


@fault("D405")
def english_tag_on_a_hindi_text() -> ListSource:
    text = "\u0926\u0930\u0935\u093e\u091c\u0947 \u092a\u0930 \u0930\u0941\u0915\u093f\u090f"
    about = {"language": "en-IN"}
    return one_of(with_metadata(replace(PLAIN[7], instruction=text), instruction=about))


@fault("D406", NUM)
def two_languages() -> ListSource:
    tags = ["en-IN", "en-US"]
    return ListSource(
        [with_metadata(e, instruction={"language": tags[i % 2]}) for i, e in enumerate(PLAIN)]
    )


@fault("D407")
def instruction_that_is_empty() -> ListSource:
    return one_of(replace(PLAIN[7], instruction=" \n"))


# Frames ----------------------------------------------------------------------------------------


@fault("D501")
def step_without_its_frame() -> ListSource:
    return one_of(with_step(RECORDED[7], 3, frames={}), base=RECORDED)


@fault("D502")
def frame_that_is_not_there() -> ListSource:
    return one_of(with_step(RECORDED[1], 0, frames={"front": "gone.png"}), 1, RECORDED)


@fault("D503")
def offsets_that_overlap() -> ListSource:
    return one_of(recorded(7, first_frame=601), base=RECORDED)


@fault("D504")
def offsets_out_of_order() -> ListSource:
    return one_of(recorded(7, first_frame=90), at=6, base=[*RECORDED[:1], *RECORDED[2:]])


@fault("D505")
def frames_that_go_back() -> ListSource:
    frames = {"front": "videos/front.mp4#700"}
    return one_of(with_step(RECORDED[7], 3, frames=frames), base=RECORDED)


@fault("D506")
def field_of_view_of_180_degrees() -> ListSource:
    wide = replace(BODY, cameras=(Camera("front", 8, 6, 180.0, 1.25),))
    return one_of(replace(RECORDED[7], embodiment=wide), base=RECORDED)


@fault("D507", 7)  # the sampled ones: 0, 1, 2, 3, 5, 9, 17
def frames_of_another_size() -> ListSource:
    return ListSource(RECORDED, frames=PaintedFrames((6, 8)))


@fault("D508", 7)
def frames_of_one_colour() -> ListSource:
    return ListSource(RECORDED, frames=PaintedFrames(is_blank=True))


# Scenes and release ----------------------------------------------------------------------------


@fault("D601")
def scene_that_is_missing() -> ListSource:
    return one_of(replace(PLAIN[7], scene_id="houses/b/b.glb"))


@fault("D603")
def scene_with_a_path_prefix() -> ListSource:
    return one_of(replace(PLAIN[7], scene_id=f"data/scene_datasets/{SCENE}"))


def like_r2r(plain: Episode, off_rad: float) -> Episode:
    pose = Pose.from_yaw(plain.start_pose.position, plain.start_pose.yaw_rad + off_rad)
    metadata = {"info": plain.metadata["info"], "trajectory_id": 3}
    return replace(plain, scene_id="mp3d/a/a.glb", start_pose=pose, metadata=metadata)


@fault("D701", NUM, also="D202 D601")
def headings_that_are_no_multiples_of_30() -> ListSource:
    return ListSource([like_r2r(e, 0.1 + 0.07 * (n % 5)) for n, e in enumerate(PLAIN)])


@fault("D702", also="D202 D601")
def split_that_is_not_complete() -> ListSource:
    made = [replace(like_r2r(e, 0.0), split="val_unseen") for e in PLAIN]
    return ListSource(made, split="val_unseen")


@fault("D002")
def no_episode() -> ListSource:
    return ListSource([])


# -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", sorted(FAULTS))
def test_a_made_fault_is_found_counted_and_named(code: str, scenes: Path) -> None:
    make, count, also = FAULTS[code]
    report = check_source(make(), scenes=scenes)
    assert codes(report) == {code} | also
    finding = next(finding for finding in report.findings if finding.code == code)
    assert finding.count == count
    assert 1 <= len(finding.examples) <= MAX_EXAMPLES
    assert finding.severity == CODES[code].severity
    assert report.num_errors == sum(CODES[c].severity == "error" for c in {code} | also)
    json.dumps(report.as_json(), allow_nan=False)


@pytest.mark.parametrize(
    "source",
    [
        ListSource(PLAIN),
        ListSource(RECORDED, frames=PaintedFrames()),
        ListSource([like_r2r(e, 0.0) for e in PLAIN], facts=UNSTATED),
    ],
    ids=["ground truth", "recorded", "like R2R-CE"],
)
def test_nothing_is_found_without_a_fault(source: ListSource, tmp_path: Path) -> None:
    for scene in {e.scene_id for e in source.episodes}:
        (tmp_path / scene).parent.mkdir(parents=True)
        (tmp_path / scene).write_bytes(b"")
    assert codes(check_source(source, scenes=tmp_path)) <= {"D202"}


def test_turn_and_step_are_inferred_whatever_is_stated() -> None:
    for turn, step in ((10.0, 0.25), (22.5, 0.15), (30.0, 0.5)):
        made = [episode(number, turn_deg=turn, step_m=step) for number in range(NUM)]
        facts = check_source(ListSource(made, UNSTATED)).facts
        assert facts["inferred_turn_deg"] == pytest.approx(turn, abs=0.05)
        assert facts["inferred_step_m"] == pytest.approx(step, abs=0.001)


def test_yaws_of_the_wrong_sign_are_told_from_right_ones() -> None:
    assert "D105" in codes(check_source(along_the_path(sign=-1, off_rad=0.0)))
    assert "D105" not in codes(check_source(along_the_path(sign=1, off_rad=0.0)))


def test_dead_reckoned_poses_prove_nothing_about_the_turn_angle() -> None:
    made = [with_metadata(e, poses="dead_reckoned") for e in RECORDED]
    report = check_source(ListSource(made, UNSTATED, frames=PaintedFrames()))
    assert report.facts["inferred_turn_deg"] is None
    assert codes(report) == {"D222", "D602"}


def test_leaks_between_splits_are_found() -> None:
    moved = {"dataset": "made", "split": "train", "episode_id": "900"}
    train = ListSource([replace(PLAIN[5], **moved), episode(500)], split="train")
    unseen = ListSource([replace(e, split="val_unseen") for e in PLAIN], split="val_unseen")
    found = {f.code: f for f in check_source(unseen, compare=[train]).findings}
    assert found["D408"].count == 1
    assert found["D408"].examples[0].episode == "900"
    assert found["D409"].count == 2  # both episodes are in the scene
    seen = ListSource([replace(e, split="val_seen") for e in PLAIN[:5]], split="val_seen")
    assert codes(check_source(seen, compare=[train])) == {"D602"}


def test_duplicates_are_remembered_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    from vla_nav.episodes.checks import identity

    monkeypatch.setattr(identity.IdentityCheck.__init__, "__kwdefaults__", {"max_keys": 10})
    assert codes(check_source(ListSource([*PLAIN, PLAIN[20]]))) == {"D410", "D602"}
    assert "D401" in codes(check_source(ListSource([*PLAIN[:8], PLAIN[2]])))


def test_frames_without_actions_are_no_missing_stop(scenes: Path) -> None:
    def watched(plain: Episode) -> Episode:
        steps = tuple(replace(step, executed=(), labels=()) for step in plain.steps)
        return with_metadata(replace(plain, steps=steps), poses="unknown")

    report = check_source(
        ListSource([watched(e) for e in RECORDED], frames=PaintedFrames()), scenes=scenes
    )
    assert codes(report) == {"D202"}


@pytest.mark.parametrize("key", ["surplus_frames", "picture_gaps", "missing_video"])
def test_what_readers_count_of_frames_is_a_finding(key: str, scenes: Path) -> None:
    changed = with_metadata(RECORDED[7], **{key: 2})
    assert codes(check_source(one_of(changed, base=RECORDED), scenes=scenes)) == {"D501"}


def test_two_instructions_of_one_video_are_no_overlap(scenes: Path) -> None:
    made = []
    for plain in RECORDED:
        second = replace(plain, episode_id=f"{plain.episode_id}_1", instruction="Another way.")
        made += [plain, second]
    assert codes(check_source(ListSource(made, frames=PaintedFrames()), scenes=scenes)) == set()


def test_examples_are_few_and_on_one_line() -> None:
    made = [replace(e, scene_id=f"../{i}\n<b>") for i, e in enumerate(PLAIN)]
    finding = next(f for f in check_source(ListSource(made)).findings if f.code == "D603")
    assert finding.count == NUM
    assert len(finding.examples) == MAX_EXAMPLES
    assert all("\n" not in example.value for example in finding.examples)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_no_episode_that_the_types_allow_breaks_the_checks(data: st.DataObject) -> None:
    made = [data.draw(any_episodes(body(), str(number)))[0] for number in range(3)]
    hostile = {
        "info": {"geodesic_distance": data.draw(st.sampled_from([10**400, -1, None, True, "x"]))},
        "ground_truth": data.draw(
            st.sampled_from(
                [
                    None,
                    [],
                    {},
                    {"actions": "FFS", "locations": [[1e308, 0, 0], [-1e308, 0, 0]]},
                    {"actions": [1, 0], "locations": [[1e308, 0, 0], [-1e308, 0, 0]]},
                    {"actions": [1, True, 0, 10**30], "locations": [[10**400, 0, 0]]},
                    {"actions": [1, 0], "locations": [[0, 0], [1]], "forward_steps": "two"},
                ]
            )
        ),
        "instruction": data.draw(st.sampled_from([{"language": 7}, {"language": "hi"}, "text", 3])),
    }
    made.append(replace(made[0], steps=(), episode_id="9", metadata=hostile))
    made.append(with_step(RECORDED[0], 0, executed=(10**30, -5)))
    made.append(replace(PLAIN[0], start_pose=Pose((math.inf, 0, math.nan), (0, math.nan, 0, 1))))
    report = check_source(ListSource(made, UNSTATED, split="train"))
    json.dumps(report.as_json(), allow_nan=False)
    assert report.facts["episodes"] == 6


def test_every_code_has_a_made_fault() -> None:
    elsewhere = {"D001", "D003", "D408", "D409", "D410", "D509", "D602", "D604", "D605"}
    elsewhere |= {"D606"}
    assert set(FAULTS) | elsewhere == set(CODES)
    assert not set(FAULTS) & elsewhere
    assert all(code.severity in SEVERITIES for code in CODES.values())
