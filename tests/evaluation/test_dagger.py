"""DAgger: who executes, what is taught, and that nothing depends on slots, workers or kills."""

import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import pytest
from worlds import body_of, episodes_of, first_scene, record_config

from vla_nav.actions import WaypointSpace
from vla_nav.actions.decisions import DecisionRule, cut
from vla_nav.actions.types import Action, Stop, Waypoint
from vla_nav.episodes.rollouts import further_walk
from vla_nav.episodes.types import STOP, Goal
from vla_nav.errors import UserError
from vla_nav.evaluation.dagger import ABOUT, Mixture, record_rollouts
from vla_nav.evaluation.recording import Recorded, RecordSettings, Skipped, record_episode
from vla_nav.simulators.client import WorkerProcess
from vla_nav.simulators.protocol import Observation
from vla_nav.simulators.remote import RemoteSimulator

RULE = DecisionRule.parse("turn_then_forward(4)")


@pytest.fixture(scope="module")
def config(world):
    return record_config(world)


@pytest.fixture(scope="module")
def simulator(config):
    return first_scene(config)


@pytest.fixture(scope="module")
def episodes(config):
    """Rollouts of the first round of the five episodes of the first house."""
    everything = episodes_of(config)[0]
    here = [e for e in everything if e.scene_id == everything[0].scene_id]
    return [further_walk(episode, 1) for episode in here]


class Wanderer:
    """A policy that circles to the left and stops after a number of decisions; it notes what it
    was shown and told."""

    def __init__(self, *, stops_after: int = 1000, room: int = 1000):
        self.space = WaypointSpace(decision=RULE)
        self.batch_sizes: list[int] = []
        self.shown: dict[str, int] = {}
        self.noted: dict[str, list[tuple[int, ...]]] = {}
        self._names: dict[int, str] = {}
        self._stops_after, self._room = stops_after, room

    def reset(self, slot: int, instruction: str, *, name: str) -> None:
        self._names[slot] = name
        self.shown[name], self.noted[name] = 0, []

    def has_room(self, slot: int) -> bool:
        return self.shown[self._names[slot]] < self._room

    def act(self, observations: Mapping[int, Observation]) -> dict[int, Action]:
        self.batch_sizes.append(len(observations))
        actions: dict[int, Action] = {}
        for slot in observations:
            name = self._names[slot]
            self.shown[name] += 1
            is_over = self.shown[name] >= self._stops_after
            actions[slot] = Stop() if is_over else Waypoint(0.2, 0.45, 1.0)
        return actions

    def note_executed(self, slot: int, primitives: tuple[int, ...]) -> None:
        self.noted[self._names[slot]].append(primitives)


def settings_of(config, **changes):
    return RecordSettings(body_of(config), RULE, **{"seed": 0, "max_primitives": 60, **changes})


def walks(config, simulator, episodes, mixture, policy=None, **changes):
    policy = policy or Wanderer()
    found = record_rollouts(episodes, simulator, settings_of(config, **changes), mixture, policy)
    return list(found)


def test_the_expert_labels_every_state_whoever_executes(config, simulator, episodes):
    policy = Wanderer(stops_after=8)
    for got in walks(config, simulator, episodes, Mixture(0.5), policy):
        assert isinstance(got, Recorded)
        by = got.episode.metadata[ABOUT]["by"]
        steps = got.episode.steps
        assert len(by) == len(steps)
        policy_steps = 0
        for number, step in enumerate(steps):
            (label,) = step.labels
            pose = step.pose
            for primitive, after in zip(label.primitives, label.poses, strict=True):
                pose = pose if primitive == STOP else simulator.move(pose, primitive).pose
                assert pose == after  # from this very state
            decision = cut(label.primitives, RULE)
            if by[number] == "e":
                assert step.executed == decision
            else:
                policy_steps += step.executed != decision
        for step, after in pairwise(steps):
            pose = step.pose
            for primitive in step.executed:
                pose = simulator.move(pose, primitive).pose
            assert pose == after.pose  # the next state follows from what was executed
        assert set(got.frames) == {key for s in steps for key in s.frames.values()}
        if "p" in by:
            assert policy_steps > 0
        # The policy saw every state, and was told of each decision that was not its own.
        name = "/".join(got.episode.key)
        assert policy.shown[name] == len(steps)
        noted = [s.executed for s, who in zip(steps, by, strict=True) if who == "e"]
        assert policy.noted[name] == noted


def test_beta_is_the_share_of_the_expert_per_step_or_per_episode(config, simulator, episodes):
    for mixture in ("step", "episode"):
        alone = walks(config, simulator, episodes, Mixture(1.0, mixture), max_primitives=500)
        for got, episode in zip(alone, episodes, strict=True):
            recorded = record_episode(episode, simulator, settings_of(config, max_primitives=500))
            assert got.episode.steps == recorded.episode.steps  # beta 1 is the expert's recording
            assert set(got.episode.metadata[ABOUT]["by"]) == {"e"}
        for got in walks(config, simulator, episodes, Mixture(0.0, mixture)):
            assert set(got.episode.metadata[ABOUT]["by"]) == {"p"}
    rounds = range(1, 9)
    by = [
        got.episode.metadata[ABOUT]["by"]
        for number in rounds
        for got in walks(config, simulator, episodes, Mixture(0.7, "step", number))
    ]
    share = sum(b.count("e") for b in by) / sum(map(len, by))
    assert 0.6 < share < 0.8
    whole = [
        got.episode.metadata[ABOUT]["by"]
        for number in rounds
        for got in walks(config, simulator, episodes, Mixture(0.7, "episode", number))
    ]
    assert all(len(set(b)) == 1 for b in whole)
    assert 0.5 < sum(b[0] == "e" for b in whole) / len(whole) < 0.9


