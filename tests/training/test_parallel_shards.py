"""What sharded weights are, and the settings that they refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback

from tests.training.ranks import as_rank, run_ranks
from tests.training.tiny import OPTIONS, make_data, recipe, settings, train
from vla_nav.errors import UserError
from vla_nav.models.assembly import ModelConfig
from vla_nav.models.backbone import BackboneConfig
from vla_nav.training.parallel_shards import is_sharded, local
from vla_nav.training.parallel_strategy import ShardedStrategy
from vla_nav.training.schedule import Budget
from vla_nav.training.settings import PartitionSettings


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data"))


class Looks(Callback):
    """What a rank holds behind its first step."""

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimiser: Any) -> None:
        assert is_sharded(module.model)
        for name, parameter in module.model.named_parameters():
            held, grad = local(parameter), parameter.grad
            assert held.dtype == torch.float32, name  # masters
            assert held.numel() <= -(-parameter.shape[0] // 2) * max(1, parameter[0].numel()), name
            assert grad is None or local(grad).dtype == torch.float32, name


@pytest.mark.parametrize(("precision", "cpu_offload"), [("bf16-mixed", False), ("32-true", True)])
def test_a_rank_holds_half_of_every_weight_in_float32(
    data: Path, tmp_path: Path, precision: str, cpu_offload: bool
) -> None:
    def rank(number: int, port: int) -> None:
        as_rank(number, 2, port)
        train(
            recipe(data, settings=settings(budget=Budget(max_steps=2))),
            tmp_path / "run",
            num_ranks=2,
            strategy=ShardedStrategy(cpu_offload=cpu_offload),
            trainer={"precision": precision},
            extra=(Looks(),),
        )

    assert run_ranks(rank, 2) == [0, 0]


@pytest.mark.parametrize(
    ("changed", "precision", "message"),
    [
        ({"partition": PartitionSettings(25, "keep")}, "32-true", "partition.mode=recompute"),
        ({}, "bf16-true", "trainer.precision=bf16-true"),
        ({"compile": "joined"}, "32-true", "compile=layers"),
    ],
)
def test_what_does_not_fit_sharded_weights_is_refused(
    data: Path, tmp_path: Path, changed: dict[str, Any], precision: str, message: str
) -> None:
    def rank(number: int, port: int) -> None:
        as_rank(number, 1, port)
        compiled = changed.pop("compile", False)
        norms = "fused" if compiled else "transformers"
        backbone = BackboneConfig(options=OPTIONS, compile=compiled, norms=norms)
        made = recipe(data, settings=settings(**changed), model=ModelConfig(backbone=backbone))
        with pytest.raises(UserError, match=message):
            train(
                made,
                tmp_path / "run",
                num_ranks=1,
                strategy=ShardedStrategy(),
                trainer={"precision": precision},
            )

    assert run_ranks(rank, 1) == [0]
