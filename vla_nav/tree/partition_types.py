"""Partitions of a pack as data: who computes which tokens, and who reads whose keys.

    partition 0   own a b c d          exports a b c (own rows 0 .. 2, one run)
    partition 1   own e f              gateway a b c = run 0 .. 2 of what partition 0 exports

How they are cut, and why: `vla_nav.tree.partition`.

Axis legend: Q own tokens, P gateway tokens, E exported tokens, M targets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch

from vla_nav.tree.packing import PackedTree

PartitionMode = Literal["recompute", "keep"]


class Run(NamedTuple):
    """Rows start .. stop - 1 of partition `number`: of its exports, or of its own tokens."""

    number: int
    start: int
    stop: int


class Carried(NamedTuple):
    """What recurrent layers read of earlier partitions and leave for later ones: state_sources and
    row_sources, runs of others' exported states and rows; row_exports, runs of own rows (which
    states are exported is in `packed.heavy_paths`)."""

    state_sources: tuple[Run, ...]
    row_sources: tuple[Run, ...]
    row_exports: tuple[Run, ...]


@dataclass(frozen=True, eq=False)
class Partition:
    """One forward and backward: own tokens that see a gateway of ancestors and one another.

    parent: the partition that it was cut from (the last one of its gateway), -1 for none.
    packed: the own tokens, `target_index` as in the whole pack; targets whose predictor is here.
    own (Q,) int64: pack indices, without padding. num_prefix: P, without padding. sources: the
    gateway as runs of other partitions' exports, in order. exports: what others read, as runs of
    own rows; heavy paths are contiguous, so runs are few. carried: the same for recurrent layers.
    targets (M,) int64: which of the whole pack's targets are here.
    """

    number: int
    parent: int
    packed: PackedTree
    own: torch.Tensor
    num_prefix: int
    sources: tuple[Run, ...]
    exports: tuple[Run, ...]
    carried: Carried
    targets: torch.Tensor

    @property
    def num_exported(self) -> int:
        """E."""
        return sum(run.stop - run.start for run in self.exports)

    @property
    def num_padded_prefix(self) -> int:
        """P with padding keys."""
        return len(self.packed.prefix_end)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Partition:
        """The same partition on `device`."""
        return self._map(lambda item: item.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Partition:
        """The same partition in page-locked memory."""
        return self._map(lambda item: item.pin_memory())

    def _map(self, function: Callable[[Any], Any]) -> Partition:
        return replace(
            self,
            packed=function(self.packed),
            own=function(self.own),
            targets=function(self.targets),
        )


@dataclass(frozen=True, eq=False)
class Partitioned:
    """A pack in partitions, in forward order.

    first_pass: under `recompute`, what is run without gradients before: runs of exported tokens
    (`number` counts them; their exports are split by `exports_of`, partition -> rows); else empty.
    num_targets: M of the whole pack.
    """

    mode: PartitionMode
    parts: tuple[Partition, ...]
    first_pass: tuple[FirstPass, ...]
    num_tokens: int
    num_targets: int

    @property
    def gateway_tokens(self) -> int:
        """Gateway keys summed over partitions: what the cuts minimise."""
        return sum(part.num_prefix for part in self.parts)

    @property
    def exported_tokens(self) -> int:
        """Tokens whose keys and values are kept for other partitions."""
        return sum(part.num_exported for part in self.parts)

    @property
    def recomputed_tokens(self) -> int:
        """Tokens that are computed twice."""
        return sum(len(item.part.own) for item in self.first_pass)

    def chain_tokens(self) -> int:
        """Most own tokens whose activations are alive at once: a chain of partitions (`keep`), or
        the largest partition (`recompute`)."""
        sizes = [len(part.own) for part in self.parts]
        if self.mode == "recompute":
            return max(sizes)
        chain: list[int] = []
        for part, size in zip(self.parts, sizes, strict=True):
            chain.append(size + (chain[part.parent] if part.parent >= 0 else 0))
        return max(chain)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Partitioned:
        """The same partitions on `device`."""
        return self._map(lambda item: item.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Partitioned:
        """The same partitions in page-locked memory."""
        return self._map(lambda item: item.pin_memory())

    def _map(self, function: Callable[[Any], Any]) -> Partitioned:
        return replace(
            self,
            parts=tuple(map(function, self.parts)),
            first_pass=tuple(replace(item, part=function(item.part)) for item in self.first_pass),
        )


@dataclass(frozen=True, eq=False)
class FirstPass:
    """Exported tokens of consecutive partitions, run once without gradients.

    part: its own tokens are these exports. numbers, sizes: partition and how many of the rows, in
    order, are that partition's exports; state_sizes, row_sizes: the same of what recurrent layers
    leave.
    """

    part: Partition
    numbers: tuple[int, ...]
    sizes: tuple[int, ...]
    state_sizes: tuple[int, ...]
    row_sizes: tuple[int, ...]
