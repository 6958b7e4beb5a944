"""The order in which a Hopper kernel takes up its tiles: the longest first.

A tile of the forward pass is a block of queries and takes as long as its list of keys; one of the
backward pass is a block of keys and takes as long as its list of queries. In a tree these differ
by far more than in a causal triangle (a trunk's first keys are seen by every leaf, a leaf's by
itself), and where a long one starts last, most of the chip waits for it.

    items       0        1        2        ...    one per (block, head), `order.py` makes them
    as int32    head << 16 | block

Program i computes items[i]; the chip starts programs in that order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import Int32, cute
from flash_attn.cute.tile_scheduler import (
    ParamsBase,
    SchedulingMode,
    TileSchedulerArguments,
    WorkTileInfo,
)


class OrderedScheduler:
    """One tile per program, by the list handed through `mCuTotalMBlocks` (of no other use to
    kernels without variable lengths)."""

    @dataclass
    class Params(ParamsBase):
        """items (num_items,) int32 on the device."""

        items: cute.Tensor
        num_items: Int32

    def __init__(self, params: Params, index: Int32, *, loc: Any = None, ip: Any = None) -> None:
        self.params, self._index = params, index
        self._is_first = True
        self._loc, self._ip = loc, ip

    @staticmethod
    def to_underlying_arguments(
        args: TileSchedulerArguments,
        *,
        scheduling_mode: SchedulingMode = SchedulingMode.STATIC,
        loc: Any = None,
        ip: Any = None,
    ) -> Params:
        """Of the kernels' arguments, what is needed on the device."""
        assert args.cu_total_m_blocks_ptr is not None
        items = args.cu_total_m_blocks_ptr
        return OrderedScheduler.Params(items, cute.size(items))

    @staticmethod
    def create(
        params: Params, ctx: Any = None, *, loc: Any = None, ip: Any = None
    ) -> OrderedScheduler:
        """The scheduler of this program."""
        return OrderedScheduler(params, cute.arch.block_idx()[0], loc=loc, ip=ip)

    @staticmethod
    def get_grid_shape(
        params: Params, *, loc: Any = None, ip: Any = None
    ) -> tuple[Int32, Int32, Int32]:
        """As many programs as items."""
        return params.num_items, Int32(1), Int32(1)

    def get_current_work(self, *, loc: Any = None, ip: Any = None) -> WorkTileInfo:
        """(block, head, batch 0, split 0) of this program."""
        item = Int32(self.params.items[self._index])
        place = (item & 0xFFFF, item >> 16, Int32(0), Int32(0))
        return WorkTileInfo(place, self._is_first)

    def initial_work_tile_info(self, *, loc: Any = None, ip: Any = None) -> WorkTileInfo:
        """The program's only tile."""
        return self.get_current_work(loc=loc, ip=ip)

    def prefetch_next_work(self, *, loc: Any = None, ip: Any = None) -> None:
        """There is none."""

    def advance_to_next_work(self, *, loc: Any = None, ip: Any = None) -> WorkTileInfo:
        """No tile: the program ends."""
        self._is_first = False
        return self.get_current_work()

    def producer_tail(self, *, loc: Any = None, ip: Any = None) -> None:
        """Nothing to wait for."""

    def __extract_mlir_values__(self) -> list[Any]:
        values, self._counts = [], []
        for part in (self.params, self._index):
            found = cutlass.extract_mlir_values(part)
            values += found
            self._counts.append(len(found))
        return values

    def __new_from_mlir_values__(self, values: list[Any]) -> OrderedScheduler:
        parts = []
        for part, count in zip((self.params, self._index), self._counts, strict=True):
            parts.append(cutlass.new_from_mlir_values(part, values[:count]))
            values = values[count:]
        again = OrderedScheduler(*parts, loc=self._loc)
        again._is_first = self._is_first
        return again
