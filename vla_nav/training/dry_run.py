"""Before the first step: does the costliest pack of the run fit in memory?

    the longest tree, and the longest ones that still fit beside it  -> one pack, on every rank
    forward, loss, backward                                          -> gradients, thrown away
    peak + what the first update will add (moments of the optimiser) <= memory of the device ?

On a GPU the peak is measured. On a CPU, where torch counts nothing, it is predicted: activations
are the tensors that autograd keeps for the backward pass; a short pack is asked first, so that a
long one that cannot fit is never begun. Weights, random state and the position in the data stay as
they are: a run with the dry run ends with the same weights, bit for bit, as one without.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from vla_nav.errors import UserError
from vla_nav.training.batch import Batch, Pack
from vla_nav.training.ema import WeightAverage
from vla_nav.training.free_memory import free_bytes
from vla_nav.training.kept_bytes import KeptBytes, local_part
from vla_nav.training.parallel_passes import Agreement

Packs = tuple[Pack, ...]
_MOMENTS = 2  # of AdamW, each like its weight
_REMEDY = (
    "lower training.pack_tokens, set training.partition.tokens or "
    "models.backbone.gradient_checkpointing, or try it all the same with training.dry_run=false"
)


class Memory(NamedTuple):
    """Bytes by class at the peak of a step. `activations` are what the peak has above the other
    classes (of a single pack the gradients are not all there yet at that instant)."""

    weights: int
    average: int
    optimiser: int
    gradients: int
    batch: int
    activations: int

    @property
    def total(self) -> int:
        """All classes."""
        return sum(self)


class PackSize(NamedTuple):
    """What a pack holds; no partitions where it is computed whole."""

    num_tokens: int
    num_trees: int
    num_frames: int
    num_partitions: int

    @classmethod
    def of(cls, pack: Pack) -> PackSize:
        """Of a pack."""
        packed, cut = pack.packed, pack.partitions
        num_parts = 0 if cut is None else len(cut.cut.parts)
        return cls(packed.num_tokens, packed.num_trees, packed.num_frames, num_parts)

    def __str__(self) -> str:
        parts = f", {self.num_partitions} partitions" if self.num_partitions else ""
        trees = f"{self.num_trees:,} trees, {self.num_frames:,} frames"
        return f"{self.num_tokens:,} tokens, {trees}{parts}"


class DryRunReport(NamedTuple):
    """pack: what was taken. available_bytes: for all classes together."""

    pack: PackSize
    seconds: float
    memory: Memory
    available_bytes: int
    is_measured: bool


class DryRun(Callback):
    """Takes the costliest pack once when training starts, and refuses a run that would not fit.

    pack_of: longest -> that pack, on the CPU; of the shortest tree alone where false. tell: told
    the outcome in one line, on rank 0.
    """

    def __init__(
        self, pack_of: Callable[[bool], Pack], *, tell: Callable[[str], None] = print
    ) -> None:
        self._pack_of, self._tell = pack_of, tell
        self.report: DryRunReport | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Raise `UserError` where the pack does not fit."""
        device = trainer.strategy.root_device
        copies = pl_module.settings.parallel_packs
        agreement = Agreement() if trainer.world_size > 1 else None
        with _untouched(pl_module, device):
            short, longest = self._pack_of(False), self._pack_of(True)
            if device.type == "cuda":
                # With several packs a step, the gradients of the first are there in the second.
                is_one = pl_module.settings.accumulate == 1
                packs = (longest,) if is_one else (short, longest)
                memory, seconds = _measured(trainer, pl_module, packs)
                available = free_bytes(device) + torch.cuda.memory_reserved(device)
            else:
                held = held_memory(trainer, pl_module)
                # What is there already does not count against what is free.
                available = free_bytes(device) + held.weights + held.average + _state_bytes(trainer)
                kept, _ = _kept(trainer, pl_module, short)
                kept = kept * _pass_tokens(longest) // _pass_tokens(short)
                memory = held._replace(
                    batch=copies * pack_bytes(longest), activations=copies * kept
                )
                require_fitting(longest, memory, available, agreement)
                kept, seconds = _kept(trainer, pl_module, longest)
                memory = memory._replace(activations=copies * kept)
        require_fitting(longest, memory, available, agreement)
        is_measured = device.type == "cuda"
        self.report = DryRunReport(PackSize.of(longest), seconds, memory, available, is_measured)
        if trainer.is_global_zero:
            self._tell(describe(self.report))


def require_fitting(
    pack: Pack, memory: Memory, available: int, agreement: Agreement | None
) -> None:
    """Raise `UserError` where the pack does not fit here or, with several ranks, on one of them:
    all of them end, or none."""
    refusal = None
    if memory.total > available:
        refusal = (
            f"dry run: the costliest pack ({PackSize.of(pack)}) needs "
            f"{_size(memory.total)} and {_size(available)} are there "
            f"({_classes(memory)}); {_REMEDY}"
        )
    refusals = [refusal] if agreement is None else agreement.texts(refusal)
    if refusals and refusals[0] is not None:
        raise UserError(refusals[0])


