"""Keys and values that cross from one partition to another, and their gradients back.

    forward of partition C, layer l        keys = [ gateway of ancestors (from the store) | own ]
                                           own keys that others read are copied into the store
    backward of partition C, layer l       d gateway  --added in float32-->  the store
    backward of its ancestor P, layer l    d own keys of P += what the store has added up

The store is filled by forward passes and emptied by backward passes, so an autograd function that
stands between a layer's keys and its attention is all that is needed: nothing is returned beside
the loss, and a layer that is recomputed (activation checkpointing) only writes the same keys again.
Keys are post-RoPE, so positions need no offset. Everything is moved in runs of neighbouring rows (a
heavy path is contiguous): no index tensors, and few launches per layer.

Axis legend: Q own tokens, P gateway tokens, E exported tokens, H key heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from vla_nav.models.backbone import Attend
from vla_nav.models.hybrid.carry import Carry, Shelf
from vla_nav.tree.partition_types import FirstPass, Partition, Run

_KEYS, _VALUES = 0, 1


class GatewayStore:
    """Exported keys and values by partition and layer, and float32 sums of their gradients.

    Use: `gateway(part)` before a partition's forward; `split(first_pass)` after a first pass;
    `drop(number)` once a partition's backward is done.
    """

    def __init__(self) -> None:
        self._held: dict[int, dict[int, tuple[Tensor, Tensor]]] = {}
        self._gradients: dict[int, dict[int, tuple[Tensor, Tensor]]] = {}
        self._states, self._rows = Shelf(), Shelf()  # of recurrent layers

    def gateway(self, part: Partition, *, is_stored: bool) -> Gateway:
        """What stands before the attention of `part`. is_stored: keep its exports (they are not
        there yet)."""
        if is_stored and part.exports:
            self._held.setdefault(part.number, {})
        carry = Carry(self._states, self._rows, part, is_stored=is_stored)
        return Gateway(self, part, carry, is_stored=is_stored)

    def split(self, item: FirstPass) -> None:
        """Give the exports of a first pass to the partitions that they belong to."""
        joined = self._held.pop(item.part.number)
        for number in item.numbers:
            self._held[number] = {}
        for layer in list(joined):
            keys, values = (torch.split(x, list(item.sizes)) for x in joined.pop(layer))
            for number, k, v in zip(item.numbers, keys, values, strict=True):
                # Copies, so that dropping one partition frees its memory.
                pair = (k, v) if len(item.numbers) == 1 else (k.clone(), v.clone())
                self._held[number][layer] = pair
        self._states.split(item.part.number, item.numbers, item.state_sizes)
        self._rows.split(item.part.number, item.numbers, item.row_sizes)

    def drop_keys(self, number: int) -> None:
        """Forget the keys (and states) of a partition that nobody will read any more."""
        self._held.pop(number, None)
        self._states.drop_exports(number)
        self._rows.drop_exports(number)

    def drop(self, number: int) -> None:
        """Forget the keys and gradients of a partition."""
        self.drop_keys(number)
        self._gradients.pop(number, None)
        self._states.drop(number)
        self._rows.drop(number)

    def write(self, number: int, layer: int, keys: Tensor, values: Tensor) -> None:
        """Keep exports (E, H, D)."""
        self._held[number][layer] = (keys, values)

    def read(self, number: int, layer: int) -> tuple[Tensor, Tensor]:
        """Exports (E, H, D) of a partition that came before."""
        return self._held[number][layer]

    def add_gradient(self, run: Run, layer: int, gradients: tuple[Tensor, Tensor]) -> None:
        """Add gradients (n, H, D) of a run of exports, in float32 or wider."""
        sums = self._gradients.setdefault(run.number, {})
        if layer not in sums:
            k, v = self._held[run.number][layer]
            sums[layer] = (_wide_zeros(k), _wide_zeros(v))
        for total, gradient in zip(sums[layer], gradients, strict=True):
            total[run.start : run.stop] += gradient

    def take_gradient(self, number: int, layer: int) -> tuple[Tensor, Tensor] | None:
        """The sums (E, H, D) of a partition's exports, once; None where nothing was added."""
        return self._gradients.get(number, {}).pop(layer, None)


