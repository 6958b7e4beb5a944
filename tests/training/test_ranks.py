"""Two and four processes take the steps of one: the same gradients, the same weights after them.

one rank     packs 0 1 2 3 of a step, one after another
two ranks    0 1 | 2 3
four ranks   0 | 1 | 2 | 3          and in partitions, of which the ranks run different numbers

With whole weights on every rank (ddp), and with weights spread over them (fsdp).
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.strategies import DDPStrategy
from torch import distributed

from tests.training.ranks import as_rank, require_close, run_ranks
from tests.training.tiny import in_child, make_data, recipe, settings, train, weights_of
from vla_nav.errors import UserError
from vla_nav.files import read_json
from vla_nav.training.curve import read_curve
from vla_nav.training.gradients import sum_over_ranks
from vla_nav.training.parallel_shards import whole_state
from vla_nav.training.parallel_strategy import ShardedStrategy
from vla_nav.training.schedule import Budget
from vla_nav.training.settings import PartitionSettings

NUM_PACKS = 4  # of a step, over all ranks


class FirstGradients(Callback):
    """Keeps the gradients that the first optimiser step is taken on, as rank 0 has them."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimiser: Any) -> None:
        if trainer.global_step > 0:
            return
        named = [(name, p.grad) for name, p in module.model.named_parameters()]
        gradients = whole_state({name: grad for name, grad in named if grad is not None})
        if trainer.is_global_zero:
            torch.save(gradients, self._path)


STRATEGIES = {"ddp": DDPStrategy, "fsdp": ShardedStrategy}


