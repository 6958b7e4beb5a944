"""Every format: read, written as LeRobot v3, read again: equal, and every pixel with it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.episodes.fixtures import r2r_ce
from tests.episodes.fixtures.every_format import VARIANTS, Write
from tests.episodes.made_episodes import same
from vla_nav.episodes.formats import open_source
from vla_nav.episodes.frames import stored_frame
from vla_nav.episodes.lerobot_reader import LeRobotDataset
from vla_nav.episodes.types import MOVE_FORWARD, STOP, Camera, Embodiment, Episode
from vla_nav.errors import UserError
from vla_nav.evaluation.convert_job import ConvertSettings
from vla_nav.evaluation.convert_run import convert
from vla_nav.evaluation.rendered_frames import RenderedFrames
from vla_nav.evaluation.source_body import StatedBody

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
EVERYTHING = StatedBody(hfov_deg=79.0, camera_height_m=1.25)


def added(facts: Any) -> StatedBody:
    """What the format does not state."""
    cameras = StatedBody() if facts.embodiment is not None else EVERYTHING
    turn = 15.0 if facts.turn_deg is None else None
    return replace(cameras, turn_deg=turn, step_m=0.25 if facts.step_m is None else None)


def without_frames(episode: Episode) -> Episode:
    return replace(episode, steps=tuple(replace(step, frames={}) for step in episode.steps))


@pytest.mark.parametrize("write", VARIANTS.values(), ids=VARIANTS.keys())
def test_every_format_comes_back_equal(write: Write, tmp_path: Path) -> None:
    expected = write(tmp_path / "in")
    role = expected.episodes[0].role
    source = open_source(expected.root, split=expected.split, format=expected.format, role=role)
    root = tmp_path / "out/recorded" / expected.split
    settings = ConvertSettings(
        str(expected.root),
        expected.split,
        root,
        format=expected.format,
        role=role,
        body=added(source.facts),
    )
    summary = convert(settings)
    assert summary.skipped == ()
    again = LeRobotDataset(root)
    before = list(source)
    assert len(before) == len(again) > 0
    for got, want in zip(again, before, strict=True):
        bare = [
            replace(e, steps=tuple(replace(s, frames={}) for s in e.steps)) for e in (got, want)
        ]
        assert same(*bare)
        for ours, theirs in zip(got.steps, want.steps, strict=True):
            assert set(ours.frames) == set(theirs.frames)
            for name, key in theirs.frames.items():
                pixels = stored_frame(source.frames.read(key))
                assert np.array_equal(again.frames.read(ours.frames[name]), pixels)
    assert convert(settings).num_before == len(again)
    card = json.loads((root / "card.json").read_text())
    assert card["source"]["format"] == expected.format
    has_frames = any(step.frames for episode in before for step in episode.steps)
    assert ("There are no frames" in " ".join(card["rules"])) != has_frames
    assert card["turn_deg"] == (source.facts.turn_deg or 15.0)
    assert open_source(tmp_path / "out", split=expected.split).facts.format == "recorded"


def test_what_a_source_does_not_state_is_asked_for_by_its_key(tmp_path: Path) -> None:
    expected = VARIANTS["lerobot_v2"](tmp_path / "in")
    settings = ConvertSettings(str(expected.root), expected.split, tmp_path / "out")
    with pytest.raises(UserError) as caught:
        convert(settings)
    for key in ("turn_deg", "step_m", "hfov_deg", "camera_height_m"):
        assert f"convert.body.{key}=..." in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_turn_angle_that_contradicts_the_source_is_refused(tmp_path: Path) -> None:
    expected = VARIANTS["r2r_ce"](tmp_path / "in")
    body = StatedBody(turn_deg=30.0)
    settings = ConvertSettings(str(expected.root), expected.split, tmp_path / "out", body=body)
    with pytest.raises(UserError, match=r"states turn_deg=15, convert.body.turn_deg is 30"):
        convert(settings)


def test_ground_truth_becomes_steps_and_an_episode_without_it_is_told(tmp_path: Path) -> None:
    expected = r2r_ce.write(tmp_path / "in")
    root = tmp_path / "out/recorded" / expected.split
    common: dict[str, Any] = {"steps": "ground_truth", "decision": "turn_then_forward(4)"}
    convert(ConvertSettings(str(expected.root), expected.split, root, **common))
    data = LeRobotDataset(root)
    assert data.conventions.decision == "turn_then_forward(4)"
    for episode, wanted in zip(data, expected.episodes, strict=True):
        done = [primitive for step in episode.steps for primitive in step.executed]
        assert tuple(done) == wanted.actions
        assert episode.steps[-1].executed == (STOP,)
        assert all(step.labels[0].primitives == step.executed for step in episode.steps)
        assert all(step.executed.count(MOVE_FORWARD) <= 4 for step in episode.steps)
    bare = r2r_ce.write(tmp_path / "bare", has_gt=False)
    settings = ConvertSettings(str(bare.root), bare.split, tmp_path / "none", steps="ground_truth")
    with pytest.raises(UserError, match=r"none of its 3 episodes can be converted.*ground truth"):
        convert(settings)


def test_poses_without_pixels_are_rendered_as_recorded(world: Path, tmp_path: Path) -> None:
    """Recorded frames, and frames rendered anew from the recorded poses, are the same pixels."""
    from worlds import SMALL_CAMERA, run_command

    options = [f"data.path={world}", "data.split=val_unseen", SMALL_CAMERA, "num_workers=0"]
    recorded = f"data.recorded={tmp_path}/rec/recorded/val_unseen"
    code = run_command(
        "record", *options, recorded, "record.num_episodes=3", f"paths.output_dir={tmp_path}/run"
    )
    assert code == 0
    converted = [f"data.path={tmp_path}/rec", *options[1:], f"convert.to={tmp_path}/again"]
    code = run_command(
        "convert",
        *converted,
        "convert.render=true",
        f"data.scenes={world}/scenes",
        f"paths.output_dir={tmp_path}/run",
    )
    assert code == 0
    before = LeRobotDataset(tmp_path / "rec/recorded/val_unseen")
    after = LeRobotDataset(tmp_path / "again/recorded/val_unseen")
    assert len(after) == len(before) == 3
    for got, want in zip(after, before, strict=True):
        assert same(got, want)  # frame keys are digests of the pixels
    assert "mesh simulator" in (after.root / "README.md").read_text()


def test_a_renderer_refuses_what_is_no_key_of_a_pose() -> None:
    class Nothing:
        embodiment = Embodiment((Camera("front", 4, 4, 90.0, 1.0),), 0.1, 1.5, 15.0, 0.25, True)

    frames = RenderedFrames(Nothing(), {})
    for key in ("", "{}", "rgb/001.jpg", '{"scene": 3}', "[1, 2]"):
        with pytest.raises(UserError, match="is not the key of a pose"):
            frames.read(key)
