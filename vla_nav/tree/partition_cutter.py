"""From the tokens of each partition to its pack, gateway, exports and targets.

    own         3 4 5 6                 pack indices, ascending
    subtree_end 9 5 5 9  ->  4 2 2 4    own rows in the token's subtree: places in `own`
    gateway     0 1                     the ancestors of token 3 in earlier partitions
    subtree_end 9 5      ->  4 2        prefix_end: own rows that see each

Every gateway token sees from own row 0: the first own token hangs from the end of the gateway, the
others from it or from further up (`vla_nav.tree.cuts`).

Axis legend: T packed tokens, Q own tokens, P gateway tokens, E exported tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from vla_nav.tree.packing import PackedTree
from vla_nav.tree.partition_types import FirstPass, Partition, Run
from vla_nav.tree.types import Int32Array, IntArray

Pad = Callable[[int], int]


class PartitionCutter:
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
        is_exported = np.zeros(whole.num_tokens, dtype=np.bool_)
        # Chains are found again where they are used: all of them at once are a long tree's memory.
        for number, own in enumerate(owns):
            is_exported[self._ancestors(own, number)] = True
        self._exported = [np.flatnonzero(is_exported[own]) for own in owns]  # own rows
        self._export_row = np.full(whole.num_tokens, -1, dtype=np.int64)
        for own, rows in zip(owns, self._exported, strict=True):
            self._export_row[own[rows]] = np.arange(len(rows))
        by_part = self._part_of[whole.predictor_index.numpy()]
        counts = np.bincount(by_part, minlength=len(owns))
        self._targets = np.split(np.argsort(by_part, kind="stable"), np.cumsum(counts)[:-1])

    def partition(self, number: int) -> Partition:
        """Partition `number` with its targets."""
        prefix = self._ancestors(self._own[number], number)
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
            num_prefix=len(prefix),
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
        subtree_end[: len(own)] = _rows_before(own, self._subtree_end[own])
        prefix_end = np.zeros(self._padded_prefix(len(prefix)), dtype=np.int32)  # seen by nobody
        prefix_end[: len(prefix)] = _rows_before(own, self._subtree_end[prefix])
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


def _rows_before(own: IntArray, stops: Int32Array) -> IntArray:
    """How many own tokens (ascending) come before each pack index in `stops`."""
    first, count = int(own[0]), len(own)
    if int(own[-1]) == first + count - 1:  # one run of the pack
        return np.clip(stops.astype(np.int64), first, first + count) - first
    return np.searchsorted(own, stops)


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
