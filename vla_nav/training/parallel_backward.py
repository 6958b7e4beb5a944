"""The passes of one step on a rank that holds a shard of the weights.

    whole packs       pack, pack, ..., last pack: gradients are reduced layer by layer behind it
    with partitions   nothing is exchanged until all partitions of all packs are done; then one
                      pass without weight reduces what every rank has added up

Every rank runs as many passes of each kind as the rank that needs most of them
(`vla_nav.training.parallel_passes`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from vla_nav.models.vla import VLA
from vla_nav.training.batch import Pack
from vla_nav.training.gradients import frame_parameters, zero_loss
from vla_nav.training.parallel_passes import WHOLE, Agreement, Passes, weightless_pack
from vla_nav.training.partitioned import (
    LossOf,
    Stage,
    num_frame_passes,
    partitioned_backward,
    trains_encoder,
)


class ShardedPasses:
    """Backward passes of steps, and forward passes of validation, in step with other ranks.

    backward: what runs a scalar's backward.
    """

    def __init__(
        self, model: VLA, device: torch.device, *, backward: Callable[[Tensor], None]
    ) -> None:
        assert isinstance(model, FSDPModule)
        self._model, self._device, self._backward = model, device, backward
        self._agreement = Agreement()
        self._weightless = weightless_pack(model, device)
        self._trains_encoder = trains_encoder(model)  # else frames have no backward pass

    def step(self, packs: Sequence[Pack], loss_of: LossOf) -> Tensor:
        """Gradients of all packs of a step, averaged over ranks; returns this rank's loss.

        loss_of(predictions, packed) -> scalar, over the denominator of the whole step.
        """
        wanted = self._agreement.passes([self._passes(pack) for pack in packs])
        is_whole = all(passes == WHOLE for passes in wanted)
        total = torch.zeros((), device=self._device)
        self._synchronise(is_on=False)
        for place, passes in enumerate(wanted):
            is_last = is_whole and place == len(wanted) - 1
            if is_last:
                self._synchronise(is_on=True)
            pack = packs[place] if place < len(packs) else None
            if pack is None or pack.partitions is None:
                total += self._whole(pack, passes, loss_of, is_last=is_last)
            else:
                total += self._cut(pack, passes, loss_of)
        if not is_whole:
            self._synchronise(is_on=True)
            self._part(self._weightless, loss_of, weight=0.0, is_last=True)
        return total

    @contextmanager
    def validating(self, pack: Pack | None) -> Iterator[None]:
        """Around the forward passes over a pack, or around none, while others validate theirs."""
        own = 0 if pack is None else 1 if pack.partitions is None else len(pack.partitions.parts)
        (wanted,) = self._agreement.largest([own])
        yield
        for _ in range(wanted - own):
            self._forward_pass()
        assert isinstance(self._model, FSDPModule)
        self._model.reshard()  # the root's weights stay whole after a forward pass

    def _whole(
        self, pack: Pack | None, wanted: Passes, loss_of: LossOf, *, is_last: bool
    ) -> Tensor:
        """A pack as one pass, or none, in a place where other ranks may have partitions."""
        for _ in range(wanted.encode):
            self._root_pass()
        for _ in range(wanted.first):
            self._forward_pass()
        loss = torch.zeros((), device=self._device)
        if pack is not None:
            loss = self._part(pack, loss_of, weight=1.0, is_last=is_last)
        for _ in range(wanted.parts - (pack is not None)):
            self._part(self._weightless, loss_of, weight=0.0, is_last=is_last)
        self._encoder_passes(wanted.encode)
        return loss

    def _cut(self, pack: Pack, wanted: Passes, loss_of: LossOf) -> Tensor:
        """A pack in partitions, each stage filled up."""
        assert pack.partitions is not None
        own = self._passes(pack)

        def after(stage: Stage) -> None:
            if stage == "encode":
                for _ in range(wanted.encode - own.encode):
                    self._root_pass()
            elif stage == "first":
                for _ in range(wanted.first - own.first):
                    self._forward_pass()
            elif stage == "parts":
                for _ in range(wanted.parts - own.parts):
                    self._part(self._weightless, loss_of, weight=0.0, is_last=False)
            else:
                self._encoder_passes(wanted.encode - own.encode)

        return partitioned_backward(
            self._model,
            pack.partitions,
            pack.frames,
            loss_of,
            backward=self._backward,
            after=after,
        )

    def _part(self, pack: Pack, loss_of: LossOf, *, weight: float, is_last: bool) -> Tensor:
        def run(model: VLA) -> Tensor:
            loss = loss_of(model.predictions(pack.packed, pack.frames, pack.plan), pack.packed)
            zero = zero_loss(frame_parameters(model)) if is_last else None
            return loss * weight if zero is None else loss * weight + zero

        loss = self._model.through(run)
        self._backward(loss)
        return loss.detach()

    @torch.no_grad()
    def _forward_pass(self) -> None:
        """A pass through every layer that nobody looks at."""
        pack = self._weightless
        self._model.through(lambda model: model.hidden_states(pack.packed, pack.frames, pack.plan))

    @torch.no_grad()
    def _root_pass(self) -> None:
        """Gathers what a pass of the encoder gathers."""
        self._model.through(lambda model: None)

    def _encoder_passes(self, count: int) -> None:
        """Exchange what backward passes of the encoder exchange, with gradients of zero."""
        for _ in range(count if self._trains_encoder else 0):
            loss = self._model.through(lambda model: zero_loss(frame_parameters(model)))
            assert loss is not None
            self._backward(loss)

    def _passes(self, pack: Pack) -> Passes:
        plans = pack.partitions
        if plans is None:
            return WHOLE
        return Passes(
            num_frame_passes(self._model, pack.frames), len(plans.cut.first_pass), len(plans.parts)
        )

    def _synchronise(self, *, is_on: bool) -> None:
        assert isinstance(self._model, FSDPModule)
        self._model.set_requires_gradient_sync(is_on)
