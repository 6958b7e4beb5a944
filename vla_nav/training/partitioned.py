"""Forward and backward of a pack that is computed in partitions.

    recompute   first pass: exported tokens, no gradients          -> K/V in the store
                partitions last to first: forward, loss, backward  -> K/V gradients in the store
    keep        forward(P); for each partition C cut from P: forward(C), recurse, backward(C);
                backward(P)

Every pass is one ordinary forward of the model and one backward of its loss; gradients cross
between partitions in `vla_nav.models.gateway`. A trainable encoder runs once for all frames: under
`keep` its graph stays, under `recompute` frames are encoded again, a few at a time, at the end.

Axis legend: M targets, V logits, F frames.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from vla_nav.attention.types import Backend
from vla_nav.losses.predictions import Predictions
from vla_nav.models.gateway import GatewayStore
from vla_nav.models.vla import VLA
from vla_nav.tree.packing import PackedTree
from vla_nav.tree.partition import partition
from vla_nav.tree.partition_types import Partition, Partitioned, PartitionMode
from vla_nav.tree.prefix_tree import PrefixTree

_FRAMES_PER_PASS = 64  # of a trainable encoder under `recompute`

LossOf = Callable[[Predictions, PackedTree], Tensor]
Stage = Literal["encode", "first", "parts", "end"]


@dataclass(frozen=True, eq=False)
class PartitionPlans:
    """A partitioned pack with the attention plan of every pass."""

    cut: Partitioned
    parts: tuple[Any, ...]
    first_pass: tuple[Any, ...]

    def to(self, device: torch.device | str, non_blocking: bool = False) -> PartitionPlans:
        """The same on `device`."""
        return self._map(lambda item: item.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> PartitionPlans:
        """The same in page-locked memory."""
        return self._map(lambda item: item.pin_memory())

    def _map(self, function: Callable[[Any], Any]) -> PartitionPlans:
        return PartitionPlans(
            function(self.cut),
            tuple(map(function, self.parts)),
            tuple(map(function, self.first_pass)),
        )


def plan_partitions(
    trees: Sequence[PrefixTree],
    attention: Backend,
    *,
    capacity: int,
    mode: PartitionMode = "recompute",
    whole: PackedTree | None = None,
) -> PartitionPlans:
    """Cut the pack of `trees` and plan the attention of every pass (in the loader worker)."""
    cut = partition(
        trees,
        capacity=capacity,
        mode=mode,
        whole=whole,
        padded_length=attention.padded_length,
        padded_prefix=attention.padded_prefix,
    )
    return PartitionPlans(
        cut,
        tuple(attention.plan(part.packed) for part in cut.parts),
        tuple(attention.plan(item.part.packed) for item in cut.first_pass),
    )


def partitioned_backward(
    model: VLA,
    plans: PartitionPlans,
    frames: Tensor,
    loss_of: LossOf,
    *,
    backward: Callable[[Tensor], None] = torch.autograd.backward,
    after: Callable[[Stage], None] = lambda stage: None,
) -> Tensor:
    """Gradients of the summed losses of all partitions, added to the parameters' `.grad`.

    loss_of(predictions (M_part, V), packed of the part) -> scalar over a denominator that is the
    whole step's. backward: what runs a scalar's backward. after: told when the passes of a stage
    are done (`recompute`): encode, first, parts, and end, behind the encoder's backward. Returns
    the sum of the losses, detached.
    """
    cut, store = plans.cut, GatewayStore()
    features = _Features(model, frames, is_kept=cut.mode == "keep")
    losses: dict[int, Tensor] = {}

    def forward(part: Partition, *, is_stored: bool) -> None:
        gateway = store.gateway(part, is_stored=is_stored)
        plan = plans.parts[part.number]
        losses[part.number] = model.through(
            lambda model: loss_of(
                model.predictions(part.packed, features.rows, plan, gateway), part.packed
            )
        )

    def finish(number: int) -> Tensor:
        loss = losses.pop(number)
        backward(loss)
        store.drop(number)
        return loss.detach()

    total = torch.zeros((), device=frames.device)
    if cut.mode == "recompute":
        after("encode")
        _first_pass(model, plans, features.rows, store)
        after("first")
        for part in reversed(cut.parts):
            store.drop_keys(part.number)
            forward(part, is_stored=False)
            total = total + finish(part.number)
    else:
        open_parts: list[int] = []
        for part in cut.parts:
            while open_parts and open_parts[-1] != part.parent:
                total = total + finish(open_parts.pop())
            forward(part, is_stored=True)
            open_parts.append(part.number)
        while open_parts:
            total = total + finish(open_parts.pop())
    after("parts")
    features.finish(backward)
    after("end")
    return total


def num_frame_passes(model: VLA, frames: Tensor) -> int:
    """Passes of the encoder over the frames of a partitioned pack under `recompute`; one that
    trains runs as many again for its gradients."""
    return len(list(_chunks(frames))) if _are_pixels(model, frames) else 0


def trains_encoder(model: VLA) -> bool:
    """Whether anything of the encoder trains."""
    return model.encoder is not None and any(p.requires_grad for p in model.encoder.parameters())


@torch.no_grad()
def partitioned_logits(model: VLA, plans: PartitionPlans, frames: Tensor) -> Tensor:
    """Logits (M, V) at the whole pack's predictors, without gradients."""
    store, cut = GatewayStore(), plans.cut
    features = model.through(lambda model: model.features(frames))
    logits: Tensor | None = None
    for part, plan in zip(cut.parts, plans.parts, strict=True):
        gateway = store.gateway(part, is_stored=True)
        found = model(part.packed, features, plan, gateway)
        if logits is None:
            logits = found.new_empty(cut.num_targets, found.shape[1])
        logits[part.targets] = found
    assert logits is not None
    return logits


