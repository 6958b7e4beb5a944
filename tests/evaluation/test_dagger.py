"""DAgger: who executes, what is taught, and that nothing depends on slots, workers or kills."""

import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from worlds import (
    SMALL_CAMERA,
    await_end,
    body_of,
    children_of,
    episodes_of,
    kill_when,
    record_config,
    run_command,
    start_command,
)

from vla_nav.actions import WaypointSpace
from vla_nav.actions.decisions import DecisionRule, cut
from vla_nav.actions.types import Action, Stop, Waypoint
from vla_nav.episodes.lerobot_reader import LeRobotDataset
from vla_nav.episodes.rollouts import further_walk
from vla_nav.episodes.types import STOP, Goal
from vla_nav.errors import UserError
from vla_nav.evaluation.dagger import ABOUT, Mixture, record_rollouts
from vla_nav.evaluation.dagger_run import Dagger, require_own_folder
from vla_nav.evaluation.record_run import record_from
from vla_nav.evaluation.recording import Recorded, RecordSettings, Skipped, record_episode
from vla_nav.models.assembly import ModelConfig, assemble
from vla_nav.models.checkpoint import save_policy
from vla_nav.models.prompt import Layout
from vla_nav.simulators.client import WorkerProcess
from vla_nav.simulators.mesh import MeshSimulator
from vla_nav.simulators.protocol import Observation
from vla_nav.simulators.remote import RemoteSimulator
from vla_nav.training.grouping import grouped
from vla_nav.vision.encoder import TimmEncoder

RULE = DecisionRule.parse("turn_then_forward(4)")


@pytest.fixture(scope="module")
def config(world):
    return record_config(world)


@pytest.fixture(scope="module")
def simulator(config):
    episodes, scenes = episodes_of(config)
    loaded = MeshSimulator(body_of(config))
    loaded.load_scene(scenes[episodes[0].scene_id])
    return loaded


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


@pytest.fixture(scope="module")
def policy(config, tmp_path_factory):
    options = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
    }
    model = ModelConfig(backbone={"family": "qwen3", "options": options})
    encoder = {"name": "resnet10t", "image_size": 32, "num_tokens": 1, "feature_index": 1}
    folder = tmp_path_factory.mktemp("policy")
    assembled = assemble(
        model,
        action_space=WaypointSpace(),
        embodiment=body_of(config),
        layout=Layout("full", "visible"),
        encoder=TimmEncoder(**encoder),
    )
    save_policy(folder, assembled, model, encoder=encoder, data={})
    return folder


def dagger_config(world: Path, root: Path, policy: Path, *overrides: str):
    return record_config(
        world,
        "record.source=dagger",
        f"checkpoint={policy}",
        f"data.recorded={root}",
        "record.max_primitives=40",
        *overrides,
    )


