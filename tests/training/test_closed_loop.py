"""Evaluation while training: the best policy stays, patience ends a run, a kill changes nothing."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback

from tests.training.ranks import as_rank, run_ranks
from tests.training.test_resume import KillAt, same_weights
from tests.training.tiny import in_child, make_data, recipe, settings, train
from vla_nav.errors import UserError
from vla_nav.files import read_json
from vla_nav.models.checkpoint import load_policy
from vla_nav.training.checkpoint_folder import checkpoint_folders, read_checkpoint
from vla_nav.training.closed_loop import ClosedLoop
from vla_nav.training.curve import read_curve
from vla_nav.training.parallel_strategy import ShardedStrategy
from vla_nav.training.schedule import Budget

SR = {3: 0.2, 6: 0.5, 8: 0.1, 9: 0.5, 12: 0.4, 15: 0.3, 18: 0.9}
SPL = {3: 0.1, 6: 0.3, 9: 0.2, 12: 0.9}


class ByStep:
    """Rates by the step of the policy that it is given to read. kill_at: itself at that step."""

    def __init__(self, kill_at: int | None = None, missing_at: int | None = None) -> None:
        self.kill_at, self.missing_at = kill_at, missing_at

    def check(self, body: Any, space: Any, history: str) -> None:
        assert (body.turn_deg, space.name, history) == (30.0, "waypoint", "full")

    def __call__(
        self,
        policy: Path,
        *,
        records: Path,
        device: torch.device,
        is_given_up: Callable[[], bool] = lambda: False,
    ) -> dict[str, Any] | None:
        assert device == torch.device("cpu")
        step = load_policy(policy).data["steps"]
        random.random(), np.random.rand(), torch.rand(3)  # an evaluation may draw
        if step == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if is_given_up():
            return None
        records.write_text(f"{step}\n")
        num_missing = int(step == self.missing_at)
        return {
            "n": 4 - num_missing,
            "num_expected": 4,
            "num_missing": num_missing,
            "sr": SR[step],
            "spl": SPL.get(step, 0.0),
            "ne_m": 1.0,
            "ndtw": None,
        }


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data"))


def run(
    data: Path,
    folder: Path,
    *extra: Callback,
    evaluator: ByStep | None = None,
    max_steps: int = 18,
    num_ranks: int = 1,
    strategy: Any = "ddp",
    **closed_loop: Any,
) -> dict[str, Any]:
    """A run that evaluates every third step and writes a checkpoint every fourth."""
    return train(
        recipe(data, settings=settings(budget=Budget(max_steps=max_steps))),
        folder,
        extra=extra,
        every_steps=4,
        num_ranks=num_ranks,
        strategy=strategy,
        closed_loop={
            "evaluator": evaluator or ByStep(),
            "every_steps": 3,
            "patience": 2,
            **closed_loop,
        },
    )


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nobody disturbed: its best is at step 6, and patience ends it at 12."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    assert in_child(lambda: run(data, folder)) == 0
    return folder


def evaluated(folder: Path) -> list[tuple[int, float, float]]:
    rows = read_curve(folder / "curve.jsonl")
    return [
        (int(row["step"]), row["closed_loop/sr"], row["closed_loop/spl"])
        for row in rows
        if "closed_loop/sr" in row
    ]


def test_the_best_policy_stays_and_patience_ends_the_run(whole: Path) -> None:
    result = read_json(whole / "result.json")
    assert result["steps"] == 12
    assert result["closed_loop"] == {
        "best": {
            "step": 6,
            "n": 4,
            "sr": 0.5,
            "spl": 0.3,
            "ne_m": 1.0,
            "ndtw": None,
            "policy": str(whole / "policy_best"),
        },
        "evaluations": 4,
        "stopped_early": True,
    }
    assert evaluated(whole) == [(step, SR[step], SPL[step]) for step in (3, 6, 9, 12)]
    assert load_policy(whole / "policy_best").data["steps"] == 6
    assert load_policy(whole / "policy").data["steps"] == 12
    assert sorted(path.name for path in (whole / "closed_loop").iterdir()) == [
        f"step_{step:08d}.jsonl" for step in (3, 6, 9, 12)
    ]


def test_the_best_policy_is_the_average_of_its_step(
    data: Path, whole: Path, tmp_path: Path
) -> None:
    code = in_child(lambda: train_until_six(data, tmp_path))
    assert code == -signal.SIGKILL
    weights = Path("weights.safetensors")
    at_six = (tmp_path / "policy" / weights).read_bytes()
    assert at_six == (whole / "policy_best" / weights).read_bytes()
    assert at_six != (whole / "policy" / weights).read_bytes()


def train_until_six(data: Path, folder: Path) -> None:
    """Another run of as many steps, with a checkpoint and its policy at step 6, without any
    evaluation: which therefore leaves the weights alone."""
    train(
        recipe(data, settings=settings(budget=Budget(max_steps=18))),
        folder,
        extra=(KillAt(7, "before step"),),
    )


def test_evaluations_leave_weights_and_random_state_alone(
    data: Path, whole: Path, tmp_path: Path
) -> None:
    def without() -> None:
        made = recipe(data, settings=settings(budget=Budget(max_steps=18)))
        train(made, tmp_path, every_steps=4, extra=(StopAt(12),))

    assert in_child(without) == 0
    stored = [
        read_checkpoint(checkpoint_folders(path / "checkpoints")[0]) for path in (tmp_path, whole)
    ]
    assert stored[0]["global_step"] == stored[1]["global_step"] == 12
    for name, value in stored[0]["state_dict"].items():
        assert torch.equal(value, stored[1]["state_dict"][name]), name
    assert str(stored[0]["random"]) == str(stored[1]["random"])


class StopAt(Callback):
    """Ends training after a step, as patience does."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        trainer.should_stop |= trainer.global_step == self.step


