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

from vla_nav.tree.carried import exports_of, needs_of
from vla_nav.tree.heavy_paths import Runs, find_runs, heavy_paths
from vla_nav.tree.packing import PackedTree
from vla_nav.tree.partition_types import Carried, FirstPass, Partition, Run
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
        states, rows = [], []  # tokens that recurrent layers read
        # Chains are found again where they are used: all of them at once are a long tree's memory.
        for number, own in enumerate(owns):
            prefix = self._ancestors(own, number)
            is_exported[prefix] = True
            needs = needs_of(self._runs(own, prefix), len(prefix))
            states.append(prefix[needs.states])
            rows.append(prefix[needs.rows])
        self._exports = exports_of([np.flatnonzero(is_exported)], owns, whole.num_tokens)
        self._states = exports_of(states, owns, whole.num_tokens)
        self._rows = exports_of(rows, owns, whole.num_tokens)
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
            (self._exports.own[number], self._states.own[number], self._rows.own[number]),
            self._targets[number],
        )

    def first_pass(self, capacity: int) -> Iterator[FirstPass]:
        """The exports of consecutive partitions together, up to `capacity` tokens."""
        group: list[int] = []
        size = 0
        for number, rows in enumerate(self._exports.own):
            if group and size + len(rows) > capacity:
                yield self._first_pass(group)
                group, size = [], 0
            if len(rows):
                group.append(number)
                size += len(rows)
        if group:
            yield self._first_pass(group)

    def _first_pass(self, group: list[int]) -> FirstPass:
        tables = (self._exports, self._states, self._rows)
        own = np.concatenate([self._own[number][self._exports.own[number]] for number in group])
        exported = []
        for table in tables:
            tokens = [self._own[number][table.own[number]] for number in group]
            exported.append(np.searchsorted(own, np.concatenate(tokens)))
        none = np.empty(0, dtype=np.int64)
        prefix = self._ancestors(own, group[0])
        part = self._part(-1, -1, own, prefix, (exported[0], exported[1], exported[2]), none)
        sizes = (tuple(len(table.own[number]) for number in group) for table in tables)
        return FirstPass(part, tuple(group), *sizes)

    def _part(
        self,
        number: int,
        parent: int,
        own: IntArray,
        prefix: IntArray,
        exported: tuple[IntArray, IntArray, IntArray],
        targets: IntArray,
    ) -> Partition:
        """exported: own rows whose keys, whose states and whose rows others read."""
        keys, states, rows = exported
        runs = self._runs(own, prefix)
        needs = needs_of(runs, len(prefix))
        packed = replace(
            self._local(own, prefix, targets),
            heavy_paths=heavy_paths(
                runs,
                num_prefix=len(prefix),
                gateway_states=needs.states,
                gateway_rows=needs.rows,
                exported_states=states,
            ),
        )
        return Partition(
            number=number,
            parent=parent,
            packed=packed,
            own=torch.from_numpy(own),
            num_prefix=len(prefix),
            sources=self._sources(prefix, self._exports.place),
            exports=_runs(np.full(len(keys), number), keys),
            carried=Carried(
                self._sources(prefix[needs.states], self._states.place),
                self._sources(prefix[needs.rows], self._rows.place),
                _runs(np.full(len(rows), number), rows),
            ),
            targets=torch.from_numpy(targets),
        )

    def _sources(self, tokens: IntArray, place: IntArray) -> tuple[Run, ...]:
        return _runs(self._part_of[tokens], place[tokens])

    def _runs(self, own: IntArray, prefix: IntArray) -> Runs:
        """The heavy paths of own tokens behind `prefix`."""
        depth = self._whole.position_ids.numpy()[own]
        ends = _rows_before(own, self._subtree_end[own])
        return find_runs(ends.astype(np.int32), depth, num_prefix=len(prefix))

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
