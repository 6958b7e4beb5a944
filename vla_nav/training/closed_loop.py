"""The policy in the simulator while it trains: the curve that counts, early stop, the best policy.

    step 500, 1000, ..., the last   (averaged) weights --> closed_loop/candidate --> evaluator
                                    SR, SPL, ... --> the curve; a line per episode beside it
       a better (SR, then SPL)      candidate --> <run>/policy_best
       `patience` without one       the run ends, as if its budget were spent

What is evaluated is a policy folder that was written and read again, so `policy_best` is what was
measured. Rank 0 evaluates while the others wait. The best so far and the count are part of the
checkpoint, which is written after the evaluation of its step: a continued run repeats none and
decides alike. A signal that ends the run is not kept waiting: the evaluation is given up, and made
up for by the next start.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import distributed

from vla_nav.actions.types import ActionSpace
from vla_nav.episodes.types import Embodiment
from vla_nav.errors import require_count
from vla_nav.files import remove_folder
from vla_nav.models.prompt import PromptBuilder

BEST, FOLDER, CANDIDATE = "policy_best", "closed_loop", "candidate"
_RATES = ("sr", "spl", "ne_m", "ndtw")
_PATIENCE = timedelta(days=30)  # of ranks that wait for an evaluation

Save = Callable[[Trainer, LightningModule, Path], None]


class Evaluator(Protocol):
    """Plays a policy folder in closed loop (`vla_nav.evaluation.training_run`)."""

    def check(self, body: Embodiment, space: ActionSpace, history: str) -> None:
        """Raise `UserError` for a policy that cannot be evaluated on what was asked for."""
        ...

    def __call__(
        self,
        policy: Path,
        *,
        records: Path,
        device: torch.device,
        is_given_up: Callable[[], bool],
    ) -> Mapping[str, Any] | None:
        """The table row of a policy: n, num_expected, sr, spl, ...; None where it was given up.

        records: a file of a JSON line per episode, written whole. num_missing in the row: episodes
        whose simulator died over them.
        """
        ...


class ClosedLoop(Callback):
    """Evaluates every `every_steps` steps and at the end; keeps the best policy.

    folder: of the run. save: writes a policy folder, called on every rank. is_stopping: whether
    the run was asked to end. patience: so many evaluations without a better one end the run; None
    for never.
    """

    def __init__(
        self,
        folder: str | Path,
        save: Save,
        is_stopping: Callable[[], bool],
        *,
        evaluator: Evaluator,
        every_steps: int = 500,
        patience: int | None = None,
    ) -> None:
        require_count("callbacks.closed_loop.every_steps", every_steps)
        require_count("callbacks.closed_loop.patience", patience, or_null=True)
        self.every_steps, self.patience = every_steps, patience
        self.folder = Path(folder)
        self._save, self._evaluator, self._is_stopping = save, evaluator, is_stopping
        self._best: dict[str, Any] | None = None
        self._evaluated_step = 0
        self._num_evaluations = 0
        self._num_without = 0
        self._has_stopped = False
        self._group: Any = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Make ready to wait, and make up for an evaluation that was given up; a run that was
        stopped early has nothing left to do."""
        if trainer.world_size > 1 and self._group is None:
            self._group = distributed.new_group(backend="gloo", timeout=_PATIENCE)
        step = trainer.global_step
        if step % self.every_steps == 0 and step > self._evaluated_step:
            self._evaluate(trainer, pl_module)
        if self._has_stopped:
            trainer.should_stop = True

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any
    ) -> None:
        """Evaluate if it is time."""
        if trainer.global_step % self.every_steps == 0 or pl_module.is_finished:
            self._evaluate(trainer, pl_module)

    def state_dict(self) -> dict[str, Any]:
        """The best so far, and how long ago; plain values."""
        return {
            "best": self._best,
            "evaluated_step": self._evaluated_step,
            "num_evaluations": self._num_evaluations,
            "num_without": self._num_without,
            "has_stopped": self._has_stopped,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        self._best = state_dict["best"]
        self._evaluated_step = state_dict["evaluated_step"]
        self._num_evaluations = state_dict["num_evaluations"]
        self._num_without = state_dict["num_without"]
        self._has_stopped = state_dict["has_stopped"]

    def summary(self) -> dict[str, Any]:
        """For the run's result: the best evaluation with its policy, how many, why it ended."""
        best = None
        if self._best is not None:
            best = {**self._best, "policy": str(self.folder / BEST)}
        return {
            "best": best,
            "evaluations": self._num_evaluations,
            "stopped_early": self._has_stopped,
        }

    def _evaluate(self, trainer: Trainer, pl_module: LightningModule) -> None:
        step = trainer.global_step
        candidate = self.folder / FOLDER / CANDIDATE
        if trainer.is_global_zero:
            remove_folder(candidate)
        self._save(trainer, pl_module, candidate)
        row: dict[str, Any] | None = None
        if trainer.is_global_zero:
            with _same_random_state():
                found = self._evaluator(
                    candidate,
                    records=self.folder / FOLDER / f"step_{step:08d}.jsonl",
                    device=trainer.strategy.root_device,
                    is_given_up=self._is_stopping,
                )
            names = ("n", "num_expected", "num_missing", *_RATES)
            row = None if found is None else {name: found[name] for name in names}
        row = self._on_all_ranks(row)
        if row is None:
            return
        is_better = self._note(step, row)
        if trainer.is_global_zero:
            if is_better:
                _replace(self.folder / BEST, candidate)
            else:
                shutil.rmtree(candidate)
            print(self._line(step, row, is_better=is_better))
        values = {f"closed_loop/{k}": row[k] for k in (*_RATES, "n") if row[k] is not None}
        for logger in trainer.loggers:
            logger.log_metrics(values, step)
        if self.patience is not None and self._num_without >= self.patience:
            self._has_stopped = not pl_module.is_finished
            trainer.should_stop = True

    def _note(self, step: int, row: Mapping[str, Any]) -> bool:
        """Count an evaluation; whether it is the best. An incomplete one decides nothing."""
        self._evaluated_step = step
        self._num_evaluations += 1
        if row["num_missing"] or row["sr"] is None:
            return False
        rank = (row["sr"], row["spl"])
        if self._best is not None and rank <= (self._best["sr"], self._best["spl"]):
            self._num_without += 1
            return False
        self._best = {"step": step, **{name: row[name] for name in ("n", *_RATES)}}
        self._num_without = 0
        return True

    def _on_all_ranks(self, row: dict[str, Any] | None) -> dict[str, Any] | None:
        """What rank 0 gives."""
        if self._group is None:
            return row
        given = [row]
        distributed.broadcast_object_list(given, src=0, group=self._group)
        return given[0]

    def _line(self, step: int, row: Mapping[str, Any], *, is_better: bool) -> str:
        """What a person is told of an evaluation."""
        if row["num_missing"]:
            return (
                f"closed loop at step {step}:  {row['num_missing']} of {row['num_expected']} "
                "episodes have no result (their simulator died twice), so it decides nothing"
            )
        values = [f"{k} {'-' if row[k] is None else format(row[k], '.3f')}" for k in _RATES]
        told = f"closed loop at step {step}:  {',  '.join(values)},  n {row['n']}"
        if is_better:
            return f"{told}:  the best so far"
        if self._best is None:
            return told
        return f"{told}  (best {self._best['sr']:.3f} at step {self._best['step']})"


def require_playable(evaluator: Evaluator, prompt: PromptBuilder) -> None:
    """Raise `UserError` before anything is trained where the policy could not be evaluated."""
    evaluator.check(prompt.embodiment, prompt.action_space, prompt.layout.history)


def _replace(target: Path, source: Path) -> None:
    """Put a folder in the place of another one of the same disk."""
    remove_folder(target)
    source.rename(target)


@contextmanager
def _same_random_state() -> Iterator[None]:
    """The training's random state is that of before, whatever the body draws."""
    state, numbers = random.getstate(), np.random.get_state()
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        yield
    random.setstate(state)
    np.random.set_state(numbers)