def take_steps(
    data: Path,
    run: Path,
    num_ranks: int,
    tokens: int | None,
    strategy: str = "ddp",
    *callbacks: Callback,
    balance: str = "cost",
) -> None:
    """Six steps of this process, as one of `num_ranks`."""
    made = settings(
        accumulate=NUM_PACKS // num_ranks,
        partition=PartitionSettings(tokens),
        budget=Budget(max_steps=6),
        balance=balance,
    )
    extra = (*callbacks, FirstGradients(run.with_suffix(".pt")))
    made_strategy = STRATEGIES[strategy]()
    train(
        recipe(data, settings=made), run, num_ranks=num_ranks, extra=extra, strategy=made_strategy
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def one(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of one rank with all packs of a step."""
    run = tmp_path_factory.mktemp("runs") / "one"
    assert in_child(lambda: take_steps(data, run, 1, None)) == 0
    return run


@pytest.mark.parametrize(("num_ranks", "tokens"), [(2, None), (4, None), (2, 25)])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_ranks_take_the_steps_of_one_rank(
    data: Path, one: Path, tmp_path: Path, strategy: str, num_ranks: int, tokens: int | None
) -> None:
    run = tmp_path / "ranks"

    def rank(number: int, port: int) -> None:
        as_rank(number, num_ranks, port)
        take_steps(data, run, num_ranks, tokens, strategy)

    assert run_ranks(rank, num_ranks) == [0] * num_ranks
    gradients = [torch.load(path.with_suffix(".pt"), weights_only=True) for path in (one, run)]
    # Float32 sums in another order.
    require_close(gradients[0], gradients[1], 1e-5)
    # The same, carried through six steps of Adam.
    require_close(parameters(one), parameters(run), 1e-3)
    for key in ("loss", "val/loss"):
        curves = [
            [row[key] for row in read_curve(path / "curve.jsonl") if key in row]
            for path in (one, run)
        ]
        assert len(curves[0]) > 0
        assert curves[0] == pytest.approx(curves[1], rel=1e-4)


class Idle(Callback):
    """Takes away packs 2 and 3 of every step: all that the second of two ranks has."""

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, index: int) -> None:
        batch.packs = batch.packs[:2] if trainer.global_rank == 0 else ()


@pytest.mark.parametrize(
    ("strategy", "tokens"),
    [
        ("ddp", None),
        ("fsdp", 25),
        pytest.param("ddp", 25, marks=pytest.mark.slow),
        pytest.param("fsdp", None, marks=pytest.mark.slow),
    ],
)
def test_a_rank_without_a_tree_takes_part(
    data: Path, tmp_path: Path, strategy: str, tokens: int | None
) -> None:
    alone, run = tmp_path / "alone", tmp_path / "ranks"

    def rank(number: int, port: int) -> None:
        as_rank(number, 2, port)
        take_steps(data, run, 2, tokens, strategy, Idle(), balance="none")

    def one_rank() -> None:
        take_steps(data, alone, 1, None, "ddp", Idle(), balance="none")

    assert in_child(one_rank) == 0
    assert run_ranks(rank, 2) == [0, 0]
    gradients = [torch.load(path.with_suffix(".pt"), weights_only=True) for path in (alone, run)]
    require_close(gradients[0], gradients[1], 1e-5)
    require_close(parameters(alone), parameters(run), 1e-3)
    assert (
        read_json(alone / "result.json")["episodes_seen"]
        == (read_json(run / "result.json")["episodes_seen"])
    )


@pytest.mark.parametrize(
    ("first", "then"), [("fsdp", None), pytest.param(None, "fsdp", marks=pytest.mark.slow)]
)
def test_a_run_continues_on_another_number_of_ranks(
    data: Path, one: Path, tmp_path: Path, first: str | None, then: str | None
) -> None:
    """Two ranks with sharded weights and one process read each other's checkpoints."""

    def take(strategy: str | None, *extra: Callback) -> list[int | None]:
        def rank(number: int, port: int) -> None:
            as_rank(number, 2, port)
            take_steps(data, tmp_path / "run", 2, None, strategy or "", *extra)

        if strategy is not None:
            return run_ranks(rank, 2)
        return [in_child(lambda: take_steps(data, tmp_path / "run", 1, None, "ddp", *extra))]

    assert all(code != 0 for code in take(first, EndsAt(4)))
    assert all(code == 0 for code in take(then))
    require_close(parameters(one), parameters(tmp_path / "run"), 1e-3)
    found, wanted = weights_of(tmp_path / "run"), weights_of(one)
    assert found.keys() == wanted.keys()  # averages and moments included


def test_other_packs_per_step_are_refused(data: Path, tmp_path: Path) -> None:
    def take(accumulate: int, *extra: Callback) -> None:
        made = settings(accumulate=accumulate, budget=Budget(max_steps=6))
        train(recipe(data, settings=made), tmp_path / "run", extra=extra)

    def refused() -> None:
        with pytest.raises(UserError, match="took 2 packs a step over all ranks"):
            take(1)

    assert in_child(lambda: take(2, EndsAt(4))) == 1
    assert in_child(refused) == 0


class EndsAt(Callback):
    """The process ends before a step, one step behind a checkpoint."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == self._step:
            os._exit(1)


@pytest.mark.parametrize("is_joining", [True, False])
def test_a_rank_without_gradients_joins_the_exchange(is_joining: bool) -> None:
    def rank(number: int, port: int) -> None:
        distributed.init_process_group(
            "gloo",
            init_method=f"tcp://127.0.0.1:{port}",
            rank=number,
            world_size=2,
            timeout=timedelta(seconds=20),
        )
        weights = [torch.zeros(3), torch.zeros(2, 2, dtype=torch.float64)]
        if number == 0:
            for weight in weights:
                weight.grad = torch.ones_like(weight)
        elif not is_joining:
            os._exit(0)  # the mistake: nothing to compute, so nothing to exchange
        sum_over_ranks(weights)
        assert all(torch.equal(weight.grad, torch.ones_like(weight)) for weight in weights)
        distributed.barrier()
        os._exit(0)

    codes = run_ranks(rank, 2)
    assert codes[1] == 0
    assert (codes[0] == 0) == is_joining


def parameters(run: Path) -> dict[str, torch.Tensor]:
    """Model weights of the last checkpoint."""
    return {name: value for name, value in weights_of(run).items() if name.startswith("state_dict")}