def describe(report: DryRunReport) -> str:
    """One line for people."""
    peak = "peak" if report.is_measured else "predicted peak"
    return (
        f"dry run: the costliest pack ({report.pack}) took {report.seconds:.1f} s; {peak} "
        f"{_size(report.memory.total)} of {_size(report.available_bytes)} "
        f"({_classes(report.memory)})"
    )


def held_memory(trainer: Trainer, module: LightningModule) -> Memory:
    """Weights, average, optimiser and gradients on the device of this process, those that are not
    there yet as well; no batch and no activations."""
    device = trainer.strategy.root_device
    trained = [p for group in module.optimizers().param_groups for p in group["params"]]
    ema = next((x for x in trainer.callbacks if isinstance(x, WeightAverage)), None)
    size = _bytes(trained, device)
    return Memory(
        weights=_bytes([*module.parameters(), *module.buffers()], device),
        average=0 if ema is None else _bytes(ema.average.values(), device),
        optimiser=_state_bytes(trainer) or _MOMENTS * size,
        gradients=size,
        batch=0,
        activations=0,
    )


def pack_bytes(pack: Pack) -> int:
    """Bytes of a pack's tensors, where they are counted by name: its frames and token columns."""
    columns = (getattr(pack.packed, name) for name in pack.packed.__dataclass_fields__)
    return pack.frames.nbytes + sum(x.nbytes for x in columns if isinstance(x, Tensor))


def _measured(trainer: Trainer, module: LightningModule, packs: Packs) -> tuple[Memory, float]:
    """Of a forward and backward on a GPU. Raises `UserError` where its memory does not do."""
    device, longest = trainer.strategy.root_device, packs[-1]
    held = held_memory(trainer, module)
    # Moments that are there are in the peak; those of a first step are added to it.
    in_peak = held.weights + held.average + held.gradients + _state_bytes(trainer)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    try:
        seconds = _rehearse(trainer, module, packs)
        torch.cuda.synchronize(device)
    except torch.OutOfMemoryError as error:
        total = torch.cuda.get_device_properties(device).total_memory
        raise UserError(
            f"dry run: the costliest pack ({PackSize.of(longest)}) does not fit in the "
            f"{_size(total)} of {torch.cuda.get_device_name(device)}, of which {_size(before)} "
            f"were taken before it; {_REMEDY}"
        ) from error
    batch = sum(map(pack_bytes, packs))
    above = torch.cuda.max_memory_allocated(device) - in_peak - batch
    return held._replace(batch=batch, activations=max(0, above)), seconds


def _kept(trainer: Trainer, module: LightningModule, pack: Pack) -> tuple[int, float]:
    """Bytes of activations and seconds of a forward and backward."""
    with KeptBytes(module.parameters()) as kept:
        seconds = _rehearse(trainer, module, (pack,))
    return kept.peak, seconds


def _rehearse(trainer: Trainer, module: LightningModule, packs: Packs) -> float:
    start = time.perf_counter()
    batch = Batch(packs, trainer.global_step, 0).to(trainer.strategy.root_device)
    with trainer.precision_plugin.train_step_context():
        module.rehearse(batch)
    return time.perf_counter() - start


def _pass_tokens(pack: Pack) -> int:
    """Tokens whose activations are alive at once."""
    return pack.packed.num_tokens if pack.partitions is None else pack.partitions.cut.chain_tokens()


@contextmanager
def _untouched(module: LightningModule, device: torch.device) -> Iterator[None]:
    """Random state as before, and no gradient left."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        module.zero_grad(set_to_none=True)


def _bytes(tensors: Iterable[Any], device: torch.device) -> int:
    """Of the parts that this process holds on the device."""
    return sum(x.nbytes for x in map(local_part, tensors) if x.device.type == device.type)


def _state_bytes(trainer: Trainer) -> int:
    """Of the optimiser's state that is there already."""
    states = [state for one in trainer.optimizers for state in one.state.values()]
    tensors = [x for state in states for x in state.values() if isinstance(x, Tensor)]
    return _bytes(tensors, trainer.strategy.root_device)


def _classes(memory: Memory) -> str:
    return ", ".join(f"{name} {_size(value)}" for name, value in memory._asdict().items())


def _size(value: int) -> str:
    """`61.2 GiB`, `4.25 GiB` or `205 MiB`."""
    gib = value / 2**30
    if gib < 1:
        return f"{value / 2**20:.0f} MiB"
    return f"{gib:.2f} GiB" if gib < 10 else f"{gib:.1f} GiB"