@pytest.mark.parametrize(
    ("kill_at", "extra"),
    [
        (9, ()),  # in the evaluation that follows the best: from step 8 again
        (6, ()),  # in the one that becomes the best: from step 4 again
        (None, (KillAt(7, "before step"),)),  # policy_best is ahead of the checkpoint of step 4
        (None, (KillAt(12, "in checkpoint"),)),  # patience has run out, nothing says so on disk
    ],
)
def test_a_kill_changes_nothing(
    data: Path, whole: Path, tmp_path: Path, kill_at: int | None, extra: tuple[Callback, ...]
) -> None:
    killer = ByStep(kill_at=kill_at)
    assert in_child(lambda: run(data, tmp_path, *extra, evaluator=killer)) == -signal.SIGKILL
    assert not (tmp_path / "result.json").exists()
    assert in_child(lambda: run(data, tmp_path)) == 0
    require_same(tmp_path, whole)


def require_same(folder: Path, whole: Path) -> None:
    same_weights(folder, whole)
    assert evaluated(folder) == evaluated(whole)
    results = [read_json(path / "result.json")["closed_loop"] for path in (folder, whole)]
    assert results[0].pop("best") | {"policy": ""} == results[1].pop("best") | {"policy": ""}
    assert results[0] == results[1]
    best = Path("policy_best") / "weights.safetensors"
    assert (folder / best).read_bytes() == (whole / best).read_bytes()
    names = [
        sorted(path.name for path in (one / "closed_loop").iterdir()) for one in (folder, whole)
    ]
    assert names[0] == names[1]


def test_a_run_that_patience_ended_stays_ended(data: Path, whole: Path, tmp_path: Path) -> None:
    """The kill came after the last checkpoint and before the result."""
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    (folder / "result.json").unlink()
    assert in_child(lambda: run(data, folder)) == 0
    assert read_json(folder / "result.json")["steps"] == 12
    require_same(folder, whole)


def test_a_signal_does_not_wait_for_an_evaluation_which_the_next_start_makes_up_for(
    data: Path, whole: Path, tmp_path: Path
) -> None:
    code = in_child(lambda: run(data, tmp_path, SignalIn(6)))
    assert code == 1  # the error that a command turns into exit code 143
    assert [step for step, *_ in evaluated(tmp_path)] == [3]
    newest = checkpoint_folders(tmp_path / "checkpoints")[0]
    assert newest.name == "step_00000006"
    assert in_child(lambda: run(data, tmp_path)) == 0
    require_same(tmp_path, whole)


class SignalIn(Callback):
    """SIGTERM to the own process as the step is done, before its evaluation."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == self.step:
            os.kill(os.getpid(), signal.SIGTERM)


def test_the_last_step_is_evaluated_and_an_incomplete_evaluation_decides_nothing(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert in_child(lambda: run(data, tmp_path, evaluator=ByStep(missing_at=6), max_steps=8)) == 0
    found = read_json(tmp_path / "result.json")["closed_loop"]
    assert (found["best"]["step"], found["evaluations"], found["stopped_early"]) == (3, 3, False)
    assert [step for step, *_ in evaluated(tmp_path)] == [3, 6, 8]
    told = capfd.readouterr().out
    assert "closed loop at step 3:  sr 0.200,  spl 0.100" in told
    assert "1 of 4 episodes have no result" in told
    assert "(best 0.200 at step 3)" in told


@pytest.mark.parametrize("strategy", ["ddp", "sharded"])
def test_two_ranks_decide_as_one(data: Path, tmp_path: Path, strategy: str) -> None:
    def rank(number: int, port: int) -> None:
        as_rank(number, 2, port)
        chosen = ShardedStrategy() if strategy == "sharded" else strategy
        result = run(data, tmp_path, num_ranks=2, strategy=chosen)
        (tmp_path / f"rank{number}.json").write_text(json.dumps(result["closed_loop"]))

    assert run_ranks(rank, 2) == [0, 0]
    found = [read_json(tmp_path / f"rank{number}.json") for number in (0, 1)]
    assert found[0] == found[1]
    assert (found[0]["best"]["step"], found[0]["stopped_early"]) == (6, True)
    assert read_json(tmp_path / "result.json")["steps"] == 12


def test_wrong_intervals_are_refused(tmp_path: Path) -> None:
    def made(**values: Any) -> ClosedLoop:
        return ClosedLoop(tmp_path, lambda *_: None, lambda: False, evaluator=ByStep(), **values)

    with pytest.raises(UserError, match=r"callbacks\.closed_loop\.every_steps=0"):
        made(every_steps=0)
    with pytest.raises(UserError, match=r"callbacks\.closed_loop\.patience=0"):
        made(patience=0)
