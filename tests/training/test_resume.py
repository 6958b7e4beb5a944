"""A run that is killed at any moment ends with the weights of the run that nobody disturbed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback

from tests.training.tiny import in_child, make_data, recipe, settings, train, weights_of
from vla_nav.errors import UserError
from vla_nav.training.checkpoint_choice import checkpoint_to_resume
from vla_nav.training.checkpoint_folder import (
    WEIGHTS,
    checkpoint_folders,
    read_checkpoint,
    step_folder,
)
from vla_nav.training.checkpointing import RunCheckpoint
from vla_nav.training.curve import read_curve
from vla_nav.training.run_folder import RunFolder
from vla_nav.training.schedule import Budget


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def undisturbed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "whole"
    assert in_child(lambda: train(recipe(data), run)) == 0
    return run


class KillAt(Callback):
    """kill -9 of the own process before a step, in a validation, or as a checkpoint begins."""

    def __init__(self, step: int, moment: str) -> None:
        self.step, self.moment = step, moment

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        if self.moment == "before step" and trainer.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)

    def on_validation_batch_end(self, trainer: Any, *_: Any) -> None:
        if self.moment == "in validation" and trainer.global_step >= self.step:
            os.kill(os.getpid(), signal.SIGKILL)

    def on_save_checkpoint(self, trainer: Any, *_: Any) -> None:
        if self.moment == "in checkpoint" and trainer.global_step >= self.step:
            os.kill(os.getpid(), signal.SIGKILL)


class KillInWriting(Callback):
    """kill -9 where the first checkpoint after a step comes to a place in its writing.

    event: an audit event of Python (`os.rename`, `open`, `shutil.rmtree`). text: in its first
    argument, a path.
    """

    def __init__(self, step: int, event: str, text: str) -> None:
        self.step, self.event, self.text = step, event, text

    def on_save_checkpoint(self, trainer: Any, *_: Any) -> None:
        def kill(event: str, arguments: tuple[Any, ...]) -> None:
            if event == self.event and self.text in str(arguments[0]):
                os.kill(os.getpid(), signal.SIGKILL)

        if trainer.global_step >= self.step:
            sys.addaudithook(kill)  # of this process for good, which has no more than that to do


def same_weights(one: Path, two: Path) -> None:
    mine, yours = weights_of(one), weights_of(two)
    assert mine.keys() == yours.keys()
    assert sum("state_dict" in name for name in mine) > 20
    for name, tensor in mine.items():
        assert torch.equal(tensor, yours[name]), name
    policy = Path("policy") / "weights.safetensors"
    assert (one / policy).read_bytes() == (two / policy).read_bytes()


def same_curve(one: Path, two: Path) -> None:
    timing = ("episodes_per_s",)
    rows = [
        [
            {key: value for key, value in row.items() if key not in timing}
            for row in read_curve(path)
        ]
        for path in (one / "curve.jsonl", two / "curve.jsonl")
    ]
    assert rows[0] == rows[1]
    steps = [row["step"] for row in rows[0] if "loss" in row]
    assert steps == sorted(set(steps)) == [2, 4, 6, 8, 10, 12]
    assert [row["step"] for row in rows[0] if "val/loss" in row] == [5, 10, 12]


@pytest.mark.parametrize(
    ("step", "moment"),
    [(1, "before step"), (8, "before step"), (5, "in validation"), (6, "in checkpoint")],
)
def test_killed_run_ends_with_the_same_weights_and_curve(
    data: Path, undisturbed: Path, tmp_path: Path, step: int, moment: str
) -> None:
    code = in_child(lambda: train(recipe(data), tmp_path, extra=(KillAt(step, moment),)))
    assert code == -signal.SIGKILL
    assert not (tmp_path / "result.json").exists()
    assert in_child(lambda: train(recipe(data), tmp_path)) == 0
    same_weights(tmp_path, undisturbed)
    same_curve(tmp_path, undisturbed)
    assert not list(tmp_path.rglob("*.tmp-*"))


@pytest.mark.parametrize(
    ("event", "text", "left"),
    [
        ("open", "manifest.json.tmp-", [3]),  # both files are written, their description is not
        ("os.rename", "step_00000006.tmp-", [3]),  # all is written, not yet under its name
        ("os.rename", "policy/weights.safetensors.tmp-", [3, 6]),  # the policy is half replaced
        ("os.rename", "step_00000003", [3, 6, 9]),  # the new one is there, an old one to go
        ("shutil.rmtree", "step_00000003.tmp-old", [6, 9]),  # which is half deleted
    ],
)
def test_kill_inside_a_checkpoint_leaves_whole_ones(
    data: Path, undisturbed: Path, tmp_path: Path, event: str, text: str, left: list[int]
) -> None:
    kill = KillInWriting(6, event, text)
    code = in_child(lambda: train(recipe(data), tmp_path, extra=(kill,)))
    assert code == -signal.SIGKILL
    folder = tmp_path / "checkpoints"
    assert len(list(tmp_path.rglob("*.tmp-*"))) >= (left != [3, 6, 9])
    assert checkpoint_folders(folder) == [step_folder(folder, step) for step in reversed(left)]
    assert checkpoint_to_resume(folder) == step_folder(folder, left[-1])
    assert in_child(lambda: train(recipe(data), tmp_path)) == 0
    same_weights(tmp_path, undisturbed)
    same_curve(tmp_path, undisturbed)
    assert not list(tmp_path.rglob("*.tmp-*"))
    assert sorted(path.name for path in folder.iterdir()) == ["step_00000009", "step_00000012"]


def test_worker_count_does_not_change_weights(
    data: Path, undisturbed: Path, tmp_path: Path
) -> None:
    assert in_child(lambda: train(recipe(data, num_workers=2), tmp_path)) == 0
    same_weights(tmp_path, undisturbed)


def test_resume_can_tell_a_skipped_batch_from_the_right_one(
    data: Path, undisturbed: Path, tmp_path: Path
) -> None:
    """The comparison above would notice: another seed of the packs gives other weights."""
    assert in_child(lambda: train(recipe(data, seed=1), tmp_path)) == 0
    mine, whole = weights_of(tmp_path), weights_of(undisturbed)
    assert any(not torch.equal(mine[name], whole[name]) for name in mine)


def test_finished_run_is_returned_and_not_trained_again(data: Path, undisturbed: Path) -> None:
    newest = checkpoint_folders(undisturbed / "checkpoints")[0]
    before = newest.stat().st_mtime_ns
    result = train(recipe(data), undisturbed)
    assert result["steps"] == 12
    assert newest.stat().st_mtime_ns == before


def test_a_policy_that_was_taken_away_comes_back(
    data: Path, undisturbed: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(undisturbed, run)
    before = {path.name: path.read_bytes() for path in (run / "policy").iterdir()}
    shutil.rmtree(run / "policy")
    train(recipe(data), run)
    assert {path.name: path.read_bytes() for path in (run / "policy").iterdir()} == before


@pytest.mark.parametrize(
    "wrong",
    [{"resume": "latest"}, {"checkpoint": {"keep": 0}}, {"checkpoint": {"signals": "SIGTERM"}}],
)
def test_a_refused_value_throws_no_run_away(
    data: Path, undisturbed: Path, wrong: dict[str, Any]
) -> None:
    before = sorted(undisturbed.rglob("*"))
    with pytest.raises(UserError, match=r"resume|keep=0|signals=SIGTERM; a list"):
        train(recipe(data), undisturbed, overwrite=True, **wrong)
    assert sorted(undisturbed.rglob("*")) == before


def test_kill_after_the_last_checkpoint_loses_no_policy(
    data: Path, undisturbed: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(undisturbed, run)
    (run / "result.json").unlink()
    shutil.rmtree(run / "policy")
    assert in_child(lambda: train(recipe(data), run)) == 0
    same_weights(run, undisturbed)
    same_curve(run, undisturbed)
    mine, whole = (json.loads((path / "result.json").read_text()) for path in (run, undisturbed))
    for key in ("steps", "episodes_seen", "validation"):
        assert mine[key] == whole[key]


def test_other_configuration_is_refused_and_leaves_the_run_as_it_was(
    data: Path, undisturbed: Path
) -> None:
    names = sorted(path.name for path in undisturbed.iterdir())
    with pytest.raises(UserError, match=r"started with seed=0, asked for is 5"):
        train(recipe(data, seed=5), undisturbed)
    assert sorted(path.name for path in undisturbed.iterdir()) == names


def test_damaged_checkpoint_is_refused_and_the_one_before_continued_from_when_asked(
    data: Path, undisturbed: Path, tmp_path: Path
) -> None:
    code = in_child(
        lambda: train(recipe(data), tmp_path, extra=(KillAt(10, "before step"),), every_steps=2)
    )
    assert code == -signal.SIGKILL
    folder = tmp_path / "checkpoints"
    assert [path.name for path in checkpoint_folders(folder)] == ["step_00000010", "step_00000008"]
    flip_a_bit(step_folder(folder, 10) / WEIGHTS)
    curve = (tmp_path / "curve.jsonl").read_bytes()
    message = (
        r"step_00000010/weights\.safetensors: damaged, .*; restore it, or continue from "
        r"step_00000008 with resume=newest_whole, which repeats 2 steps"
    )
    with pytest.raises(UserError, match=message):
        train(recipe(data), tmp_path)
    assert (tmp_path / "curve.jsonl").read_bytes() == curve
    assert in_child(lambda: train(recipe(data), tmp_path, resume="newest_whole")) == 0
    same_weights(tmp_path, undisturbed)
    same_curve(tmp_path, undisturbed)
    assert len(list(folder.glob("damaged_step_00000010.*"))) == 1


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_second_process_in_a_run_folder_is_refused(tmp_path: Path) -> None:
    held = RunFolder(tmp_path, {"a": 1}, data="x")

    def second() -> None:
        with pytest.raises(UserError, match="`vla-nav train` is at work here in another process"):
            RunFolder(tmp_path, {"a": 1}, data="x")

    assert in_child(second) == 0
    del held  # releases the folder
    assert in_child(lambda: RunFolder(tmp_path, {"a": 1}, data="x")) == 0


@pytest.mark.parametrize("value", [0, -3])
def test_checkpoint_interval_must_be_positive(tmp_path: Path, value: int) -> None:
    with pytest.raises(UserError, match=rf"callbacks\.checkpoint\.every_steps={value}"):
        RunCheckpoint(tmp_path, lambda *_: None, every_steps=value)


def test_wall_clock_budget_counts_time_before_the_kill(data: Path, tmp_path: Path) -> None:
    timed = recipe(data, settings=settings(budget=Budget(max_minutes=2.5 / 60)))
    code = in_child(lambda: train(timed, tmp_path, extra=(KillAt(4, "before step"),)))
    assert code == -signal.SIGKILL
    stored = read_checkpoint(checkpoint_folders(tmp_path / "checkpoints")[0])
    assert stored["global_step"] == 3
    assert 0.0 < stored["run"]["elapsed_s"] < 2.5
    assert in_child(lambda: train(timed, tmp_path)) == 0
    after = read_checkpoint(checkpoint_folders(tmp_path / "checkpoints")[0])
    assert after["global_step"] > 4
    assert 2.5 <= after["run"]["elapsed_s"] < 2.5 + 5.0
    (group, *_) = after["optimizer_states"][0]["param_groups"]
    assert group["lr"] == pytest.approx(0.02 * group["base_lr"])
