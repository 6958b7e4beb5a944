"""Every code of the data checks: found on one made fault and alone, not found without it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.episodes.checked_sets import (
    SCENE,
    UNSTATED,
    ListSource,
    PaintedFrames,
    episode,
    with_metadata,
    with_step,
)
from tests.episodes.made_episodes import body
from tests.episodes.made_episodes import episodes as any_episodes
from tests.episodes.made_faults import FAULTS, NUM, PLAIN, RECORDED, one_of
from tests.episodes.made_set_faults import like_r2r
from tests.episodes.made_walk_faults import along_the_path
from vla_nav.episodes.checks import CODES, SEVERITIES, DataReport, check_source
from vla_nav.episodes.checks.findings import MAX_EXAMPLES
from vla_nav.episodes.types import Episode, Pose


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("scenes")
    (root / SCENE).parent.mkdir(parents=True)
    (root / SCENE).write_bytes(b"")
    return root


def codes(report: DataReport) -> set[str]:
    return {finding.code for finding in report.findings}


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
