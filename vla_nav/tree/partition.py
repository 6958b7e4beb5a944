"""Trees that do not fit: partitions of a pack, each with the gateway of ancestors that it reads.

    pack          r a b c d | x y | z        capacity 4, mode recompute
    partition 0   r a b c                    exports r a b c (the ancestors of d), z needs r
    partition 1           d   x y            gateway r a b c -> own d x y;  x hangs from b, say
    partition 2                     z        gateway r       -> own z

A gateway is *one root-to-leaf chain*: all ancestors of the partition's first token that lie in
earlier partitions. So a partition is itself a small pack (gateway keys, then own tokens) under the
same one-integer mask:

    joint index j = p (prefix), or P + own index      end = prefix_end + P, or subtree_end + P
    visible(q, k)  <=>  k <= q < end[k]               queries are the rows P .. P + Q - 1

Modes (design section 4):

- `recompute`: partitions are consecutive runs of the pack. The gateway of a run that starts at
  token j has depth(j) tokens, so the cheapest cuts are a shortest path over node boundaries:
  fewest partitions first, then the least sum of depth(j). Exported tokens are computed twice.
- `keep`: partitions are subtrees, several in one partition where they hang from one chain of one
  parent partition (a trunk's leaves). A subtree that is too large gives its heavy path; what hangs
  from it is cut off. No token is computed twice; the chain of partitions stays in memory.

A target belongs to the partition of its predictor, so a target at a cut is predicted in the parent.

Axis legend: T packed tokens, Q own tokens, P gateway tokens, E exported tokens, M targets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch

from vla_nav.errors import unknown_name
from vla_nav.tree.cuts import cheapest_cuts, cut_points, subtree_partitions
from vla_nav.tree.packing import PackedTree, pack
from vla_nav.tree.prefix_tree import PrefixTree
from vla_nav.tree.types import IntArray

PartitionMode = Literal["recompute", "keep"]
_FIRST_PASS = 8  # capacities at once without gradients: a token then takes far less memory
Pad = Callable[[int], int]


class Run(NamedTuple):
    """Rows start .. stop - 1 of partition `number`: of its exports, or of its own tokens."""

    number: int
    start: int
    stop: int


@dataclass(frozen=True, eq=False)
class Partition:
    """One forward and backward: own tokens that see a gateway of ancestors and one another.

    parent: the partition that it was cut from (the last one of its gateway), -1 for none.
    packed: the own tokens, `target_index` as in the whole pack; targets whose predictor is here.
    own (Q,), prefix (P,) int64: pack indices, without padding. sources: the gateway as runs of
    other partitions' exports, in order. exports: what others read, as runs of own rows; heavy paths
    are contiguous, so runs are few. targets (M,) int64: which of the whole pack's are here.
    """

    number: int
    parent: int
    packed: PackedTree
    own: torch.Tensor
    prefix: torch.Tensor
    sources: tuple[Run, ...]
    exports: tuple[Run, ...]
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
            prefix=function(self.prefix),
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
        return sum(len(part.prefix) for part in self.parts)

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
            first_pass=tuple(
                FirstPass(function(item.part), item.numbers, item.sizes) for item in self.first_pass
            ),
        )


@dataclass(frozen=True, eq=False)
class FirstPass:
    """Exported tokens of consecutive partitions, run once without gradients.

    part: its own tokens are these exports. numbers, sizes: partition and how many of the rows, in
    order, are that partition's exports.
    """

    part: Partition
    numbers: tuple[int, ...]
    sizes: tuple[int, ...]


def partition(
    trees: Sequence[PrefixTree],
    *,
    capacity: int,
    mode: PartitionMode = "recompute",
    whole: PackedTree | None = None,
    padded_length: Pad = int,
    padded_prefix: Pad = int,
) -> Partitioned:
    """Cut the pack of `trees` into partitions of at most `capacity` own tokens.

    whole: `pack(trees)`, where it is there already. padded_length, padded_prefix: lengths that an
    attention backend wants for own tokens and gateway keys. Raises `UserError` for an unknown
    mode, `ValueError` for a capacity below 1 and a padded pack.
    """
    if mode not in get_args(PartitionMode):
        raise unknown_name("training.partition.mode", mode, get_args(PartitionMode))
    if capacity < 1:
        raise ValueError(f"a partition needs a capacity of 1 or more tokens, got {capacity}")
    whole = pack(trees) if whole is None else whole
    assert len(whole.token_ids) == whole.num_tokens, (
        "partitions are cut from a pack without padding"
    )
    subtree_end, depth = whole.subtree_end.numpy(), whole.position_ids.numpy()
    if mode == "recompute":
        points = cut_points(trees, stride=max(1, capacity // 256))
        bounds = cheapest_cuts(points, whole.num_tokens, capacity, cost=depth[points])
        stops = [*bounds[1:], whole.num_tokens]
        owns = [np.arange(start, stop) for start, stop in zip(bounds, stops, strict=True)]
    else:
        owns = subtree_partitions(trees, subtree_end, depth, capacity)
    cutter = _Cutter(whole, owns, padded_length, padded_prefix)
    parts = tuple(cutter.partition(number) for number in range(len(owns)))
    first_pass = tuple(cutter.first_pass(_FIRST_PASS * capacity)) if mode == "recompute" else ()
    return Partitioned(mode, parts, first_pass, whole.num_tokens, len(whole.target_ids))


class _Cutter:
    """Builds partitions from the ascending pack indices of their own tokens."""

    def __init__(
        self, whole: PackedTree, owns: Sequence[IntArray], padded_length: Pad, padded_prefix: Pad
    ) -> None:
        self._whole, self._own = whole, owns
        self._padded_length, self._padded_prefix = padded_length, padded_prefix
        self._subtree_end = whole.subtree_end.numpy()
        self._part_of = np.empty(whole.num_tokens, dtype=np.int64)
        self._own_row = np.empty(whole.num_tokens, dtype=np.int64)  # row in its partition
        for number, own in enumerate(owns):
            self._part_of[own] = number
            self._own_row[own] = np.arange(len(own))
        self._prefix = [self._ancestors(own, number) for number, own in enumerate(owns)]
        is_exported = np.zeros(whole.num_tokens, dtype=np.bool_)
        for prefix in self._prefix:
            is_exported[prefix] = True
        self._exported = [np.flatnonzero(is_exported[own]) for own in owns]  # own rows
        self._export_row = np.full(whole.num_tokens, -1, dtype=np.int64)
        for own, rows in zip(owns, self._exported, strict=True):
            self._export_row[own[rows]] = np.arange(len(rows))
        by_part = self._part_of[whole.predictor_index.numpy()]
        counts = np.bincount(by_part, minlength=len(owns))
        self._targets = np.split(np.argsort(by_part, kind="stable"), np.cumsum(counts)[:-1])

    def partition(self, number: int) -> Partition:
        """Partition `number` with its targets."""
        prefix = self._prefix[number]
        return self._part(
            number,
            int(self._part_of[prefix[-1]]) if len(prefix) else -1,
            self._own[number],
            prefix,
            self._exported[number],
            self._targets[number],
        )

    def first_pass(self, capacity: int) -> Iterator[FirstPass]:
        """The exports of consecutive partitions together, up to `capacity` tokens."""
        group: list[int] = []
        size = 0
        for number, rows in enumerate(self._exported):
            if group and size + len(rows) > capacity:
                yield self._first_pass(group)
                group, size = [], 0
            if len(rows):
                group.append(number)
                size += len(rows)
        if group:
            yield self._first_pass(group)

    def _first_pass(self, group: list[int]) -> FirstPass:
        own = np.concatenate([self._own[number][self._exported[number]] for number in group])
        prefix = self._ancestors(own, group[0])
        rows, none = np.arange(len(own)), np.empty(0, dtype=np.int64)
        part = self._part(-1, -1, own, prefix, rows, none)
        return FirstPass(part, tuple(group), tuple(len(self._exported[item]) for item in group))

    def _part(
        self,
        number: int,
        parent: int,
        own: IntArray,
        prefix: IntArray,
        exported: IntArray,
        targets: IntArray,
    ) -> Partition:
        return Partition(
            number=number,
            parent=parent,
            packed=self._local(own, prefix, targets),
            own=torch.from_numpy(own),
            prefix=torch.from_numpy(prefix),
            sources=_runs(self._part_of[prefix], self._export_row[prefix]),
            exports=_runs(np.full(len(exported), number), exported),
            targets=torch.from_numpy(targets),
        )

    def _ancestors(self, own: IntArray, number: int) -> IntArray:
        """(P,) the ancestors of the first own token that are in partitions before `number`."""
        first = int(own[0])
        tree_start = self._whole.tree_start.numpy()
        root = int(tree_start[np.searchsorted(tree_start, first, side="right") - 1])
        chain = np.flatnonzero(self._subtree_end[root:first] > first) + root
        return chain[self._part_of[chain] < number]

    def _local(self, own: IntArray, prefix: IntArray, targets: IntArray) -> PackedTree:
        """The own tokens as a pack behind `prefix`."""
        whole = self._whole
        size = self._padded_length(len(own))
        subtree_end = np.arange(1, size + 1, dtype=np.int32)  # padding sees itself only
        subtree_end[: len(own)] = np.searchsorted(own, self._subtree_end[own])
        prefix_end = np.zeros(self._padded_prefix(len(prefix)), dtype=np.int32)  # seen by nobody
        prefix_end[: len(prefix)] = np.searchsorted(own, self._subtree_end[prefix])
        index, chosen = torch.from_numpy(own), torch.from_numpy(targets)
        extra = size - len(own)
        policy = whole.policy
        return replace(
            whole,
            token_ids=_taken(whole.token_ids, index, extra, 0),
            position_ids=_taken(whole.position_ids, index, extra, 0),
            subtree_end=torch.from_numpy(subtree_end),
            frame_index=_taken(whole.frame_index, index, extra, -1),
            patch_index=_taken(whole.patch_index, index, extra, -1),
            vision_index=(whole.frame_index[index] >= 0).nonzero()[:, 0],
            target_index=whole.target_index[chosen],
            predictor_index=torch.from_numpy(self._own_row[whole.predictor_index.numpy()[targets]]),
            target_ids=whole.target_ids[chosen],
            loss_weights=whole.loss_weights[chosen],
            target_tree=whole.target_tree[chosen],
            policy=None if policy is None else type(policy)(*(item[chosen] for item in policy)),
            prefix_end=torch.from_numpy(prefix_end),
            num_tokens=len(own),
        )


def _runs(numbers: IntArray, rows: IntArray) -> tuple[Run, ...]:
    """Neighbours of one partition and ascending rows as runs, in the order given."""
    if not len(rows):
        return ()
    cuts = np.flatnonzero((np.diff(rows) != 1) | (np.diff(numbers) != 0)) + 1
    bounds = zip([0, *cuts.tolist()], [*cuts.tolist(), len(rows)], strict=True)
    return tuple(Run(int(numbers[a]), int(rows[a]), int(rows[b - 1]) + 1) for a, b in bounds)


def _taken(
    values: torch.Tensor, index: torch.Tensor, num_padding: int, padding: int
) -> torch.Tensor:
    """values[index], then `num_padding` times `padding`."""
    taken = values[index]
    return torch.nn.functional.pad(taken, (0, num_padding), value=padding)
