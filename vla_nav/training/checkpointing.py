"""When a run writes its checkpoints, and how many it keeps.

    <run>/checkpoints/step_00000120/   weights, optimiser, averages, step, elapsed time, RNG
    <run>/checkpoints/step_00000090/   the one before (see `vla_nav.training.checkpoint_folder`)
    <run>/policy/                      the policy bundle (averaged weights) that evaluation reads

A kill -9 at any moment leaves at least one readable checkpoint; the steps after it are repeated
and give the same weights. When a validation falls on the same step, the checkpoint is written
after it, so that no point of the curve is lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from vla_nav.errors import UserError, require_count
from vla_nav.files import remove_folder, remove_leftovers
from vla_nav.training.checkpoint_folder import checkpoint_folders, step_folder

_AGREE_STEPS = 10  # several ranks compare their clocks so often


class RunCheckpoint(Checkpoint):
    """Writes a checkpoint every `every_steps` steps or `every_minutes` minutes, and at the end.

    save_policy: called with the module after each checkpoint to write the policy bundle.
    keep: how many checkpoints stay, the newest ones.
    """

    def __init__(
        self,
        folder: str | Path,
        save_policy: Callable[[Trainer, LightningModule], None],
        *,
        every_minutes: float | None = 1.0,
        every_steps: int | None = None,
        keep: int = 2,
    ) -> None:
        if every_minutes is None and every_steps is None:
            raise UserError("callbacks.checkpoint: give every_minutes or every_steps")
        for name, value in (("every_minutes", every_minutes), ("every_steps", every_steps)):
            if value is not None and value <= 0:
                raise UserError(
                    f"callbacks.checkpoint.{name}={value}: allowed are numbers above 0, or null"
                )
        require_count("callbacks.checkpoint.keep", keep)
        self.folder = Path(folder)
        self.every_minutes, self.every_steps, self.keep = every_minutes, every_steps, keep
        self._save_policy = save_policy
        self._saved_at_s = time.monotonic()
        self._saved_step = -1
        self._is_due = False

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Clear away what a killed writer left."""
        if trainer.is_global_zero and self.folder.is_dir():
            remove_leftovers(self.folder)
        self._saved_at_s = time.monotonic()
        self._saved_step = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any
    ) -> None:
        """Write if it is time, unless a validation of this step comes first."""
        step = trainer.global_step
        self._is_due |= self.every_steps is not None and step % self.every_steps == 0
        if self.every_minutes is not None:
            self._is_due |= self._is_late(trainer)
        if self._is_due and not _validates_after(trainer):
            self._write(trainer, pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the checkpoint that waited for this validation."""
        if self._is_due and not trainer.sanity_checking:
            self._write(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The last checkpoint of the run."""
        self._write(trainer, pl_module)

    def _is_late(self, trainer: Trainer) -> bool:
        """Whether `every_minutes` have passed; ranks agree, since writing is collective."""
        is_late = time.monotonic() - self._saved_at_s >= 60 * self.every_minutes
        if trainer.world_size == 1:
            return is_late
        return trainer.global_step % _AGREE_STEPS == 0 and trainer.strategy.broadcast(is_late)

    def _write(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._is_due = False
        self._saved_at_s = time.monotonic()
        if trainer.global_step == self._saved_step:
            return
        self._saved_step = trainer.global_step
        trainer.save_checkpoint(step_folder(self.folder, trainer.global_step), weights_only=False)
        if trainer.is_global_zero:
            for old in checkpoint_folders(self.folder)[self.keep :]:
                remove_folder(old)
        self._save_policy(trainer, pl_module)


def _validates_after(trainer: Trainer) -> bool:
    every = trainer.val_check_batch
    has_validation = trainer.enable_validation and isinstance(every, int)
    return has_validation and trainer.global_step % every == 0
