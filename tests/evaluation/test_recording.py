"""Recording against kills, worker counts and its own promises about labels and frames."""

from dataclasses import replace
from itertools import pairwise

import pytest
from worlds import SMALL_CAMERA, body_of, episodes_of, first_scene, record_config

from vla_nav.actions.decisions import DecisionRule, cut
from vla_nav.episodes.frames import frame_key
from vla_nav.episodes.types import STOP, Goal
from vla_nav.errors import UserError
from vla_nav.evaluation.recording import Recorded, RecordSettings, Skipped, record_episode
from vla_nav.simulators.mesh import MeshSimulator

RULE = DecisionRule.parse("turn_then_forward(4)")


@pytest.fixture(scope="module")
def config(world):
    return record_config(world)


@pytest.fixture(scope="module")
def simulator(config):
    return first_scene(config)


def settings_of(config, **changes):
    return RecordSettings(body_of(config), RULE, **{"seed": 0, **changes})


def test_an_undisturbed_expert_executes_its_labels_and_ends_with_one_stop(config, simulator):
    episode = episodes_of(config)[0][0]
    got = record_episode(episode, simulator, settings_of(config))
    assert isinstance(got, Recorded)
    steps = got.episode.steps
    for step in steps:
        (label,) = step.labels
        assert step.executed == cut(label.primitives, RULE)
        assert len(label.primitives) == len(label.poses) <= 12
    for step, after in pairwise(steps):
        assert after.pose == step.labels[0].poses[len(step.executed) - 1]
    assert steps[-1].executed == (STOP,)
    assert sum(STOP in step.executed for step in steps) == 1
    goal = episode.goals[0].position
    assert simulator.geodesic_distance(steps[-1].pose.position, [goal]) <= 0.5


def test_every_frame_is_the_view_at_its_step(config, simulator):
    episode = episodes_of(config)[0][0]
    got = record_episode(episode, simulator, settings_of(config, perturbation=0.3))
    named = {key for step in got.episode.steps for key in step.frames.values()}
    assert named == set(got.frames)
    for step in got.episode.steps:
        simulator.place(step.pose)
        view = simulator.observe().rgb["front"]
        assert frame_key(view) == step.frames["front"]


def test_a_perturbed_expert_strays_but_its_labels_do_not(config, simulator):
    episodes = episodes_of(config)[0][:5]
    strayed = total = 0
    for episode in episodes:
        got = record_episode(episode, simulator, settings_of(config, perturbation=0.3))
        assert isinstance(got, Recorded)
        expert = MeshSimulator.move
        for step in got.episode.steps:
            (label,) = step.labels
            pose = step.pose
            for primitive, after in zip(label.primitives, label.poses, strict=True):
                if primitive != STOP:
                    pose = expert(simulator, pose, primitive).pose
                assert pose == after  # the label's poses follow from its own actions
            strayed += step.executed != cut(label.primitives, RULE)
            total += 1
        assert got.episode.steps[-1].executed == (STOP,)
    assert 0.1 < strayed / total < 0.45


def test_an_episode_does_not_depend_on_what_was_recorded_before_it(config, simulator):
    episodes = episodes_of(config)[0][:3]
    options = settings_of(config, perturbation=0.3, height_range_m=0.2, pitch_range_deg=10)
    forward = [record_episode(episode, simulator, options) for episode in episodes]
    backward = [record_episode(episode, simulator, options) for episode in episodes[::-1]][::-1]
    for a, b in zip(forward, backward, strict=True):
        assert a.episode.steps == b.episode.steps
        assert a.episode.embodiment == b.episode.embodiment
        assert a.frames.keys() == b.frames.keys()
    assert forward[0].episode.steps != forward[1].episode.steps
    other = record_episode(episodes[0], simulator, replace(options, seed=1))
    assert other.episode.steps != forward[0].episode.steps


def test_camera_height_and_pitch_vary_within_their_ranges_and_are_stored(config, simulator):
    episodes = episodes_of(config)[0][:5]
    options = settings_of(config, height_range_m=0.2, pitch_range_deg=10.0)
    bodies = [record_episode(e, simulator, options).episode.embodiment for e in episodes]
    heights = [body.cameras[0].height_m for body in bodies]
    pitches = [body.cameras[0].pitch_deg for body in bodies]
    assert len(set(heights)) == len(set(pitches)) == 5
    assert all(1.05 <= height <= 1.45 for height in heights)
    assert all(-10 <= pitch <= 10 for pitch in pitches)
    got = record_episode(episodes[0], simulator, options)
    step = got.episode.steps[0]
    simulator.embodiment = got.episode.embodiment
    simulator.place(step.pose)
    assert frame_key(simulator.observe().rgb["front"]) == step.frames["front"]


def test_depth_gives_pointing_targets_that_lie_on_the_remaining_path(config, world):
    with_depth = record_config(world, SMALL_CAMERA.replace("false", "true"))
    episodes, scenes = episodes_of(with_depth)
    loaded = MeshSimulator(body_of(with_depth))
    loaded.load_scene(scenes[episodes[0].scene_id])
    got = record_episode(episodes[0], loaded, settings_of(with_depth))
    pixels = [step.labels[0].pixel for step in got.episode.steps]
    assert any(pixel is not None for pixel in pixels)
    for pixel in filter(None, pixels):
        assert pixel.camera == "front"
        assert 0 <= pixel.u <= 1
        assert 0 <= pixel.v <= 1
    assert {"front", "front.depth"} == set(got.episode.steps[0].frames)


def test_an_unreachable_goal_and_an_unwalkable_start_are_skipped_with_the_reason(config, simulator):
    episode = episodes_of(config)[0][0]
    nowhere = replace(episode, goals=(Goal((500.0, 0.0, 500.0), 3.0),))
    start = replace(episode.start_pose, position=(500.0, 0.0, 500.0))
    for bad, word in ((nowhere, "path"), (replace(episode, start_pose=start), "walkable")):
        got = record_episode(bad, simulator, settings_of(config))
        assert isinstance(got, Skipped)
        assert word in got.reason
    slow = settings_of(config, max_primitives=3)
    assert "no STOP within 3" in record_episode(episode, simulator, slow).reason


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"perturbation": 1.0}, "record.perturbation"),
        ({"horizon": 5}, "record.horizon"),
        ({"stop_radius_m": 0.0}, "record.stop_radius_m"),
        ({"height_range_m": 1.25}, "record.height_range_m"),
    ],
)
def test_settings_that_cannot_work_are_named(config, changes, key):
    with pytest.raises(UserError, match=key):
        settings_of(config, **changes)
