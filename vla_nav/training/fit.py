"""One training run from its parts: assemble, fit or continue, validate, leave the policy.

    episodes + prompt + tree layout -> packs -> VLA -> loss -> AdamW
    <run>/policy   the bundle for evaluation      <run>/checkpoints   for the next start

The same call continues a run that was killed and returns the result of one that is finished.
"""

from __future__ import annotations

import logging
import math
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import Logger
from lightning.pytorch.plugins.environments import SLURMEnvironment

from vla_nav.actions.types import Stop
from vla_nav.attention.parity import require_parity
from vla_nav.attention.registry import backend
from vla_nav.errors import UserError
from vla_nav.models.hybrid.parity import require_recurrence
from vla_nav.models.vla import VLA
from vla_nav.training.checkpoint_choice import checkpoint_to_resume, require_resume
from vla_nav.training.checkpoint_folder import read_manifest
from vla_nav.training.checkpoint_io import CheckpointFolders
from vla_nav.training.checkpointing import RunCheckpoint
from vla_nav.training.closed_loop import ClosedLoop, require_playable
from vla_nav.training.curve import CurveLogger, write_csv
from vla_nav.training.datamodule import RecordedData
from vla_nav.training.dry_run import DryRun
from vla_nav.training.ema import WeightAverage
from vla_nav.training.epoch_loop import use_epoch_loop
from vla_nav.training.lost_processes import of_lost_process
from vla_nav.training.module import TrainingModule
from vla_nav.training.parallel_launch import num_to_start
from vla_nav.training.policy_saver import PolicySaver
from vla_nav.training.provenance import FILE
from vla_nav.training.recipe import Recipe, assembled_data
from vla_nav.training.run_folder import RunFolder, RunPaths, process_rank
from vla_nav.training.schedule import Progress

_DTYPES = {"bf16": torch.bfloat16, "16": torch.float16, "64": torch.float64}


def fit(
    recipe: Recipe,
    *,
    output_dir: str | Path,
    config: Mapping[str, Any],
    make_trainer: Callable[..., Trainer],
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[Logger] = (),
    checkpoint: Mapping[str, Any],
    closed_loop: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    resume: str = "newest",
    overrides: Sequence[str] = (),
) -> dict[str, Any]:
    """Train `recipe` in the folder `output_dir`; return the result (also in result.json).

    config: the plain configuration, stored with the run and compared on a second start.
    make_trainer: called with the trainer's remaining keywords. checkpoint: keywords of
    `RunCheckpoint`. closed_loop: those of `ClosedLoop` (evaluator, ...), None for no such
    evaluation. resume: newest | newest_whole, the checkpoint to continue from. overrides: of the
    command line, kept in the run's provenance. Raises `UserError`
    for anything in data, configuration or folder that does not fit.
    """
    quiet()
    if recipe.num_threads is not None:
        torch.set_num_threads(recipe.num_threads)
    _seed_everything(recipe.seed)
    assembled, data = assembled_data(recipe, RecordedData)
    settings = recipe.settings
    settings.optimiser.freeze_in(assembled.model)  # refused before there is a folder
    room = data.require_positions(assembled.model.backbone.max_positions)
    if closed_loop is not None:
        require_playable(closed_loop["evaluator"], assembled.prompt)
    paths = RunPaths(output_dir)
    ema = next((item for item in callbacks if isinstance(item, WeightAverage)), None)
    save = PolicySaver(recipe, assembled, paths.policy, data.fingerprint, ema)
    ending = RunCheckpoint(paths.checkpoints, save, **checkpoint)
    simulated = []
    if closed_loop is not None:
        simulated = [ClosedLoop(paths.path, save.into, ending.is_stopping, **closed_loop)]
    require_resume(resume)
    folder = RunFolder(
        output_dir,
        config,
        data=data.fingerprint,
        overwrite=overwrite,
        rank=process_rank(),
    )
    result = folder.result()
    if result is not None:
        return result

    start = checkpoint_to_resume(folder.checkpoints, resume, is_writer=process_rank() == 0)
    done_steps, done_s = _position(start)
    budget = settings.budget
    rehearsal = [DryRun(data.extreme_pack)] if settings.dry_run else []
    trainer = make_trainer(
        callbacks=[*rehearsal, *callbacks, *simulated, ending],
        logger=[*loggers, CurveLogger(folder.curve, resumed_step=done_steps)],
        max_epochs=-1,
        val_check_interval=settings.validation.every_steps,
        check_val_every_n_epoch=None,
        limit_val_batches=1.0 if data.num_validation else 0,
        num_sanity_val_steps=0,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        default_root_dir=str(folder.path),
        **_without_requeue(),
    )
    use_epoch_loop(trainer)
    require_launched(trainer)
    if trainer.is_global_zero:
        if room is not None:
            print(room, file=sys.stderr)
        _record_start(folder, overrides, done_steps, trainer.world_size)
    trainer.strategy.checkpoint_io = CheckpointFolders(verified=start)
    device = trainer.strategy.root_device
    require_attention(recipe.attention, assembled.model, device, product_dtype(trainer))
    if budget.max_minutes is None:
        total = budget.max_steps or data.steps_of_epochs(budget.max_epochs or 1, trainer.world_size)
        is_finished = done_steps >= total
    else:
        total = None
        is_finished = done_s >= 60 * budget.max_minutes
    progress = Progress(budget, total_steps=total)
    module = TrainingModule(
        assembled.model,
        settings,
        progress,
        stop_id=recipe.action_space.encode(Stop())[0],
        text_ids=data.text_ids() if settings.optimiser.used_rows else (),
    )
    data.num_steps = total
    trainer.fit_loop.epoch_loop.max_steps = done_steps if is_finished else (total or -1)
    with ending_as_asked(trainer):
        trainer.fit(module, datamodule=data, ckpt_path=start, weights_only=True)
    steps = max(trainer.global_step, done_steps)
    if data.num_validation and (module.validated is None or module.validated[0] != steps):
        trainer.validate(module, datamodule=data, verbose=False)
    validation = {} if module.validated is None else module.validated[1]
    result = {
        "steps": steps,
        "episodes_seen": module.num_episodes,
        "episodes": data.num_episodes,
        "minutes": round(progress.stopwatch.elapsed_s / 60, 3),
        "parameters": sum(parameter.numel() for parameter in assembled.model.parameters()),
        "data": data.fingerprint,
        "policy": str(folder.policy),
        "validation": {
            name: value if math.isfinite(value) else None for name, value in validation.items()
        },
    }
    for item in simulated:
        result["closed_loop"] = item.summary()
    save(trainer, module)  # a kill may have come between the last checkpoint and its policy
    if trainer.is_global_zero:
        write_csv(folder.curve, folder.path / "curve.csv")
        folder.finish(result)
    return result