def files_of(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def expert_set(world, tmp_path_factory):
    """The expert's own recording of the small world."""
    root = tmp_path_factory.mktemp("expert") / "val_unseen"
    assert record_from(record_config(world, f"data.recorded={root}")) == 0
    return root


@pytest.fixture(scope="module")
def dagger_set(world, policy, expert_set, tmp_path_factory):
    """The expert's recording and a round of rollouts beside it."""
    root = tmp_path_factory.mktemp("recorded") / "round1"
    made = dagger_config(world, root, policy, f"record.onto={expert_set}", "record.beta=0.4")
    assert record_from(made) == 0
    return root


def test_the_new_set_holds_the_old_one_and_a_walk_of_every_episode(expert_set, dagger_set, policy):
    old, new = LeRobotDataset(expert_set), LeRobotDataset(dagger_set)
    new.verify()
    assert len(new) == 2 * len(old) == 30
    for episode, copy in zip(old, new, strict=False):
        assert replace(copy, reference_path=None) == replace(episode, reference_path=None)
        for step in episode.steps[:2]:
            key = step.frames["front"]
            assert np.array_equal(old.frames.read(key), new.frames.read(key))
    about = new.info["vla_nav"]["recording"]["dagger"]
    assert (about["beta"], about["mixture"], about["round"]) == (0.4, "step", 1)
    assert about["onto"] == old.fingerprint()
    assert len(about["policy"]) == 32
    by = ""
    for episode, walk in zip(old, list(new)[15:], strict=True):
        assert walk.episode_id == f"{episode.episode_id}@1"
        assert walk.instruction == episode.instruction
        assert walk.steps[0].frames == episode.steps[0].frames
        by += walk.metadata[ABOUT]["by"]
    assert {"e", "p"} == set(by)
    assert grouped(new, "rollouts") == [(n, n + 15) for n in range(15)]


def test_the_data_check_finds_nothing_wrong_with_walks_that_never_stop(dagger_set, tmp_path):
    """A walk without STOP is an error of any other episode; here the policy never called it."""
    assert any(STOP not in w.steps[-1].executed for w in list(LeRobotDataset(dagger_set))[15:])
    home = tmp_path / "recorded" / "val_unseen"
    home.parent.mkdir()
    home.symlink_to(dagger_set)
    out = tmp_path / "doctor"
    options = (f"data.path={tmp_path}", "data.split=val_unseen", f"paths.output_dir={out}")
    assert run_command("doctor", *options) == 0
    report = (out / "doctor.json").read_text()
    assert "D206" in report  # slides are told of all the same
    assert "D205" not in report
    assert "D219" not in report


def test_a_second_round_goes_onto_the_first(world, policy, dagger_set, tmp_path):
    made = dagger_config(world, tmp_path / "set", policy, f"record.onto={dagger_set}")
    with pytest.raises(UserError, match=r"record\.round=1: .*has that round already"):
        record_from(made)
    made["record"].update(round=2, beta=0.0)
    other = {**made, "simulators": {**made["simulators"], "backend": "habitat"}}
    with pytest.raises(UserError, match=r"recorded with simulators\.backend mesh, now it is hab"):
        record_from(other)
    assert record_from(made) == 0
    new = LeRobotDataset(tmp_path / "set")
    assert len(new) == 45
    assert grouped(new, "rollouts")[0] == (0, 15, 30)
    before = files_of(tmp_path / "set")
    assert record_from(made) == 0  # finished: nothing is done
    assert files_of(tmp_path / "set") == before


@pytest.mark.slow
def test_a_killed_dagger_recording_is_finished_to_the_same_files(
    world, policy, expert_set, dagger_set, tmp_path
):
    root = tmp_path / "killed"
    options = [
        "data.split=val_unseen",
        f"data.path={world}",
        f"data.recorded={root}",
        f"paths.output_dir={tmp_path}/runs",
        SMALL_CAMERA,
        "record.source=dagger",
        f"checkpoint={policy}",
        "record.max_primitives=40",
        "record.beta=0.4",
        f"record.onto={expert_set}",
    ]
    process = start_command("record", *options, "num_workers=2")
    children: list[int] = []

    def has_a_part() -> bool:
        children[:] = children_of(process.pid) or children
        return any((root / "parts").glob("part-*.arrow"))

    kill_when(process, has_a_part)
    await_end(children)
    assert not (root / "meta" / "info.json").exists()
    assert record_from(record_config(world, *options, "num_workers=0")) == 0
    assert files_of(root) == files_of(dagger_set)


def test_what_does_not_fit_is_refused_before_any_work(world, policy, expert_set, tmp_path):
    root = tmp_path / "set"

    def refused(message, *overrides):
        with pytest.raises(UserError, match=message):
            record_from(dagger_config(world, root, policy, *overrides))
        assert not root.exists()

    refused(r"step_m 0\.25 != 0\.5", "simulators.embodiment.step_m=0.5")
    refused(r"decision turn_then_forward\(4\) != primitive", "record.decision=primitive")
    refused("record.onto=.*recorded with record.storage png", "record.storage=video",
            f"record.onto={expert_set}")  # fmt: skip
    refused("checkpoint: has no value", "checkpoint=null")
    refused("record.source 'daggr'", "record.source=daggr")
    refused("record.source=expert uses none", "record.source=expert")
    with pytest.raises(UserError, match=r"holds the expert's recording; .*/val_unseen_round1"):
        record_from(dagger_config(world, expert_set, policy))
    there = Path("demo/data/recorded/train")
    dagger = Dagger("policy", "0" * 32, "cpu", 0, Mixture(0.5, round=3), None)
    with pytest.raises(UserError, match=r"data\.recorded=demo/data_round3/recorded/train"):
        require_own_folder(there, {}, dagger)


@pytest.mark.habitat
@pytest.mark.slow
def test_rollouts_in_habitat_are_the_same_for_any_number_of_workers(world, policy, tmp_path):
    python = os.environ["VLA_NAV_HABITAT_PYTHON"]
    here = ("simulators=habitat", f"simulators.python={python}", SMALL_CAMERA, "record.beta=0.4")
    for num_workers in (0, 2):
        root = tmp_path / str(num_workers)
        made = dagger_config(world, root, policy, *here, f"num_workers={num_workers}")
        assert record_from(made) == 0
    assert files_of(tmp_path / "0") == files_of(tmp_path / "2")
    made = LeRobotDataset(tmp_path / "0")
    assert made.info["vla_nav"]["recording"]["backend"] == "habitat"
    assert len(made) == 15
    assert set("".join(walk.metadata[ABOUT]["by"] for walk in made)) == {"e", "p"}
