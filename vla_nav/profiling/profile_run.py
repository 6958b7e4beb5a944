"""A profile of a training run: the user's data, model, loss and optimiser, a few steps of them.

    Recipe -> data module, model, training module, trainer     as `vla-nav train` makes them
           -> StepObserver: warm-up, bare and profiled blocks, a traced one
           -> parts of the step, prediction, memory, structure of the packs

Nothing of the run is kept: no checkpoint, no policy, no validation. The numbers are of this process
(rank 0 writes them); with several ranks, communication has a region.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.pytorch import Callback, Trainer

from vla_nav.actions.types import Stop
from vla_nav.errors import UserError
from vla_nav.files import locked, write_json
from vla_nav.models.vla import VLA
from vla_nav.profiling.boundaries import observed
from vla_nav.profiling.memory import MemorySampler, course, held_bytes, memory_report
from vla_nav.profiling.prediction import (
    UPDATE_PASSES,
    Rates,
    measure_rates,
    peak_of,
    predict,
    recomputed_shares,
)
from vla_nav.profiling.profile_page import write_page
from vla_nav.profiling.profile_report import NUM_OPERATORS, Measured, Timed, profile_report
from vla_nav.profiling.profile_trace import StepTrace
from vla_nav.profiling.regions import Recorder
from vla_nav.profiling.step_costs import measured_steps
from vla_nav.profiling.step_profile import BARE, PROFILED, TRACED, ProfileSettings, StepObserver
from vla_nav.profiling.structure import structure, total_structure
from vla_nav.training.batch import Batch
from vla_nav.training.cost_fit import costs_json
from vla_nav.training.cost_model import CostModel
from vla_nav.training.datamodule import RecordedData
from vla_nav.training.dataset import StepDataset
from vla_nav.training.ema import WeightAverage
from vla_nav.training.epoch_loop import use_epoch_loop
from vla_nav.training.fit import (
    ending_as_asked,
    product_dtype,
    quiet,
    require_attention,
    require_launched,
)
from vla_nav.training.module import TrainingModule
from vla_nav.training.recipe import Recipe, assembled_data
from vla_nav.training.run_folder import process_rank
from vla_nav.training.schedule import Budget, Progress
from vla_nav.training.settings import TrainingSettings
from vla_nav.training.shapes import encoder_flops, flop_model
from vla_nav.tree import PrefixTree

_AT_WORK = "`vla-nav profile` or `vla-nav train`"
_FILES = (  # of a profile, and what a killed one leaves
    "profile.json",
    "profile.html",
    "profile_*.png",
    "profile_*.svg",
    "trace.json.gz",
    "profile*.tmp-*",
    "trace.json.gz.tmp-*",
)


class ProfiledData(RecordedData):
    """The data of a run, which also says afterwards what a step was made of."""

    def step(self, number: int) -> tuple[Batch, list[PrefixTree]]:
        """The batch of optimiser step `number` (on the CPU) and its trees."""
        assert self.trainer is not None
        order = self._order(self.trainer.global_rank, self.trainer.world_size)
        indices = self._train_indices.tolist()
        batch = StepDataset(self._train, indices, order, self._make_pack)[number]
        trees = [self._train[indices[place]].tree for pack in order.step(number) for place in pack]
        return batch, trees


class _Parts(NamedTuple):
    """What a run is made of."""

    recipe: Recipe
    training: TrainingSettings
    model: VLA
    module: TrainingModule
    data: ProfiledData
    trainer: Trainer
    average: Mapping[str, torch.Tensor]


def profile(
    recipe: Recipe,
    settings: ProfileSettings,
    *,
    output_dir: str | Path,
    make_trainer: Callable[..., Trainer],
    callbacks: Sequence[Callback] = (),
    progress: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Profile `recipe`; the numbers, which profile.json in `output_dir` also holds.

    make_trainer: called with the trainer's remaining keywords. callbacks: of the run (the weight
    average). progress: told what happens. Files of an earlier profile there are replaced once there
    are numbers; profile.json comes last, when all others are there. Raises `UserError` for what
    does not fit, as training, and for a folder in which another process is at work.
    """
    folder = Path(output_dir)
    is_first = process_rank() == 0
    with locked(folder / ".lock", what=_AT_WORK) if is_first else nullcontext():
        return _profile(recipe, settings, folder, make_trainer, callbacks, progress)


