"""States and conv inputs that cross from one partition to another, and their gradients back.

    forward of partition C, layer l      conv: rows of ancestors (from the shelf) before its own
                                         scan: runs at the gateway start from states of the shelf
                                         what others read of C is put on the shelf
    backward of partition C, layer l     d rows, d states  --added in float32-->  the shelf
    backward of its ancestor P, layer l  d own rows, d own states += what the shelf has added up

As keys and values (`vla_nav.models.gateway`) they pass through autograd functions that stand in the
layer, so a layer that is recomputed writes the same again. Who reads what: `vla_nav.tree.carried`.

Axis legend: Q own tokens, G rows of the gateway, S states, C channels, H heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vla_nav.tree.partition_types import Partition, Run


class Shelf:
    """Exported tensors by partition and layer, and float32 sums of their gradients."""

    def __init__(self) -> None:
        self._held: dict[int, dict[int, Tensor]] = {}
        self._gradients: dict[int, dict[int, Tensor]] = {}

    def write(self, number: int, layer: int, exported: Tensor) -> None:
        """Keep what partition `number` exports."""
        self._held.setdefault(number, {})[layer] = exported

    def read(self, runs: Sequence[Run], layer: int) -> list[Tensor]:
        """The rows of `runs`, in order."""
        return [self._held[run.number][layer][run.start : run.stop] for run in runs]

    def add_gradient(self, runs: Sequence[Run], layer: int, gradient: Tensor) -> None:
        """Add the gradient of what `read` gave for `runs`, in float32 or wider."""
        start = 0
        for run in runs:
            stop = start + run.stop - run.start
            sums = self._gradients.setdefault(run.number, {})
            if layer not in sums:
                held = self._held[run.number][layer]
                dtype = torch.float64 if held.dtype == torch.float64 else torch.float32
                sums[layer] = torch.zeros_like(held, dtype=dtype)
            sums[layer][run.start : run.stop] += gradient[start:stop]
            start = stop

    def take_gradient(self, number: int, layer: int) -> Tensor | None:
        """The sums of a partition's exports, once; None where nothing was added."""
        return self._gradients.get(number, {}).pop(layer, None)

    def split(self, number: int, numbers: Sequence[int], sizes: Sequence[int]) -> None:
        """Give the exports of `number` to the partitions that they belong to."""
        for layer, joined in self._held.pop(number, {}).items():
            for owner, rows in zip(numbers, joined.split(list(sizes)), strict=True):
                # Copies, so that dropping one partition frees its memory.
                self.write(owner, layer, rows if len(numbers) == 1 else rows.clone())

    def drop_exports(self, number: int) -> None:
        """Forget the exports of a partition that nobody will read any more."""
        self._held.pop(number, None)

    def drop(self, number: int) -> None:
        """Forget the exports and gradients of a partition."""
        self.drop_exports(number)
        self._gradients.pop(number, None)


class Carry:
    """What one partition's pass reads and leaves. is_stored: its exports are kept (they are not
    there yet)."""

    def __init__(self, states: Shelf, rows: Shelf, part: Partition, *, is_stored: bool) -> None:
        self._states, self._rows = states, rows
        self.part, self.is_stored = part, is_stored

    def rows(self, x: Tensor, layer: int) -> Tensor:
        """x (Q, C) behind the gateway's rows: (G + Q, C)."""
        carried = self.part.carried
        if not carried.row_sources and not carried.row_exports:
            return x
        joined: Tensor = _Rows.apply(x, _anchor(), self, layer)
        return joined

    def states_before(self, zero: Tensor, layer: int) -> Tensor:
        """[zero (1, H, Dk, Dv), the gateway's states]."""
        if not self.part.carried.state_sources:
            return zero
        return torch.cat([zero, _States.apply(_anchor(), self, layer)])

    def export(self, out: Tensor, states: Tensor, layer: int) -> Tensor:
        """`out` as it is; others may read `states` (S, H, Dk, Dv)."""
        if not len(states):
            return out
        through: Tensor = _Export.apply(out, states, self, layer)
        return through


class _Rows(torch.autograd.Function):
    """Own rows -> those of gateway and own tokens."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, carry: Carry, layer: int) -> Tensor:
        ctx.carry, ctx.layer = carry, layer
        part = carry.part
        if carry.is_stored and part.carried.row_exports:
            exported = [x[run.start : run.stop] for run in part.carried.row_exports]
            carry._rows.write(part.number, layer, torch.cat(exported))
        return torch.cat([*carry._rows.read(part.carried.row_sources, layer), x])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        carry, layer, part = ctx.carry, ctx.layer, ctx.carry.part
        carried = part.carried
        num_before = sum(run.stop - run.start for run in carried.row_sources)
        carry._rows.add_gradient(carried.row_sources, layer, gradient[:num_before])
        own = gradient[num_before:]
        sums = carry._rows.take_gradient(part.number, layer)
        if sums is not None:
            own, row = own.clone(), 0
            for run in carried.row_exports:
                stop = row + run.stop - run.start
                own[run.start : run.stop] = own[run.start : run.stop] + sums[row:stop]
                row = stop
        return own, None, None, None


class _States(torch.autograd.Function):
    """The gateway's states."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, carry: Carry, layer: int) -> Tensor:
        ctx.carry, ctx.layer = carry, layer
        return torch.cat(carry._states.read(carry.part.carried.state_sources, layer))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None]:
        carry = ctx.carry
        carry._states.add_gradient(carry.part.carried.state_sources, ctx.layer, gradient)
        return None, None, None


class _Export(torch.autograd.Function):
    """The layer's output, with exported states hanging from it."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, states: Tensor, carry: Carry, layer: int) -> Tensor:
        ctx.carry, ctx.layer = carry, layer
        ctx.shape, ctx.dtype = states.shape, states.dtype
        if carry.is_stored:
            carry._states.write(carry.part.number, layer, states.detach())
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        sums = ctx.carry._states.take_gradient(ctx.carry.part.number, ctx.layer)
        return gradient, None if sums is None else sums.to(ctx.dtype), None, None


def _anchor() -> Tensor:
    """Keeps a function in the graph whose tensors come from no graph."""
    return torch.empty(0, requires_grad=torch.is_grad_enabled())
