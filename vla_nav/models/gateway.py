"""Keys and values that cross from one partition to another, and their gradients back.

    forward of partition C, layer l        keys = [ gateway of ancestors (from the store) | own ]
                                           own keys that others read are copied into the store
    backward of partition C, layer l       d gateway  --added in float32-->  the store
    backward of its ancestor P, layer l    d own keys of P += what the store has added up

The store is filled by forward passes and emptied by backward passes, so an autograd function that
stands between a layer's keys and its attention is all that is needed: nothing is returned beside
the loss, and a layer that is recomputed (activation checkpointing) only writes the same keys again.
Keys are post-RoPE, so positions need no offset.

Axis legend: Q own tokens, P gateway tokens, E exported tokens, H key heads, D head dim.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vla_nav.models.backbone import Attend
from vla_nav.tree.partition import FirstPass, Partition


class GatewayStore:
    """Exported keys and values by partition and layer, and float32 sums of their gradients.

    Use: `gateway(part)` before a partition's forward; `split(first_pass)` after a first pass;
    `drop(number)` once a partition's backward is done.
    """

    def __init__(self) -> None:
        self._held: dict[int, dict[int, tuple[Tensor, Tensor]]] = {}
        self._gradients: dict[int, dict[int, tuple[Tensor, Tensor]]] = {}

    def gateway(self, part: Partition, *, is_stored: bool) -> Gateway:
        """What stands before the attention of `part`. is_stored: keep its exports (they are not
        there yet)."""
        if is_stored and len(part.exported):
            self._held.setdefault(part.number, {})
        return Gateway(self, part, is_stored=is_stored)

    def split(self, item: FirstPass) -> None:
        """Give the exports of a first pass to the partitions that they belong to."""
        joined = self._held.pop(item.part.number)
        for number in item.numbers:
            self._held[number] = {}
        for layer, pair in joined.items():
            keys, values = (torch.split(x, list(item.sizes)) for x in pair)
            for number, k, v in zip(item.numbers, keys, values, strict=True):
                # A copy of its own, so that dropping one partition frees its memory.
                self._held[number][layer] = (k.clone(), v.clone())

    def drop_keys(self, number: int) -> None:
        """Forget the keys of a partition that nobody will read any more."""
        self._held.pop(number, None)

    def drop(self, number: int) -> None:
        """Forget the keys and gradients of a partition."""
        self.drop_keys(number)
        self._gradients.pop(number, None)

    def held_bytes(self) -> int:
        """Bytes of keys, values and their gradients now."""
        return sum(
            x.nbytes
            for store in (self._held, self._gradients)
            for layers in store.values()
            for pair in layers.values()
            for x in pair
        )

    def write(self, number: int, layer: int, keys: Tensor, values: Tensor) -> None:
        """Keep exports (E, H, D)."""
        self._held[number][layer] = (keys, values)

    def read(self, number: int, layer: int) -> tuple[Tensor, Tensor]:
        """Exports (E, H, D) of a partition that came before."""
        return self._held[number][layer]

    def add_gradient(
        self, number: int, layer: int, rows: Tensor, gradients: tuple[Tensor, Tensor]
    ) -> None:
        """Add gradients (n, H, D) of exports `rows` (n,), in float32 or wider."""
        sums = self._gradients.setdefault(number, {})
        if layer not in sums:
            k, v = self._held[number][layer]
            sums[layer] = tuple(torch.zeros_like(x, dtype=_wide(x.dtype)) for x in (k, v))
        for total, gradient in zip(sums[layer], gradients, strict=True):
            total.index_add_(0, rows, gradient.to(total.dtype))

    def take_gradient(self, number: int, layer: int) -> tuple[Tensor, Tensor] | None:
        """The sums (E, H, D) of a partition's exports, once; None where nothing was added."""
        return self._gradients.get(number, {}).pop(layer, None)


class Gateway:
    """The keys of one partition's pass: `bind(attend)` gives attention with the gateway in it."""

    def __init__(self, store: GatewayStore, part: Partition, *, is_stored: bool) -> None:
        self.store, self.part, self.is_stored = store, part, is_stored

    def bind(self, attend: Attend) -> Attend:
        """`attend` over [gateway | own] keys; q, k and v are those of the own tokens."""
        if not self.part.num_padded_prefix and not len(self.part.exported):
            return attend

        # Without it, own keys that need no gradient (a partition of frozen embeddings) would cut
        # off the gradient of the gateway's.
        anchor = torch.empty(0, requires_grad=torch.is_grad_enabled())

        def through(q: Tensor, k: Tensor, v: Tensor, layer: int, scale: float) -> Tensor:
            k, v = _Extend.apply(k, v, anchor, self, layer)
            return attend(q, k, v, layer, scale)

        return through

    def extended(self, k: Tensor, v: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """(1, Q, H, D) -> (1, P + Q, H, D); exports are stored."""
        part = self.part
        if self.is_stored and len(part.exported):
            own = (x[0].index_select(0, part.exported) for x in (k, v))
            self.store.write(part.number, layer, *own)
        if not part.num_padded_prefix:
            return k.view_as(k), v.view_as(v)
        missing = part.num_padded_prefix - len(part.prefix)
        padding = [k.new_zeros(missing, *k.shape[2:])] if missing else []
        read = [(self.store.read(s.number, layer), s.rows) for s in part.sources]
        joined = [
            torch.cat([*(pair[i].index_select(0, rows) for pair, rows in read), *padding, x[0]])
            for i, x in enumerate((k, v))
        ]
        return joined[0][None], joined[1][None]

    def gradients(self, dk: Tensor, dv: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """(1, P + Q, H, D) -> (1, Q, H, D): the gateway's part goes to its owners, and what others
        sent to this partition is added before one cast."""
        part, num_prefix = self.part, self.part.num_padded_prefix
        start = 0
        for source in part.sources:
            stop = start + len(source.rows)
            pair = (dk[0, start:stop], dv[0, start:stop])
            self.store.add_gradient(source.number, layer, source.rows, pair)
            start = stop
        own = [dk[:, num_prefix:], dv[:, num_prefix:]]
        sums = self.store.take_gradient(part.number, layer)
        if sums is None:
            return own[0], own[1]
        return tuple(
            _added(gradient, part.exported, total)
            for gradient, total in zip(own, sums, strict=True)
        )


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


def _added(gradient: Tensor, rows: Tensor, total: Tensor) -> Tensor:
    """gradient (1, Q, H, D) with `total` (E, H, D) added at `rows` (E,), summed wide, cast once."""
    summed = gradient[0].index_select(0, rows).to(total.dtype) + total
    return gradient.index_copy(1, rows, summed.to(gradient.dtype)[None])


def _wide(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype == torch.float64 else torch.float32
