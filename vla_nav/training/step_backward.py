"""The gradients of a step: every pack's loss over one denominator, backwards.

    one after another   the last pack's backward exchanges gradients between ranks
    in partitions       nobody exchanges until all are done, then one sum over ranks
    sharded weights     in step with the other ranks (`vla_nav.training.parallel_backward`)
    in threads          on one CPU process (`vla_nav.training.threaded_backward`)

DDP and sharding average gradients over ranks, and the denominator already counts the packs of all
of them: so losses are scaled by the number of ranks.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, distributed

from vla_nav.losses import (
    Loss,
    Predictions,
    loss_denominator,
    total_denominator,
    weighted_cross_entropy,
)
from vla_nav.models.vla import VLA
from vla_nav.training.batch import Batch, Pack
from vla_nav.training.gradients import frame_parameters, sum_over_ranks, zero_loss
from vla_nav.training.parallel_backward import ShardedPasses
from vla_nav.training.partitioned import partitioned_backward
from vla_nav.training.settings import TrainingSettings
from vla_nav.training.threaded_backward import ThreadedBackward
from vla_nav.tree.packing import PackedTree

GRADIENTS_OVER_RANKS = "gradients over ranks"  # what the trainer's profiler is told of their sum


class StepBackward:
    """Adds the gradients of a step's packs to the weights.

    module: whose trainer has the ranks, the precision and the profiler. sharded: where the weights
    are spread over ranks.
    """

    def __init__(
        self,
        module: LightningModule,
        model: VLA,
        settings: TrainingSettings,
        sharded: ShardedPasses | None,
    ) -> None:
        self._module, self._model, self._settings = module, model, settings
        self._sharded = sharded
        num_threads = settings.parallel_packs
        self._threads = ThreadedBackward(num_threads) if num_threads > 1 else None

    def totals(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Of all packs of all ranks: the loss denominator of the step, and the episodes in it."""
        normalisation = self._settings.normalisation
        # A rank may have no pack.
        sums = torch.zeros(2, dtype=torch.float64, device=self._module.device)
        for pack in batch.packs:
            sums[0] += loss_denominator(pack.packed, normalisation)
        sums[1].fill_(batch.num_episodes)
        if self._module.trainer.world_size > 1:
            distributed.all_reduce(sums)
        return total_denominator(sums[:1], normalisation), sums[1]

    def run(self, batch: Batch, denominator: Tensor) -> Tensor:
        """Gradients of all packs; returns the loss of this rank's packs."""
        if self._threads is None:
            return self.one_by_one(batch, denominator)
        context = self._module.trainer.precision_plugin.forward_context
        total = torch.zeros((), device=self._module.device)
        return self._threads.run(
            batch.packs,
            lambda pack: self._loss(pack, denominator).value,
            self._trained(),
            total,
            context=context,
        )

    def one_by_one(self, batch: Batch, denominator: Tensor) -> Tensor:
        """The same without threads."""
        trainer = self._module.trainer
        total = torch.zeros((), device=self._module.device)
        num_ranks = trainer.world_size
        if self._sharded is not None:
            return (
                self._sharded.step(
                    batch.packs,
                    lambda found, packed: (
                        self._cross_entropy(found, packed, denominator).value * num_ranks
                    ),
                )
                / num_ranks
            )
        if self._settings.partition.tokens is not None and num_ranks > 1:
            # Ranks cut into different numbers of partitions, so they meet after the last one.
            with self._gradient_sync(is_last=False):
                for pack in batch.packs:
                    total += self._pack_backward(pack, denominator, 1)
            with trainer.profiler.profile(GRADIENTS_OVER_RANKS):
                sum_over_ranks(self._trained())
            return total
        for index, pack in enumerate(batch.packs):
            is_last = index == len(batch.packs) - 1
            with self._gradient_sync(is_last=is_last):
                total += self._pack_backward(
                    pack, denominator, num_ranks, is_exchanged=is_last and num_ranks > 1
                )
        if not batch.packs:  # the others' exchange needs this rank's zeros
            zero = zero_loss(self._trained())
            assert zero is not None
            self._module.manual_backward(zero)
        return total

    def _pack_backward(
        self, pack: Pack, denominator: Tensor, scale: int, *, is_exchanged: bool = False
    ) -> Tensor:
        """Gradients of one pack, whole or in partitions, times `scale`; returns its loss.

        is_exchanged: ranks exchange gradients in this pass, so that none may be missing.
        """
        backward = self._module.manual_backward
        if pack.partitions is None:
            loss = self._loss(pack, denominator).value
            zero = zero_loss(frame_parameters(self._model)) if is_exchanged else None
            backward(loss * scale if zero is None else loss * scale + zero)
            return loss.detach()
        return partitioned_backward(
            self._model,
            pack.partitions,
            pack.frames,
            lambda found, packed: self._cross_entropy(found, packed, denominator).value,
            backward=lambda loss: backward(loss * scale),
        )

    def _loss(self, pack: Pack, denominator: Tensor) -> Loss:
        found = self._model.predictions(pack.packed, pack.frames, pack.plan)
        return self._cross_entropy(found, pack.packed, denominator)

    def _cross_entropy(
        self, predictions: Predictions, packed: PackedTree, denominator: Tensor
    ) -> Loss:
        return weighted_cross_entropy(
            predictions,
            packed,
            normalisation=self._settings.normalisation,
            denominator=denominator,
        )

    def _gradient_sync(self, *, is_last: bool) -> AbstractContextManager[Any]:
        """Gradients are exchanged between ranks in the last backward of a step only."""
        wrapped = self._module.trainer.strategy.model
        if is_last or not isinstance(wrapped, torch.nn.parallel.DistributedDataParallel):
            return nullcontext()
        return wrapped.no_sync()

    def _trained(self) -> list[torch.nn.Parameter]:
        return [parameter for parameter in self._model.parameters() if parameter.requires_grad]
