"""Lightning's loop over steps without its exchange of SIGTERM.

Since 2.6 it broadcasts a flag from rank 0 before every step and reads it, which waits for the
device. `vla_nav.training.signals` has the ranks agree on more signals, on the CPU.
"""

from __future__ import annotations

from lightning.pytorch import Trainer
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop


class EpochLoop(_TrainingEpochLoop):
    """See the module's docstring."""

    def _broadcast_sigterm_tensor(self) -> None:
        """Nothing: signals are agreed on elsewhere."""


def use_epoch_loop(trainer: Trainer) -> None:
    """Have `trainer` run this loop; before it fits."""
    own = trainer.fit_loop.epoch_loop
    trainer.fit_loop.epoch_loop = EpochLoop(trainer, own.min_steps, own.max_steps)
