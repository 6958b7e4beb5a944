"""Training steps on one to N ranks: tokens a second under ddp and fsdp, balanced and naive packs.

    case     strategy x ranks x assignment (cost | none: as training.balance) of one set of trees
    step     the product's own: TrainingModule, PackOrder, packs, AdamW; only the data are made
    tokens   of all trees of all ranks; a step ends on every rank before the next is counted

Weights are float32, products bfloat16 on a GPU. Every case first takes one step with the weights
that all cases begin with. Its loss and gradient norm have to be those of one rank that takes the
same packs one after another: nothing is reported otherwise.

Axis legend: F frames, P tokens of a frame, D feature width.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vla_nav.attention.registry import backend
from vla_nav.errors import UserError
from vla_nav.models.backbone import enable_checkpointing
from vla_nav.models.vla import VLA
from vla_nav.profiling.bounds import flop_model
from vla_nav.profiling.synthetic import FEATURE_WIDTH, Forest, synthetic_model, synthetic_tree
from vla_nav.training.balance import imbalance
from vla_nav.training.batch import Batch, PackMaker
from vla_nav.training.cost_model import CostModel, PackCosts, TreeCounts
from vla_nav.training.divergence import FiniteWatch
from vla_nav.training.fit import quiet
from vla_nav.training.module import TrainingModule
from vla_nav.training.packing import PackOrder
from vla_nav.training.parallel_strategy import ShardedStrategy
from vla_nav.training.schedule import Budget, Progress
from vla_nav.training.settings import PartitionSettings, TrainingSettings
from vla_nav.tree import PrefixTree, tree_stats

STRATEGIES = ("ddp", "fsdp", "fsdp_offload")
_SETTLING_STEPS = 3  # not timed: the first allocates and compiles


HEADING = (
    f"{'model':6} {'strategy':12} {'ranks':>5} {'packs':>5} {'step ms':>9} {'tokens/s':>10} "
    f"{'of one rank':>11} {'largest / mean cost':>19} {'peak GiB':>8}"
)
_MOST_DRIFT = {"cuda": (0.01, 0.05), "cpu": (1e-4, 1e-3)}  # of loss and gradient norm, relative


@dataclass(frozen=True)
class RanksCase:
    """A row to measure. trees: shapes (`synthetic.Forest`), as many of each as `copies`. budget:
    tokens of a pack. accumulate: packs of a rank. partition: 0 computes packs whole. layers: 0
    keeps the model's."""

    model: str
    strategy: str
    num_ranks: int
    assignment: str
    trees: str
    copies: int
    budget: int
    accumulate: int
    steps: int
    attention: str
    device: str
    compile: str
    checkpointing: bool
    partition: int = 0
    layers: int = 0


class _Steps(Dataset[Batch]):
    """The steps of one rank; packs are made when a loader worker is asked for them."""

    def __init__(self, case: RanksCase, order: PackOrder, *, num_steps: int) -> None:
        self._order, self._num_steps = order, num_steps
        attention = backend(case.attention, device=case.device)
        self._make = PackMaker(attention, PartitionSettings(case.partition or None))
        self._trees = _trees(case)
        self._width = _frame_tokens(case)
        self._dtype = torch.float32 if case.device == "cpu" else torch.bfloat16

    def __getitem__(self, step: int) -> Batch:
        packs = []
        for places in self._order.step(step):
            trees = [self._trees[place] for place in places]
            random = torch.Generator().manual_seed(places[0])
            size = (sum(tree.num_frames for tree in trees), self._width, 1)
            # One random number a token, spread over the channels: made in no time.
            rows = torch.randn(size, generator=random).expand(-1, -1, FEATURE_WIDTH)
            channels = torch.linspace(-1, 1, FEATURE_WIDTH)
            packs.append(self._make(trees, (rows * channels).to(self._dtype)))
        return Batch(tuple(packs), step, 0)

    def __len__(self) -> int:
        return self._num_steps


class _First(FiniteWatch):
    """Keeps the loss and gradient norm of the first step."""

    first: tuple[Tensor, Tensor] | None = None

    def note(self, step: int, loss: Tensor, norm: Tensor) -> None:
        """As the product's, and the first pair is kept."""
        super().note(step, loss, norm)
        if self.first is None:
            self.first = (loss.detach().clone(), norm.detach().clone())


class _Timed(TrainingModule):
    """The product's step between two looks at the clock: data, passes, exchange, optimiser."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.finite = _First()
        self.ends_s: list[float] = []

    def on_train_batch_end(self, *_: Any) -> None:
        """Note the time, once the device is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        self.ends_s.append(time.perf_counter())


def measure_case(case: RanksCase) -> dict[str, Any]:
    """The row of a case, in a process that is one of its ranks."""
    trainer, module, orders = _trained(case, num_ranks=case.num_ranks, steps=case.steps)
    rows = _first(trainer, module)
    timed = range(_SETTLING_STEPS, _SETTLING_STEPS + case.steps)
    sizes = [tree.num_tokens for tree in _trees(case)]
    tokens = sum(sizes[k] for o in orders for step in timed for pack in o.step(step) for k in pack)
    costs = _costs(case, module.model)
    loads = [[int(costs.of(order.step(step)).sum()) for order in orders] for step in timed]
    ends = module.ends_s[_SETTLING_STEPS - 1 :]
    is_gpu = case.device == "cuda"
    return {
        **asdict(case),
        **rows,
        "tokens_per_s": round(tokens / (ends[-1] - ends[0]), 1),
        "step_ms": round(1e3 * median(b - a for a, b in pairwise(ends)), 2),
        "tokens_per_step": tokens // case.steps,
        "cost_over_mean": round(imbalance(np.array(loads)), 4),
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2) if is_gpu else None,
        "gpu": torch.cuda.get_device_name() if is_gpu else None,
    }


