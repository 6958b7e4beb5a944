"""Two processes with one pack each take the steps of one process with two packs."""

from __future__ import annotations

import multiprocessing
import os
import socket
from pathlib import Path

import pytest
import torch

from tests.training.tiny import in_child, make_data, recipe, settings, train, weights_of
from vla_nav.training.curve import read_curve
from vla_nav.training.settings import PartitionSettings


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("tokens", [None, 25], ids=["whole packs", "partitions"])
def test_two_ranks_equal_one_rank_with_two_packs_a_step(
    tmp_path_factory: pytest.TempPathFactory, tokens: int | None
) -> None:
    # With partitions the ranks run different numbers of passes.
    partition = PartitionSettings(tokens)
    data = make_data(tmp_path_factory.mktemp("data"))
    runs = tmp_path_factory.mktemp("runs")

    def rank(number: int, port: int) -> None:
        os.environ.update(
            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(number),
            LOCAL_RANK=str(number), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", NODE_RANK="0",
            GLOO_SOCKET_IFNAME="lo", TORCHELASTIC_RUN_ID="test",
        )  # fmt: skip
        made = settings(accumulate=1, partition=partition)
        train(recipe(data, settings=made), runs / "two", num_ranks=2)

    port = free_port()
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=rank, args=(number, port)) for number in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert in_child(lambda: train(recipe(data, settings=settings(accumulate=2)), runs / "one")) == 0
    one, two = (_parameters(runs / name) for name in ("one", "two"))
    assert one.keys() == two.keys()
    for name, value in one.items():
        # Float32 sums in another order, carried through twelve steps of Adam.
        assert (two[name] - value).norm() / (value.norm() + 1e-6) < 1e-3, name
    losses = [
        [row["loss"] for row in read_curve(runs / name / "curve.jsonl") if "loss" in row]
        for name in ("one", "two")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    validated = [
        [row["val/loss"] for row in read_curve(runs / name / "curve.jsonl") if "val/loss" in row]
        for name in ("one", "two")
    ]
    assert validated[0] == pytest.approx(validated[1], rel=1e-4)


def _parameters(run: Path) -> dict[str, torch.Tensor]:
    return {name: value for name, value in weights_of(run).items() if name.startswith("state_dict")}
