"""A profile of two ranks: the exchange of gradients is a part of the step."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.test_ranks import run_ranks
from tests.training.tiny import cpu_trainer, make_data, recipe, settings
from vla_nav.files import read_json
from vla_nav.profiling.profile_run import profile
from vla_nav.profiling.regions import COMMUNICATION, OPTIMISER
from vla_nav.profiling.step_profile import ProfileSettings
from vla_nav.training import step_backward
from vla_nav.training.settings import PartitionSettings

SUM_S, NORM_S = 0.2, 0.15


def profiled_by_two(
    data: Path, folder: Path, tokens: int | None, prepare: Callable[[], None] = lambda: None
) -> dict[str, float]:
    """ms of every region. prepare: called in each of the two processes."""

    def rank(number: int, port: int) -> None:
        os.environ.update(
            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(number),
            LOCAL_RANK=str(number), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", NODE_RANK="0",
            GLOO_SOCKET_IFNAME="lo", TORCHELASTIC_RUN_ID="test",
        )  # fmt: skip
        prepare()
        profile(
            recipe(data, settings=settings(partition=PartitionSettings(tokens))),
            ProfileSettings(warmup_steps=1, steps=2, trace_steps=0, html=False),
            output_dir=folder,
            make_trainer=lambda **keywords: cpu_trainer(num_ranks=2, **keywords),
            progress=lambda line: None,
        )

    assert run_ranks(rank, 2) == [0, 0]
    result = read_json(folder / "profile.json")
    assert result["check"]["adds_up"], result["check"]
    assert result["what"]["num_ranks"] == 2
    assert result["epoch"]["device_hours"] == pytest.approx(2 * result["epoch"]["hours"])
    found: dict[str, float] = {}
    for part in result["parts"]:
        found[part["region"]] = found.get(part["region"], 0.0) + part["ms"]
    return found


@pytest.mark.parametrize("tokens", [None, 25])
def test_communication_is_a_part_and_the_parts_add_up(tmp_path: Path, tokens: int | None) -> None:
    data = make_data(tmp_path / "data", num_episodes=12)
    assert profiled_by_two(data, tmp_path / "out", tokens)[COMMUNICATION] > 0.05


def test_gradients_of_partitions_over_ranks_are_not_the_optimisers(tmp_path: Path) -> None:
    def late(seconds: float, function: Callable[..., Any]) -> Callable[..., Any]:
        def sleeping(*arguments: Any, **keywords: Any) -> Any:
            time.sleep(seconds)
            return function(*arguments, **keywords)

        return sleeping

    def prepare() -> None:  # in a forked process of its own
        step_backward.sum_over_ranks = late(SUM_S, step_backward.sum_over_ranks)
        torch.nn.utils.clip_grad_norm_ = late(NORM_S, torch.nn.utils.clip_grad_norm_)

    data = make_data(tmp_path / "data", num_episodes=12)
    found = profiled_by_two(data, tmp_path / "out", 25, prepare)
    assert 1e3 * SUM_S <= found[COMMUNICATION] < 1e3 * (SUM_S + NORM_S)
    assert 1e3 * NORM_S <= found[OPTIMISER] < 1e3 * (SUM_S + NORM_S)