def measure_reference(case: RanksCase) -> dict[str, float]:
    """Loss and gradient norm of the first step, of one rank that takes all ranks' packs."""
    whole = replace(case, strategy="ddp", accumulate=case.accumulate * case.num_ranks)
    trainer, module, _ = _trained(whole, num_ranks=1, steps=1 - _SETTLING_STEPS)
    return _first(trainer, module)


def require_same_step(
    case: RanksCase, row: Mapping[str, Any], reference: Mapping[str, float]
) -> None:
    """Raise `UserError` where the ranks' first step is another than one rank's."""
    for key, most in zip(("loss", "gradient_norm"), _MOST_DRIFT[case.device], strict=True):
        found, wanted = float(row[key]), float(reference[key])
        if not abs(found - wanted) <= most * abs(wanted):
            raise UserError(
                f"{case.strategy} on {case.num_ranks} ranks: {key} of the first step is "
                f"{found:.6g}, one rank has {wanted:.6g} (allowed {most:g} relative); nothing is "
                "reported"
            )


def line(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """A row of the table under `HEADING`; scaling is to the row of one rank, where there is one."""
    same = ("model", "strategy", "trees", "budget", "accumulate", "partition")
    one = [r for r in rows if r["num_ranks"] == 1 and all(r[key] == row[key] for key in same)]
    scaling = f"{row['tokens_per_s'] / one[0]['tokens_per_s']:.2f}x" if one else "-"
    peak = "-" if row["peak_gib"] is None else f"{row['peak_gib']:.1f}"
    packs = {"cost": "even", "none": "naive"}[row["assignment"]]
    return (
        f"{row['model']:6} {row['strategy']:12} {row['num_ranks']:>5} {packs:>5} "
        f"{row['step_ms']:>9.1f} {row['tokens_per_s']:>10,.0f} {scaling:>11} "
        f"{row['cost_over_mean']:>19.3f} {peak:>8}"
    )


def _trained(
    case: RanksCase, *, num_ranks: int, steps: int
) -> tuple[Trainer, _Timed, list[PackOrder]]:
    """A run of `steps` steps behind the settling ones, and every rank's packs."""
    quiet()
    torch.manual_seed(0)
    is_gpu = case.device == "cuda"
    if is_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    model = synthetic_model(
        case.model,
        case.attention,
        device=case.device,
        dtype=torch.float32,
        num_patches=_frame_tokens(case),
        num_layers=case.layers or None,
        compile_layers=False if case.compile == "false" else case.compile,
    )
    if case.checkpointing:
        enable_checkpointing(model.backbone.model)
    steps += _SETTLING_STEPS
    settings = TrainingSettings(
        pack_tokens=case.budget,
        accumulate=case.accumulate,
        budget=Budget(max_steps=steps),
        partition=PartitionSettings(case.partition or None),
        log_every_steps=steps + 1,
    )
    orders = [
        PackOrder(
            [tree.num_tokens for tree in _trees(case)],
            pack_tokens=case.budget,
            accumulate=case.accumulate,
            rank=rank,
            num_ranks=num_ranks,
            costs=_costs(case, model) if case.assignment == "cost" else None,
        )
        for rank in range(num_ranks)
    ]
    module = _Timed(model, settings, Progress(settings.budget, total_steps=steps), stop_id=0)
    trainer = Trainer(
        accelerator="gpu" if is_gpu else "cpu",
        devices=num_ranks,
        strategy=_strategy(case.strategy),
        precision="bf16-mixed" if is_gpu else "32-true",
        max_steps=steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    data = DataLoader(
        _Steps(case, orders[trainer.global_rank], num_steps=steps),
        batch_size=None,
        num_workers=2 if is_gpu else 0,
        pin_memory=is_gpu,
        prefetch_factor=4 if is_gpu else None,
        collate_fn=_unchanged,
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*no `val_dataloader`.*")
        trainer.fit(module, data)
    return trainer, module, orders


def _first(trainer: Trainer, module: _Timed) -> dict[str, float]:
    """Loss over all ranks and gradient norm of the first step."""
    assert isinstance(module.finite, _First)
    assert module.finite.first is not None
    loss, norm = module.finite.first
    if trainer.world_size > 1:
        loss = trainer.strategy.reduce(loss, reduce_op="sum")
    return {"loss": float(loss), "gradient_norm": float(norm)}


def _strategy(name: str) -> Any:
    if name == "ddp":
        return DDPStrategy(gradient_as_bucket_view=True)
    return ShardedStrategy(cpu_offload=name == "fsdp_offload")


def _costs(case: RanksCase, model: VLA) -> PackCosts:
    counts = TreeCounts.of([tree_stats(tree) for tree in _trees(case)])
    flops = CostModel.from_flops(flop_model(model))
    return PackCosts(flops, counts, PartitionSettings(case.partition or None))


@cache
def _trees(case: RanksCase) -> tuple[PrefixTree, ...]:
    shapes = [Forest.parse(text).shape for text in case.trees.split(",")]
    return tuple(
        synthetic_tree(shape, seed=seed) for seed in range(case.copies) for shape in shapes
    )


def _frame_tokens(case: RanksCase) -> int:
    """Rows of a frame: as many as the largest frames have."""
    shapes = [Forest.parse(text).shape for text in case.trees.split(",")]
    return max(shape.frame + shape.history for shape in shapes)


def _unchanged(batch: Batch) -> Batch:
    return batch
