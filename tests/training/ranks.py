"""Several processes of one run on this machine, over gloo, for tests of training on ranks."""

from __future__ import annotations

import multiprocessing
import os
import socket
import time
from collections.abc import Callable

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_only

_HANG_S = 240  # a busy machine takes its time; a hang takes for ever


def as_rank(number: int, num_ranks: int, port: int) -> None:
    """Give this process the environment of a rank."""
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(number),
        LOCAL_RANK=str(number), WORLD_SIZE=str(num_ranks), LOCAL_WORLD_SIZE=str(num_ranks),
        NODE_RANK="0", GLOO_SOCKET_IFNAME="lo", TORCHELASTIC_RUN_ID="test",
    )  # fmt: skip
    rank_zero_only.rank = number  # read from the environment when Lightning was imported


def run_ranks(body: Callable[[int, int], None], num_ranks: int) -> list[int | None]:
    """Run `body(rank, port)` in forked processes; their exit codes."""
    port = _free_port()
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=body, args=(number, port)) for number in range(num_ranks)]
    for process in processes:
        process.start()
    deadline = time.monotonic() + _HANG_S
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
    for process in processes:
        if process.exitcode is None:
            process.kill()
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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