def _profile(
    recipe: Recipe,
    settings: ProfileSettings,
    folder: Path,
    make_trainer: Callable[..., Trainer],
    callbacks: Sequence[Callback],
    progress: Callable[[str], None],
) -> dict[str, Any]:
    parts = _make(recipe, settings.num_steps, folder, make_trainer, callbacks)
    trainer, training = parts.trainer, parts.training
    require_launched(trainer)
    device, dtype = trainer.strategy.root_device, product_dtype(trainer)
    require_attention(recipe.attention, parts.model, device, dtype)
    rates = measure_rates(device, dtype, num_parallel=training.parallel_packs)
    recorder = Recorder(device)
    traces: list[StepTrace] = []
    with observed(parts.model, recorder, num_ranks=trainer.world_size) as observer:
        sampler = MemorySampler(parts.model.parameters(), observer.gateway_bytes)

        def begin_trace() -> StepTrace:
            # torch's profiler sees the memory of one thread alone.
            parts.module.settings = replace(training, parallel_packs=1)
            recorder.on_mark = sampler
            traces.append(StepTrace(device))
            return traces[0]

        steps = StepObserver(
            settings,
            recorder,
            num_ranks=trainer.world_size,
            on_trace=begin_trace,
            progress=progress if trainer.is_global_zero else None,
        )
        trainer.profiler = steps
        with ending_as_asked(trainer):
            trainer.fit(parts.module, datamodule=parts.data)
    if len(steps.blocks) < len(settings.blocks):
        raise UserError(
            f"the run ended after {trainer.global_step} of {settings.num_steps} steps: take away "
            "what ends it early (trainer.max_time, trainer.fast_dev_run)"
        )
    timed, costs = _counted(parts, steps, rates)
    profiled = [item for item in timed if item.block.kind == PROFILED]
    held = held_bytes(
        parts.model,
        trainer.optimizers[0],
        parts.average,
        batch_bytes=sum(item.found.batch_bytes for item in profiled) // settings.steps,
        frame_bytes=sum(item.found.frame_bytes for item in profiled) // settings.steps,
        allocated_bytes=traces[0].allocated_bytes if traces else 0,
    )
    measured = Measured(
        timed,
        rates,
        peak_of(device, dtype, rates),
        memory=memory_report(
            held,
            course(traces[0].changes(), sampler.samples) if traces else None,
            steps.blocks_of(PROFILED),
            num_parallel=training.parallel_packs,
        ),
        operators=traces[0].longest(NUM_OPERATORS) if traces else [],
        steps_per_epoch=parts.data.steps_of_epochs(1, trainer.world_size),
        num_ranks=trainer.world_size,
    )
    result = {**profile_report(measured, facts=_facts(parts, dtype)), "costs": costs}
    if trainer.is_global_zero:
        for path in (path for pattern in _FILES for path in folder.glob(pattern)):
            path.unlink()
        if traces:
            (traced,) = steps.blocks_of(TRACED)
            traces[0].write(folder / "trace.json.gz", traced.marks)
        if settings.html:
            write_page(folder / "profile.html", result)
        write_json(folder / "profile.json", result)
    return result


def _make(
    recipe: Recipe,
    num_steps: int,
    folder: Path,
    make_trainer: Callable[..., Trainer],
    callbacks: Sequence[Callback],
) -> _Parts:
    """Everything as for training, for `num_steps` steps that leave nothing behind."""
    quiet()
    if recipe.num_threads is not None:
        torch.set_num_threads(recipe.num_threads)
    torch.manual_seed(recipe.seed)
    training = replace(recipe.settings, budget=Budget(max_steps=num_steps))
    assembled, data = assembled_data(replace(recipe, settings=training), ProfiledData)
    data.num_steps = num_steps
    module = TrainingModule(
        assembled.model,
        training,
        Progress(training.budget, total_steps=num_steps),
        stop_id=recipe.action_space.encode(Stop())[0],
        text_ids=data.text_ids() if training.optimiser.used_rows else (),
    )
    trainer = make_trainer(
        callbacks=list(callbacks),
        logger=False,
        max_epochs=-1,
        max_steps=num_steps,
        limit_val_batches=0,
        num_sanity_val_steps=0,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        default_root_dir=str(folder),
    )
    use_epoch_loop(trainer)
    ema = next((item for item in callbacks if isinstance(item, WeightAverage)), None)
    average = {} if ema is None else ema.average
    return _Parts(recipe, training, assembled.model, module, data, trainer, average)


def _counted(
    parts: _Parts, steps: StepObserver, rates: Rates
) -> tuple[list[Timed], dict[str, Any]]:
    """The bare and profiled blocks with what their steps held and what was to be expected; and what
    a cost model is fitted to."""
    vocabulary = parts.model.vocabulary
    frame_flops = encoder_flops(parts.recipe.encoder)
    costs, _ = flop_model(parts.recipe.model, vocabulary, frame_flops=frame_flops)
    trained = [p for group in parts.trainer.optimizers[0].param_groups for p in group["params"]]
    recomputed = recomputed_shares(parts.model.backbone.model.layers)
    timed: list[Timed] = []
    measured: list[dict[str, float]] = []
    for block in steps.blocks:
        if block.kind in (BARE, PROFILED):
            each = [structure([parts.data.step(number)]) for number in block.steps]
            found = total_structure(each)
            if block.kind == PROFILED:
                measured += measured_steps(block, each)
            expected = predict(
                found,
                costs,
                rates,
                projector_parameters=sum(p.numel() for p in parts.model.projector.parameters()),
                optimiser_bytes=UPDATE_PASSES * sum(p.nbytes for p in trained),
                recomputed=recomputed,
            )
            timed.append(Timed(block, found, expected))
    return timed, costs_json(measured, CostModel.from_flops(costs))


def _kind(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _facts(parts: _Parts, dtype: torch.dtype) -> dict[str, Any]:
    """What was profiled, and on what."""
    recipe, trainer = parts.recipe, parts.trainer
    device = trainer.strategy.root_device
    is_cuda = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if is_cuda else f"{platform.machine()} CPU",
        "device_type": device.type,
        "num_ranks": trainer.world_size,
        "num_threads": torch.get_num_threads(),
        "parallel_packs": recipe.settings.parallel_packs,
        "dtype": _kind(dtype),
        "precision": str(trainer.precision),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "data": recipe.data_path,
        "split": recipe.split,
        "layout": recipe.layout.name,
        "attention": recipe.attention,
        "parameters": sum(parameter.numel() for parameter in parts.model.parameters()),
        "has_checkpointing": recipe.model.backbone.gradient_checkpointing,
        "compile": recipe.model.backbone.compile,
        "pack_tokens": recipe.settings.pack_tokens,
        "accumulate": recipe.settings.accumulate,
        "partition_tokens": recipe.settings.partition.tokens,
        "num_workers": recipe.num_workers,
    }
