"""A profile of two ranks: the exchange of gradients is a part of the step."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.training.test_ranks import run_ranks
from tests.training.tiny import cpu_trainer, make_data, recipe, settings
from vla_nav.files import read_json
from vla_nav.profiling.profile_run import profile
from vla_nav.profiling.regions import COMMUNICATION
from vla_nav.profiling.step_profile import ProfileSettings
from vla_nav.training.settings import PartitionSettings


@pytest.mark.parametrize("tokens", [None, 25])
def test_communication_is_a_part_and_the_parts_add_up(tmp_path: Path, tokens: int | None) -> None:
    data = make_data(tmp_path / "data", num_episodes=12)

    def rank(number: int, port: int) -> None:
        os.environ.update(
            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(number),
            LOCAL_RANK=str(number), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", NODE_RANK="0",
            GLOO_SOCKET_IFNAME="lo", TORCHELASTIC_RUN_ID="test",
        )  # fmt: skip
        profile(
            recipe(data, settings=settings(partition=PartitionSettings(tokens))),
            ProfileSettings(warmup_steps=1, steps=2, trace_steps=0, html=False),
            output_dir=tmp_path / "out",
            make_trainer=lambda **keywords: cpu_trainer(num_ranks=2, **keywords),
            progress=lambda line: None,
        )

    assert run_ranks(rank, 2) == [0, 0]
    result = read_json(tmp_path / "out" / "profile.json")
    assert result["check"]["adds_up"], result["check"]
    assert result["what"]["num_ranks"] == 2
    spent = sum(part["ms"] for part in result["parts"] if part["region"] == COMMUNICATION)
    assert spent > 0.05
    assert result["epoch"]["device_hours"] == pytest.approx(2 * result["epoch"]["hours"])