def test_slots_and_order_do_not_change_a_rollout(config, simulator, episodes):
    options = {"height_range_m": 0.2, "pitch_range_deg": 10, "perturbation": 0.2}
    alone = walks(config, simulator, episodes, Mixture(0.5), **options)
    policy = Wanderer()
    many = walks(config, simulator, episodes, Mixture(0.5, num_slots=3), policy, **options)
    assert max(policy.batch_sizes) == 3
    backward = walks(config, simulator, episodes[::-1], Mixture(0.5), **options)[::-1]
    for a, b, c in zip(alone, many, backward, strict=True):
        assert a.episode.steps == b.episode.steps == c.episode.steps
        assert a.episode.key == b.episode.key == c.episode.key
        assert a.episode.embodiment == b.episode.embodiment
    other = walks(config, simulator, episodes, Mixture(0.5, round=2), **options)
    assert [a.episode.steps for a in alone] != [a.episode.steps for a in other]
    # Every round sees through the same cameras, or its walks would share nothing.
    assert [a.episode.embodiment for a in alone] == [a.episode.embodiment for a in other]


def test_walks_that_never_stop_are_kept_and_say_so(config, simulator, episodes):
    for got in walks(config, simulator, episodes, Mixture(0.0)):
        assert "no STOP within 60" in got.episode.metadata[ABOUT]["end"]
        assert sum(len(step.executed) for step in got.episode.steps) == 60
        assert got.episode.steps[0].pose == got.episode.start_pose
    for got in walks(config, simulator, episodes, Mixture(0.0), Wanderer(stops_after=3)):
        assert got.episode.metadata[ABOUT]["end"] == "STOP"
        assert got.episode.steps[-1].executed == (STOP,)
        assert len(got.episode.steps) == 3
        assert got.episode.steps[-1].labels[0].primitives[0] != STOP  # it should have gone on


def test_a_full_context_leaves_the_rest_to_the_expert(config, simulator, episodes):
    policy = Wanderer(room=4)
    for got in walks(config, simulator, episodes, Mixture(0.0), policy, max_primitives=500):
        about = got.episode.metadata[ABOUT]
        assert about["full_from"] == 4
        assert about["by"] == "p" * 4 + "e" * (len(got.episode.steps) - 4)
        assert about["end"] == "STOP"


def test_an_episode_without_a_way_is_skipped_with_the_reason(config, simulator, episodes):
    nowhere = replace(episodes[0], goals=(Goal((500.0, 0.0, 500.0), 3.0),))
    first, second = walks(config, simulator, [nowhere, episodes[1]], Mixture(0.5))
    assert isinstance(first, Skipped)
    assert "no path" in first.reason
    assert isinstance(second, Recorded)


class Mortal(RemoteSimulator):
    """A simulator in a process of its own, killed before some of its looks."""

    def __init__(self, body) -> None:
        def started(body):
            return WorkerProcess("mesh", body, {})

        super().__init__(started(body), body, backend="mesh", restart=started)
        self.killed_at: set[int] = set()
        self.num_looks = 0

    def observe(self, *, semantic=False):
        self.num_looks += 1
        if self.num_looks in self.killed_at:
            os.kill(self._worker.pid, signal.SIGKILL)
        return super().observe(semantic=semantic)


def test_walks_survive_the_death_of_their_simulator(config, simulator, episodes):
    options = {"height_range_m": 0.2, "perturbation": 0.2}
    whole = walks(config, simulator, episodes, Mixture(0.5), **options)
    mortal = Mortal(body_of(config))
    mortal.load_scene(episodes_of(config)[1][episodes[0].scene_id])
    try:
        mortal.killed_at = {1, 10, 31}  # each over another walk, with others under way
        got = walks(config, mortal, episodes, Mixture(0.5, num_slots=3), **options)
        assert [one.episode for one in got] == [one.episode for one in whole]
        mortal.killed_at = {mortal.num_looks + 2, mortal.num_looks + 4}
        first, *others = walks(config, mortal, episodes, Mixture(0.5), **options)
        assert isinstance(first, Skipped)
        assert first.reason.startswith("its simulator died 2 times: simulator worker")
        assert [one.episode for one in others] == [one.episode for one in whole[1:]]
    finally:
        mortal.close()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"beta": 1.5}, r"record\.beta=1\.5.*0 to 1"),
        ({"beta": 0.5, "mixture": "steps"}, r"record\.mixture 'steps' \(did you mean 'step'\?\)"),
        ({"beta": 0.5, "round": 0}, r"record\.round=0"),
        ({"beta": 0.5, "num_slots": 0}, r"record\.num_slots=0"),
    ],
)
def test_wrong_mixtures_are_refused(values, message):
    with pytest.raises(UserError, match=message):
        Mixture(**values)


# The command, with a real policy of random weights.