def _record_start(
    folder: RunFolder, overrides: Sequence[str], from_step: int, num_ranks: int
) -> None:
    """Note this start in the run's folder; say what is otherwise than at the one before."""
    changed = folder.record_start(overrides=overrides, from_step=from_step, num_ranks=num_ranks)
    if changed:
        print(
            f"{folder.path / FILE}: the run continues from step {from_step} with "
            f"{'; '.join(changed)}: its numbers may differ from those of an undisturbed run",
            file=sys.stderr,
        )


def require_launched(trainer: Trainer) -> None:
    """Raise `UserError` where several processes are asked for and only this one was started.

    Lightning would start the others with a command line that Hydra has changed, and wait.
    """
    if num_to_start(trainer):
        raise UserError(
            f"trainer.devices={trainer.num_devices}: one process was started; start with "
            f"`torchrun --nproc-per-node {trainer.num_devices} -m vla_nav.commands.cli <command> "
            "...` (train starts its processes by itself)"
        )


def _without_requeue() -> dict[str, Any]:
    """Keywords of the trainer under SLURM, where Lightning's answer to USR1 is a checkpoint of its
    own, written in the signal handler and preferred by the next start."""
    is_slurm = SLURMEnvironment.detect()
    return {"plugins": [SLURMEnvironment(auto_requeue=False)]} if is_slurm else {}


@contextmanager
def ending_as_asked(trainer: Trainer) -> Iterator[None]:
    """Around the trainer's loop: how it ends when it is told to, or when a process of it is gone.

    Lightning turns Ctrl-C into exit(1), here it is one again; torch's errors about a rank or a
    loader worker that is gone are a `StoppedError`.
    """
    try:
        yield
    except SystemExit as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise
    except RuntimeError as error:
        writers = [item for item in trainer.callbacks if isinstance(item, RunCheckpoint)]
        stopped = of_lost_process(error, writers[0].newest() if writers else None)
        if stopped is None:
            raise
        raise stopped from error


def product_dtype(trainer: Trainer) -> torch.dtype:
    """Of the matrix products under the trainer's precision."""
    return _DTYPES.get(str(trainer.precision).partition("-")[0], torch.float32)


def require_attention(name: str, model: VLA, device: torch.device, dtype: torch.dtype) -> None:
    """Raise `UserError` where the backend does not run on the device, or is wrong there."""
    backend(name, device=device.type)
    if device.type != "cpu":  # the CPU's backends are held to the reference by the tests
        require_parity(name, device, dtype=dtype, **model.backbone.attention_shape._asdict())
        require_recurrence(model.backbone.model, device, dtype)


def _position(checkpoint: Path | None) -> tuple[int, float]:
    """Steps and seconds that a checkpoint has behind it."""
    if checkpoint is None:
        return 0, 0.0
    manifest = read_manifest(checkpoint)
    return manifest.step, manifest.elapsed_s


def _seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def quiet() -> None:
    """Lightning's advice about loaders and hardware says nothing about these runs."""
    for name in ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", category=FutureWarning, module="lightning")
    for message in (
        ".*LeafSpec.*",
        ".*does not have many workers.*",
        ".*is not resumable.*",
        ".*sync_dist=True.*",
        ".*eval mode.*",
    ):
        warnings.filterwarnings("ignore", message=message)
