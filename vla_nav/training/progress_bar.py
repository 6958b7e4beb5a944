"""What a person sees while a run trains: one live line on a terminal, a line now and then in a log.

training  ######-----  57 %  step 412  loss 0.731  61 episodes/s  3:02 left
"""

from __future__ import annotations

import math
import time
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from vla_nav.errors import UserError


class RunProgress(Callback):
    """Shows progress by the run's own budget (steps or minutes).

    plain_every_s: seconds between lines where the output is no terminal.
    """

    def __init__(self, plain_every_s: float = 30.0) -> None:
        if not plain_every_s > 0:
            raise UserError(f"callbacks.progress.plain_every_s={plain_every_s}; above 0 is needed")
        self.plain_every_s = plain_every_s
        self._console = Console()
        self._bar: Progress | None = None
        self._task: Any = None
        self._shown_s = -math.inf

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the bar where there is a terminal."""
        if trainer.is_global_zero and self._console.is_terminal:
            columns = (TextColumn("training"), BarColumn(), TextColumn("{task.fields[text]}"))
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._task = self._bar.add_task("training", total=1.0, text="")
            self._bar.start()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any
    ) -> None:
        """Update the bar four times a second, or write a line every `plain_every_s` seconds."""
        now = time.monotonic()
        if now - self._shown_s < (0.25 if self._bar is not None else self.plain_every_s):
            return
        if not trainer.is_global_zero:
            return
        self._shown_s = now
        share = pl_module.progress.at(trainer.global_step - 1)
        text = self._text(trainer, pl_module, share)
        if self._bar is not None:
            self._bar.update(self._task, completed=share, text=text)
        else:
            self._console.print(f"training  {text}", highlight=False, soft_wrap=True)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """One line per validation."""
        if trainer.sanity_checking or not trainer.is_global_zero:
            return
        metrics = trainer.callback_metrics
        values = [
            f"{name.removeprefix('val/').replace('_', ' ')} {_rate(float(value))}"
            for name, value in sorted(metrics.items())
            if name.startswith("val/")
        ]
        if values:
            line = f"validation at step {trainer.global_step}:  {',  '.join(values)}"
            self._console.print(line, highlight=False, soft_wrap=True)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the bar away."""
        self._stop()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Leave the terminal in order."""
        self._stop()

    def _stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _text(self, trainer: Trainer, pl_module: LightningModule, share: float) -> str:
        left_s = pl_module.progress.remaining_s(trainer.global_step)
        left = f"{int(left_s // 60)}:{int(left_s % 60):02d} left" if math.isfinite(left_s) else ""
        loss = pl_module.last_loss  # nan until the first logged step
        known = f"loss {loss:.3f}  " if math.isfinite(loss) else ""
        return (
            f"{100 * share:3.0f} %  step {trainer.global_step}  {known}"
            f"{pl_module.episodes_per_s:.0f} episodes/s  {left}"
        )


def _rate(value: float) -> str:
    """A number of a validation; one of nothing, such as the precision of no STOP, has none."""
    return "-" if math.isnan(value) else f"{value:.3f}"
