"""The training loop in Lightning's terms: steps, optimiser and logging, no maths of its own.

    optimiser step
      for every pack of the step:  logits at the predictors -> weighted cross-entropy over the
                                   denominator of the whole step (all packs, all ranks) -> backward
      clip the gradient norm -> learning rate of this progress -> AdamW

Optimisation is manual because a loss is normalised over the whole step: a mean per pack would
weigh packs with few trees too much. Losses and accuracies are logged at steps that are multiples
of `log_every_steps` only, so that no other step waits for a number.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from vla_nav.errors import UserError
from vla_nav.models.vla import VLA
from vla_nav.training.batch import Batch
from vla_nav.training.divergence import FiniteWatch
from vla_nav.training.optimiser import build_optimiser
from vla_nav.training.parallel_backward import ShardedPasses
from vla_nav.training.parallel_passes import Agreement
from vla_nav.training.parallel_shards import whole
from vla_nav.training.parallel_strategy import ShardedStrategy
from vla_nav.training.schedule import Progress, learning_rate_factor
from vla_nav.training.settings import TrainingSettings
from vla_nav.training.step_backward import StepBackward
from vla_nav.training.table_rows import TableRows
from vla_nav.training.validation import Validation


class TrainingModule(LightningModule):
    """Trains a `VLA` on batches of packs.

    stop_id: the token that alone is the STOP action. text_ids: rows of the text table that the
    training episodes use (needed with `optimiser.used_rows`).
    """

    def __init__(
        self,
        model: VLA,
        settings: TrainingSettings,
        progress: Progress,
        *,
        stop_id: int,
        text_ids: Iterable[int] = (),
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model = model
        self.settings = settings
        self.progress = progress
        settings.optimiser.freeze_in(model)
        self._text_rows = self._used_rows(text_ids) if settings.optimiser.used_rows else None
        self._validation = Validation(model, normalisation=settings.normalisation, stop_id=stop_id)
        self._num_episodes = 0
        self._since = (0.0, 0)
        self.finite = FiniteWatch()
        self._sharded: ShardedPasses | None = None
        self._gradients: StepBackward | None = None  # made when there are ranks
        self._agreement: Agreement | None = None  # on the clock
        self._seen: Tensor | None = None  # episodes that are not counted yet, on the device
        self.last_loss, self.episodes_per_s = math.nan, 0.0
        self.is_finished = False  # after the step that used up the budget
        self.validated: tuple[int, dict[str, float]] | None = None  # step and values of the last

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW over the parts of the model."""
        return build_optimiser(self.model, self.settings.optimiser, text_rows=self._text_rows)

    def configure_model(self) -> None:
        """Spread the weights over the ranks where the strategy does; before the optimiser is
        made."""
        strategy = self.trainer.strategy
        self._require_fitting(strategy)
        if isinstance(strategy, ShardedStrategy):
            strategy.shard(self.model)
        if isinstance(strategy, ShardedStrategy) and self._sharded is None:
            self._sharded = ShardedPasses(
                self.model, strategy.root_device, backward=self.manual_backward
            )
        if self._gradients is None:
            self._gradients = StepBackward(self, self.model, self.settings, self._sharded)

    def on_train_start(self) -> None:
        """The clock runs from here, on top of what earlier starts took."""
        self.progress.stopwatch.restart(self.progress.stopwatch.earlier_s)
        self._since = (time.monotonic(), self.num_episodes)
        if self.trainer.world_size > 1 and self.progress.total_steps is None:
            self._agreement = Agreement()
        if self._text_rows is not None:
            dtype = self.model.backbone.text_embedding.weight.dtype
            if dtype != self._text_rows.rows.dtype:
                raise UserError(
                    f"training.optimiser.used_rows=true is for float32 weights, they are {dtype} "
                    f"(trainer.precision={self.trainer.precision}): set used_rows=false"
                )
            self._text_rows.read()

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """One optimiser step over all packs of the batch."""
        if batch.step != self.global_step:
            raise UserError(
                f"the data are at step {batch.step}, training at step {self.global_step}: keys of "
                "the trainer that end an epoch early (limit_train_batches) do not fit; take them "
                "away and set training.budget"
            )
        optimiser = self.optimizers()
        assert self._gradients is not None
        denominator, num_episodes = self._gradients.totals(batch)
        total = self._gradients.run(batch, denominator)
        if self._text_rows is not None:
            self._text_rows.take_gradient()
        norm = torch.nn.utils.clip_grad_norm_(
            [parameter for group in optimiser.param_groups for parameter in group["params"]],
            self.settings.optimiser.clip_norm or math.inf,
            foreach=True,
        )
        norm = whole(norm)
        self.finite.note(self.global_step + 1, total, norm)
        share = self.share_done(self.global_step)
        self._set_rates(optimiser, share)
        optimiser.step()
        if self._text_rows is not None:
            self._text_rows.write()
        optimiser.zero_grad(set_to_none=True)
        self._seen = num_episodes if self._seen is None else self._seen + num_episodes
        if self.global_step % self.settings.log_every_steps == 0:
            self._log_step(batch, total, norm, optimiser)
        self.is_finished = share >= 1.0
        if self.is_finished:
            self.trainer.should_stop = True

    def rehearse(self, batch: Batch) -> None:
        """Forward and backward of a step whose gradients are thrown away."""
        assert self._gradients is not None
        self._gradients.one_by_one(batch, self._gradients.totals(batch)[0])
        self.zero_grad(set_to_none=True)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Sum the loss and the counts of right tokens, actions and stops."""
        if self._sharded is not None and not batch.packs:
            with self._sharded.validating(None):
                return
        for pack in batch.packs:
            sharded = self._sharded
            self._validation.add(
                pack, within=nullcontext() if sharded is None else sharded.validating(pack)
            )

    def on_validation_epoch_end(self) -> None:
        """Log the curves of this validation, over all ranks."""
        sums = self._validation.sums(self.device)
        self._validation.clear()
        if self.trainer.world_size > 1:
            sums = self.trainer.strategy.reduce(sums, reduce_op="sum")
        values = self._validation.values(sums)
        self.validated = (self.global_step, values)
        named = {f"val/{name}": value for name, value in values.items()}
        self.log_dict(named, logger=False)  # for callbacks
        for logger in self.loggers:
            logger.log_metrics(named, self.global_step)

    def share_done(self, step: int) -> float:
        """Progress in [0, 1] at the end of step `step` (from 0), the same on every rank."""
        share = self.progress.at(step)
        return share if self._agreement is None else self._agreement.of_first(share)

    @property
    def _packs_per_step(self) -> int:
        return self.settings.accumulate * self.trainer.world_size

    @property
    def num_episodes(self) -> int:
        """Episodes trained on so far, over all ranks and restarts, repeats counted."""
        if self._seen is not None:  # counted where the device is, read when asked for
            self._num_episodes += round(float(self._seen))
            self._seen = None
        return self._num_episodes

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Beside Lightning's state: elapsed time and episodes seen."""
        checkpoint["run"] = {
            "elapsed_s": self.progress.stopwatch.elapsed_s,
            "num_episodes": self.num_episodes,
            "packs_per_step": self._packs_per_step,
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take up the clock and the count."""
        run = checkpoint["run"]
        if run["packs_per_step"] != self._packs_per_step:
            raise UserError(
                f"the run took {run['packs_per_step']} packs a step over all ranks, now it is "
                f"training.accumulate={self.settings.accumulate} on {self.trainer.world_size} "
                "ranks; set training.accumulate so that their product is the same"
            )
        self.progress.stopwatch.earlier_s = run["elapsed_s"]
        self._num_episodes = run["num_episodes"]

    def _used_rows(self, text_ids: Iterable[int]) -> TableRows | None:
        if self.model.head != "actions":
            raise UserError(
                f"training.optimiser.used_rows=true needs models.head=actions, got "
                f"{self.model.head}: that head trains every row; set used_rows=false"
            )
        if not self.model.backbone.text_embedding.weight.requires_grad:
            return None  # nothing of the table trains
        return TableRows(self.model.backbone.text_embedding, text_ids)

    def _require_fitting(self, strategy: Any) -> None:
        """Raise `UserError` for settings that several ranks or a GPU do not have."""
        num_ranks, kind = self.trainer.world_size, strategy.root_device.type
        for key, is_on in (
            ("parallel_packs=1", self.settings.parallel_packs > 1),
            ("optimiser.used_rows=false", self._text_rows is not None),
        ):
            if is_on and (num_ranks > 1 or kind != "cpu"):
                raise UserError(
                    f"training.{key.partition('=')[0]} is for one process on the CPU; here are "
                    f"{num_ranks} on {kind}: set training.{key}"
                )
        is_sharded = isinstance(strategy, ShardedStrategy)
        partition = self.settings.partition
        if is_sharded and partition.tokens is not None and partition.mode == "keep":
            raise UserError(
                "training.partition.mode=keep: ranks that hold shards of weights (trainer=fsdp) "
                "cannot run trees of different shapes side by side in this mode; set "
                "training.partition.mode=recompute, or trainer=ddp"
            )

    def _set_rates(self, optimiser: Any, share: float) -> None:
        factor = learning_rate_factor(
            share,
            warmup_share=self.settings.warmup_share,
            final_share=self.settings.final_share,
        )
        for group in optimiser.param_groups:
            group["lr"] = group["base_lr"] * factor

    def _log_step(self, batch: Batch, total: Tensor, norm: Tensor, optimiser: Any) -> None:
        now, (then, before) = time.monotonic(), self._since
        self._since = (now, self.num_episodes)
        self.episodes_per_s = (self.num_episodes - before) / max(now - then, 1e-9)
        if self.trainer.world_size > 1:
            total = self.trainer.strategy.reduce(total, reduce_op="sum")
        self.last_loss = float(total)
        values = {
            "loss": self.last_loss,
            "gradient_norm": float(norm),
            "learning_rate": optimiser.param_groups[0]["lr"],
            "epoch": float(batch.epoch),
            "episodes": float(self.num_episodes),
            "tokens": float(batch.num_tokens),
            "episodes_per_s": self.episodes_per_s,
        }
        for logger in self.loggers:
            logger.log_metrics(values, self.global_step)