class Gateway:
    """The keys of one partition's pass: `bind(attend)` gives attention with the gateway in it.
    carry: the same for recurrent layers."""

    def __init__(
        self, store: GatewayStore, part: Partition, carry: Carry, *, is_stored: bool
    ) -> None:
        self.store, self.part, self.carry, self.is_stored = store, part, carry, is_stored

    def bind(self, attend: Attend) -> Attend:
        """`attend` over [gateway | own] keys; q, k and v are those of the own tokens."""
        if not self.part.num_padded_prefix and not self.part.exports:
            return attend

        # Without it, own keys that need no gradient (a partition of frozen embeddings) would cut
        # off the gradient of the gateway's.
        anchor = torch.empty(0, requires_grad=torch.is_grad_enabled())

        def through(q: Tensor, k: Tensor, v: Tensor, layer: int, scale: float) -> Tensor:
            keys, values = _Extend.apply(k, v, anchor, self, layer)
            with saved_tensors_hooks(*_joined_again(self, (k, v), (keys, values), layer)):
                return attend(q, keys, values, layer, scale)

        return through

    def extended(self, k: Tensor, v: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """(1, Q, H, D) -> (1, P + Q, H, D); exports are stored."""
        part = self.part
        if self.is_stored and part.exports:
            self.store.write(part.number, layer, _exported(k[0], part), _exported(v[0], part))
        if not part.num_padded_prefix:
            return k.view_as(k), v.view_as(v)
        return self.joined(k, layer, _KEYS), self.joined(v, layer, _VALUES)

    def joined(self, own: Tensor, layer: int, which: int) -> Tensor:
        """The gateway's keys or values, padding, and own (1, Q, H, D): (1, P + Q, H, D)."""
        part = self.part
        missing = part.num_padded_prefix - part.num_prefix
        padding = [own.new_zeros(missing, *own.shape[2:])] if missing else []
        read = [
            self.store.read(run.number, layer)[which][run.start : run.stop] for run in part.sources
        ]
        return torch.cat([*read, *padding, own[0]])[None]

    def gradients(self, dk: Tensor, dv: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """(1, P + Q, H, D) -> (1, Q, H, D): the gateway's part goes to its owners, and what others
        sent to this partition is added before one cast."""
        part, num_prefix = self.part, self.part.num_padded_prefix
        start = 0
        for run in part.sources:
            stop = start + run.stop - run.start
            self.store.add_gradient(run, layer, (dk[0, start:stop], dv[0, start:stop]))
            start = stop
        own = dk[:, num_prefix:], dv[:, num_prefix:]
        sums = self.store.take_gradient(part.number, layer)
        if sums is None:
            return own
        return _added(own[0], part, sums[0]), _added(own[1], part, sums[1])


class _Extend(torch.autograd.Function):
    """Own keys and values -> those of gateway and own tokens."""

    @staticmethod
    def forward(
        ctx: Any, k: Tensor, v: Tensor, anchor: Tensor, gateway: Gateway, layer: int
    ) -> tuple[Tensor, Tensor]:
        ctx.gateway, ctx.layer = gateway, layer
        return gateway.extended(k, v, layer)

    @staticmethod
    def backward(ctx: Any, dk: Tensor, dv: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        return (*ctx.gateway.gradients(dk, dv, ctx.layer), None, None, None)


def _joined_again(
    gateway: Gateway, own: tuple[Tensor, Tensor], joined: tuple[Tensor, Tensor], layer: int
) -> tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]:
    """Hooks under which attention keeps no joined keys for its backward pass, but joins them again.

    What it saves of `joined` (any view) is kept as its place; everything else as it is.
    """
    own = (own[0].detach(), own[1].detach())
    places = {x.untyped_storage().data_ptr(): i for i, x in enumerate(joined)}
    if not gateway.part.num_padded_prefix:
        places = {}  # joined are views of own

    def pack(x: Tensor) -> Any:
        which = places.get(x.untyped_storage().data_ptr())
        return x if which is None else (which, x.size(), x.stride(), x.storage_offset())

    def unpack(kept: Any) -> Tensor:
        if isinstance(kept, Tensor):
            return kept
        which, *view = kept
        return gateway.joined(own[which], layer, which).as_strided(*view)

    return pack, unpack


def _exported(x: Tensor, part: Partition) -> Tensor:
    """The exported rows (E, H, D) of x (Q, H, D): a view where they are one run, unless it would
    hold more than x (values out of one product with queries and keys)."""
    runs = [x[run.start : run.stop].detach() for run in part.exports]
    if len(runs) > 1:
        return torch.cat(runs)
    is_own = x.untyped_storage().nbytes() == x.numel() * x.element_size()
    return runs[0] if is_own else runs[0].clone()


def _added(gradient: Tensor, part: Partition, total: Tensor) -> Tensor:
    """gradient (1, Q, H, D) with `total` (E, H, D) added at the exported rows: summed wide, cast
    once."""
    summed = gradient.clone()
    row = 0
    for run in part.exports:
        stop = row + run.stop - run.start
        summed[0, run.start : run.stop] = gradient[0, run.start : run.stop] + total[row:stop]
        row = stop
    return summed


def _wide_zeros(x: Tensor) -> Tensor:
    """Zeros like x in float32, or in float64 where x is."""
    return torch.zeros_like(x, dtype=x.dtype if x.dtype == torch.float64 else torch.float32)
