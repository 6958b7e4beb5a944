"""When a run writes its checkpoints, and how many it keeps.

    <run>/checkpoints/step_00000120/   weights, optimiser, averages, step, elapsed time, RNG
    <run>/checkpoints/step_00000090/   the one before (see `vla_nav.training.checkpoint_folder`)
    <run>/policy/                      the policy bundle (averaged weights) that evaluation reads

A kill -9 at any moment leaves at least one readable checkpoint; the steps after it are repeated
and give the same weights. When a validation falls on the same step, the checkpoint is written
after it, so that no point of the curve is lost. A signal (SIGTERM, and others if asked) has a
checkpoint written and ends the run; a loss that is no number ends it before one is.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from vla_nav.errors import StoppedError, UserError, require_count
from vla_nav.files import remove_folder
from vla_nav.training.checkpoint_folder import checkpoint_folders, step_folder
from vla_nav.training.checkpoint_random import over_ranks, random_state, set_random_state
from vla_nav.training.divergence import require_finite
from vla_nav.training.signals import RankFlags, StopSignals


class RunCheckpoint(Checkpoint):
    """Writes a checkpoint every `every_steps` steps or `every_minutes` minutes, and at the end.

    save_policy: called with the module after each checkpoint to write the policy bundle.
    keep: how many checkpoints stay, the newest ones. signals: names of signals after which a
    checkpoint is written and the run ends, with exit code 128 + the signal's number.
    """

    def __init__(
        self,
        folder: str | Path,
        save_policy: Callable[[Trainer, LightningModule], None],
        *,
        every_minutes: float | None = 1.0,
        every_steps: int | None = None,
        keep: int = 2,
        signals: Sequence[str] = ("SIGTERM",),
    ) -> None:
        if every_minutes is None and every_steps is None:
            raise UserError("callbacks.checkpoint: give every_minutes or every_steps")
        is_number = isinstance(every_minutes, int | float) and not isinstance(every_minutes, bool)
        if every_minutes is not None and not (is_number and every_minutes > 0):
            raise UserError(
                f"callbacks.checkpoint.every_minutes={every_minutes}: allowed are numbers above 0, "
                "or null"
            )
        require_count("callbacks.checkpoint.every_steps", every_steps, or_null=True)
        require_count("callbacks.checkpoint.keep", keep)
        self.folder = Path(folder)
        self.every_minutes, self.every_steps, self.keep = every_minutes, every_steps, keep
        self._save_policy = save_policy
        self._signals = StopSignals(signals)
        self._flags: RankFlags | None = None
        self._random: list[dict[str, Any]] = []
        self._saved_at_s = time.monotonic()
        self._saved_step = -1
        self._is_due = False
        self._stop: signal.Signals | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Listen to signals, and continue this rank's random generators."""
        self._saved_at_s = time.monotonic()
        self._saved_step = trainer.global_step
        self._flags = RankFlags()
        self._signals.install()
        if trainer.global_rank < len(self._random):
            set_random_state(self._random[trainer.global_rank], trainer.strategy.root_device)
        self._random = []

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any
    ) -> None:
        """Write if it is time, unless a validation of this step comes first."""
        step = trainer.global_step
        if step % pl_module.settings.log_every_steps == 0:  # the device was waited for just now
            require_finite(trainer, pl_module, newest=self.newest)
        self._is_due |= self.every_steps is not None and step % self.every_steps == 0
        self._listen(trainer)
        if self._is_due and not _validates_after(trainer):
            self._write(trainer, pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the checkpoint that waited for this validation, or that a signal asks for."""
        if self._flags is not None:  # not in a validation outside of training
            self._listen(trainer)
        if self._is_due:
            self._write(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The last checkpoint of the run."""
        self._flags = None
        self._write(trainer, pl_module)
        self._signals.restore()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Hear signals no longer."""
        self._signals.restore()

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """The random generators of every rank."""
        checkpoint["random"] = over_ranks(random_state(trainer.strategy.root_device))

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Taken up when training starts, after everything that draws while it is set up."""
        self._random = checkpoint["random"]

    def _listen(self, trainer: Trainer) -> None:
        """Signals and clocks, the same on every rank: writing is collective.

        Several ranks hear of both one step late, and of a clock perhaps after what it asked for.
        """
        assert self._flags is not None
        late_s = 60 * (self.every_minutes or float("inf"))
        is_late = time.monotonic() - self._saved_at_s >= late_s
        stop, is_late_somewhere = self._flags.exchange([self._signals.received or 0, int(is_late)])
        asked_at = trainer.global_step - (trainer.world_size > 1)
        self._is_due |= bool(is_late_somewhere) and asked_at > self._saved_step
        if stop and self._stop is None:
            self._stop = signal.Signals(stop)
            self._is_due = True

    def _write(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._is_due = False
        self._saved_at_s = time.monotonic()
        if trainer.global_step != self._saved_step:
            require_finite(trainer, pl_module, with_weights=True, newest=self.newest)
            self._saved_step = trainer.global_step
            folder = step_folder(self.folder, trainer.global_step)
            trainer.save_checkpoint(folder, weights_only=False)
            if trainer.is_global_zero:
                for old in checkpoint_folders(self.folder)[self.keep :]:
                    remove_folder(old)
            self._save_policy(trainer, pl_module)
        if self._stop is not None:
            trainer.strategy.barrier()  # a rank that ends sooner has the others killed
            self._signals.pass_on()
            raise StoppedError(
                f"ended by {self._stop.name} after step {trainer.global_step}, kept in "
                f"{step_folder(self.folder, trainer.global_step)}; the same command continues",
                128 + self._stop,
                is_shared=True,
            )

    def is_stopping(self) -> bool:
        """Whether this process was sent a signal that ends the run."""
        return self._signals.received is not None

    def newest(self) -> str | None:
        """The newest checkpoint."""
        return next((str(path) for path in checkpoint_folders(self.folder)), None)


def _validates_after(trainer: Trainer) -> bool:
    every = trainer.val_check_batch
    has_validation = trainer.enable_validation and isinstance(every, int)
    return has_validation and trainer.global_step % every == 0
