"""DAgger recordings as sets: onto an older one, killed and finished, checked, refused."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from worlds import (
    SMALL_CAMERA,
    await_end,
    body_of,
    children_of,
    files_of,
    kill_when,
    record_config,
    run_command,
    start_command,
)

from vla_nav.actions import WaypointSpace
from vla_nav.actions.decisions import DecisionRule
from vla_nav.episodes.lerobot_reader import LeRobotDataset
from vla_nav.episodes.types import STOP
from vla_nav.errors import UserError
from vla_nav.evaluation.dagger import ABOUT, Mixture
from vla_nav.evaluation.dagger_run import Dagger, require_own_folder
from vla_nav.evaluation.record_run import record_from
from vla_nav.models.assembly import ModelConfig, assemble
from vla_nav.models.checkpoint import save_policy
from vla_nav.models.prompt import Layout
from vla_nav.training.grouping import grouped
from vla_nav.vision.encoder import TimmEncoder

RULE = DecisionRule.parse("turn_then_forward(4)")


@pytest.fixture(scope="module")
def config(world):
    return record_config(world)


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