@torch.no_grad()
def _first_pass(model: VLA, plans: PartitionPlans, features: Tensor, store: GatewayStore) -> None:
    """Keys and values of every exported token."""
    for item, plan in zip(plans.cut.first_pass, plans.first_pass, strict=True):
        gateway = store.gateway(item.part, is_stored=True)
        packed = item.part.packed
        model.through(
            partial(VLA.hidden_states, packed=packed, frames=features, plan=plan, gateway=gateway)
        )
        store.split(item)


class _Features:
    """The frames as rows that partitions embed, and the encoder's backward at the end.

    rows: given features as they are; those of a trainable encoder as a float32 (or wider) leaf, so
    that partitions add up their gradients in it.
    """

    def __init__(self, model: VLA, frames: Tensor, *, is_kept: bool) -> None:
        self._model, self._frames = model, frames
        self._graph: Tensor | None = None
        self._is_trained = _are_pixels(model, frames) and trains_encoder(model)
        if not _are_pixels(model, frames):
            self.rows = model.features(frames)
            return
        if is_kept and self._is_trained:
            self._graph = self._encoded(frames)
            rows = self._graph.detach()
        else:
            with torch.no_grad():
                rows = torch.cat([self._encoded(some) for some in _chunks(frames)])
        if self._is_trained:
            wide = rows.dtype if rows.dtype == torch.float64 else torch.float32
            rows = rows.to(wide).requires_grad_()
        self.rows = rows

    def finish(self, backward: Callable[[Tensor], None]) -> None:
        """Gradients of the encoder from those of its rows."""
        if not self._is_trained:
            return
        gradient = torch.zeros_like(self.rows) if self.rows.grad is None else self.rows.grad
        if self._graph is not None:
            backward((self._graph * gradient).sum())
            return
        for frames, part in zip(_chunks(self._frames), _chunks(gradient), strict=True):
            backward((self._encoded(frames) * part).sum())

    def _encoded(self, frames: Tensor) -> Tensor:
        return self._model.through(lambda model: model.features(frames))


def _chunks(rows: Tensor) -> Iterator[Tensor]:
    yield from torch.split(rows, _FRAMES_PER_PASS)


def _are_pixels(model: VLA, frames: Tensor) -> bool:
    return frames.dtype == torch.uint8 and model.encoder is not None
