"""Two and four processes take the steps of one: the same gradients, the same weights after them.

one rank     packs 0 1 2 3 of a step, one after another
two ranks    0 1 | 2 3
four ranks   0 | 1 | 2 | 3          and in partitions, of which the ranks run different numbers
"""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from torch import distributed

from tests.training.tiny import in_child, make_data, recipe, settings, train, weights_of
from vla_nav.training.curve import read_curve
from vla_nav.training.gradients import sum_over_ranks
from vla_nav.training.schedule import Budget
from vla_nav.training.settings import PartitionSettings

NUM_PACKS = 4  # of a step, over all ranks


class FirstGradients(Callback):
    """Keeps the gradients that the first optimiser step is taken on, as rank 0 has them."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimiser: Any) -> None:
        if trainer.global_step == 0 and trainer.is_global_zero:
            named = module.model.named_parameters()
            torch.save({name: p.grad for name, p in named if p.grad is not None}, self._path)


def take_steps(data: Path, run: Path, num_ranks: int, tokens: int | None) -> None:
    """Six steps of this process, as one of `num_ranks`."""
    made = settings(
        accumulate=NUM_PACKS // num_ranks,
        partition=PartitionSettings(tokens),
        budget=Budget(max_steps=6),
    )
    extra = (FirstGradients(run.with_suffix(".pt")),)
    train(recipe(data, settings=made), run, num_ranks=num_ranks, extra=extra)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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
def test_ranks_take_the_steps_of_one_rank(
    data: Path, one: Path, tmp_path: Path, num_ranks: int, tokens: int | None
) -> None:
    run = tmp_path / "ranks"

    def rank(number: int, port: int) -> None:
        os.environ.update(
            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(number),
            LOCAL_RANK=str(number), WORLD_SIZE=str(num_ranks), LOCAL_WORLD_SIZE=str(num_ranks),
            NODE_RANK="0", GLOO_SOCKET_IFNAME="lo", TORCHELASTIC_RUN_ID="test",
        )  # fmt: skip
        take_steps(data, run, num_ranks, tokens)

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


def run_ranks(body: Callable[[int, int], None], num_ranks: int) -> list[int | None]:
    """Run `body(rank, port)` in forked processes; their exit codes."""
    port = free_port()
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=body, args=(number, port)) for number in range(num_ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(90)
    return [process.exitcode for process in processes]


def require_close(
    expected: dict[str, torch.Tensor], found: dict[str, torch.Tensor], bound: float
) -> None:
    """Every tensor, relative by norm; one that is next to zero beside the largest."""
    assert expected.keys() == found.keys()
    largest = max(float(value.norm()) for value in expected.values() if value.is_floating_point())
    for name, value in expected.items():
        gap = float((found[name].double() - value.double()).norm())
        assert gap <= bound * max(float(value.double().norm()), 1e-3 * largest), name


def parameters(run: Path) -> dict[str, torch.Tensor]:
    """Model weights of the last checkpoint."""
    return {name: value for name, value in weights_of(run).items() if name.startswith("state_dict")}
