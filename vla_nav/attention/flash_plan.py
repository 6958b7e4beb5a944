"""The plan of a pack for `flash`: spans and block lists, and what a head shape derives from them.

    plan(packed)              loader worker   spans; lists of key and query blocks, both directions
    plan.tables(H, Hkv, D)    device, once    bits of the partial blocks, order of tiles, slots

Lists are made for query blocks of 64 tokens and key blocks of 128. A forward tile has 128 rows: 64
tokens where two query heads share a key head, 32 where four do (a list then serves two tiles), and
128 where none do (lists of their own). Where D > 128 both passes take key blocks of 64.

Axis legend: Q own tokens, P prefix tokens, K joint keys, H query heads, Hkv key heads, D head dim;
J rows of a list, E entries of partial lists.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from vla_nav.attention.blocks import (
    Rows,
    block_lists,
    longest_row,
    padded_rows,
    query_lists,
    repeated,
    transposed,
)
from vla_nav.attention.hopper.bits import fragment_bits
from vla_nav.attention.hopper.tables import (
    MAX_TILES,
    backward_items,
    forward_items,
    packed_rows,
    spans,
)
from vla_nav.attention.whole_blocks import BLOCK_SIZE, joint_ends, whole_blocks
from vla_nav.errors import UserError
from vla_nav.tree.packing import PackedTree
from vla_nav.tree.types import Int32Array, IntArray

_QUERY_BLOCK = 64  # of the backward pass
_SMALL_KEY_BLOCK = 64  # of both passes, where D > 128


@dataclass(frozen=True, eq=False)
class Direction:
    """lists of one pass: counts (1, 1, J) and indices (1, 1, J, width) int32 of partial, then of
    full blocks. On the host: work, blocks of a tile (J,) int64, and the partial rows once more."""

    lists: tuple[torch.Tensor, ...]
    work: IntArray
    partial: Rows

    @staticmethod
    def of(partial: Rows, full: Rows) -> Direction:
        """From rows of partial and full blocks."""
        tensors = []
        for rows in (partial, full):
            counts, indices = padded_rows(rows, max(1, longest_row(rows)))
            tensors += [torch.from_numpy(x)[None, None] for x in (counts, indices)]
        return Direction(tuple(tensors), np.diff(partial.offsets) + np.diff(full.offsets), partial)

    def map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Direction:
        """`function` of every tensor."""
        return Direction(tuple(map(function, self.lists)), self.work, self.partial)

    def divided_rows(self, parts: int) -> Direction:
        """The same where every row is `parts` smaller ones: each holds what the one held."""
        if parts == 1:
            return self
        lists = (x.repeat_interleave(parts, dim=2) for x in self.lists)
        return Direction(tuple(lists), np.repeat(self.work, parts), repeated(self.partial, parts))

    def halved_indices(self) -> Direction:
        """The same where every block in a list is two of half the size."""
        partial_counts, partial, full_counts, full = self.lists
        lists = (2 * partial_counts, _halves(partial), 2 * full_counts, _halves(full))
        indices = (2 * self.partial.indices[:, None] + np.arange(2, dtype=np.int32)).ravel()
        return Direction(lists, 2 * self.work, Rows(2 * self.partial.offsets, indices))


class Tables(NamedTuple):
    """What the kernels read of a plan: bits, lists, items and first entries of the forward pass,
    then spans, lists, items and slots of the backward one. split: the tiles that have a slot, where
    they are not the first."""

    tensors: list[torch.Tensor]
    num_slots: int
    split: torch.Tensor | None


@dataclass(frozen=True, eq=False)
class FlashPlan:
    """Q, P, the spans of all keys (K,) int32, the lists of both passes with query blocks of 64
    tokens, and the joint subtree ends (K,) on the host. What a head shape needs of them is derived
    once and kept."""

    num_tokens: int
    num_prefix: int
    span: torch.Tensor
    forward: Direction
    backward: Direction
    end: Int32Array
    _derived: dict[Any, Tables] = field(default_factory=dict, repr=False)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> FlashPlan:
        """The same plan on `device`."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> FlashPlan:
        """The same plan in page-locked memory."""
        return self._map(torch.Tensor.pin_memory)

    def tables(self, num_heads: int, num_kv_heads: int, head_dim: int) -> Tables:
        """For a head shape; the lists are the same for every head."""
        key = (num_heads, num_kv_heads, head_dim > 128)
        if key not in self._derived:
            self._derived[key] = self._tables(*key)
        return self._derived[key]

    def _tables(self, num_heads: int, num_kv_heads: int, is_wide: bool) -> Tables:
        device, group = self.span.device, num_heads // num_kv_heads
        num_rows, key_block = packed_rows(group), BLOCK_SIZE
        if num_rows <= _QUERY_BLOCK:
            forward = self.forward.divided_rows(_QUERY_BLOCK // num_rows)
        else:
            forward = self._whole_rows()
        backward = self.backward
        if is_wide:
            forward, backward = forward.halved_indices(), backward.divided_rows(2)
            key_block = _SMALL_KEY_BLOCK
        first_row = len(self.end) - whole_blocks(self.num_tokens)
        counts = np.diff(forward.partial.offsets)
        tiles = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        bits = fragment_bits(
            _on(device, tiles + np.int32(first_row // num_rows)),
            _on(device, forward.partial.indices),
            self.span,
            num_rows=num_rows,
            key_block=key_block,
        )
        processors = (
            torch.cuda.get_device_properties(device).multi_processor_count
            if device.type == "cuda"
            else 1
        )
        items, slots = backward_items(backward.work, num_heads, group, processors)
        split = np.flatnonzero(slots >= 0)
        tensors = [
            bits,
            *(x.expand(1, num_heads, *x.shape[2:]) for x in forward.lists),
            _on(device, forward_items(forward.work, num_heads * num_rows // BLOCK_SIZE)),
            _on(device, forward.partial.offsets[:-1].astype(np.int32)),
            self.span,
            *(x.expand(1, num_heads, *x.shape[2:]) for x in backward.lists),
            _on(device, items),
            _on(device, slots),
        ]
        is_first = len(split) == 0 or split[-1] == len(split) - 1
        return Tables(tensors, len(split), None if is_first else _on(device, split))

    def _whole_rows(self) -> Direction:
        """Forward lists with query blocks of 128 tokens, for heads that share no keys."""
        first_row = len(self.end) - whole_blocks(self.num_tokens)
        lists = block_lists(self.end, num_prefix=first_row, block_size=BLOCK_SIZE)
        device = self.span.device
        return Direction.of(lists.kv_partial, lists.kv_full).map(lambda x: x.to(device))

    def _map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> FlashPlan:
        return FlashPlan(
            self.num_tokens,
            self.num_prefix,
            function(self.span),
            self.forward.map(function),
            self.backward.map(function),
            self.end,
        )


def plan(packed: PackedTree) -> FlashPlan:
    """Spans, block lists and order of tiles of the pack, filled up to whole blocks."""
    end, first_row = joint_ends(packed)
    if len(end) // _SMALL_KEY_BLOCK > MAX_TILES:
        raise UserError(
            f"attention=flash takes up to {MAX_TILES * _SMALL_KEY_BLOCK:,} keys at once, got "
            f"{len(end):,}; set training.partition.tokens"
        )
    by_key = query_lists(end, num_prefix=first_row, block_size=BLOCK_SIZE, query_block=_QUERY_BLOCK)
    num_rows = (len(end) - first_row) // _QUERY_BLOCK
    return FlashPlan(
        len(packed.subtree_end),
        len(packed.prefix_end),
        torch.from_numpy(spans(end)),
        Direction.of(*(transposed(rows, num_rows) for rows in by_key)),
        Direction.of(*by_key),
        end,
    )


def _on(device: torch.device, array: IntArray | Int32Array) -> torch.Tensor:
    return torch.from_numpy(array).to(device, non_blocking=True)


def _halves(index: torch.Tensor) -> torch.Tensor:
    """Every block i of the last axis as blocks 2i and 2i + 1."""
    return torch.stack([2 * index, 2 * index + 1], dim=-1).flatten(-2)
