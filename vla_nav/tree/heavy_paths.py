"""Heavy paths of a pack: the contiguous runs that recurrent layers go through, round by round.

    tree   r a b - c d x           pack          r  a  b  c  d  x | y  z | w
               |       |           runs          0 .......... 5    6  7   8
               y z     w           parent token  none              b      d
                                   round         0                 1      1

In pre-order with the heaviest child first a root-to-leaf path is cut into at most log2(nodes) + 1
runs, each contiguous in the pack. A run starts from the state after its parent token (its *branch
point*; none = zero), so all runs whose parents lie in runs of round r - 1 are round r: a
caterpillar has two, its trunk and all of its leaves.

Runs are cut into *chunks* that end at every branch point, so that states are needed at ends of
chunks alone. The chunks of a round are ordered by their place in their run, runs of many chunks
first; step s of a round computes the s-th chunk of the first num_active[s] of its runs:

    run 0  c0 c1 c2     order  c0 d0 e0 | c1 d1 | c2        num_active  3 2 1
    run 1  d0 d1               step 0     step 1  step 2
    run 2  e0

The causal conv of a recurrent layer sees the last tokens *of the path*. In the pack that is so
except in the first tokens of a run; for these `window` names the tokens that they see:

    window of y  a b . y  ->  [r a b y], of z  [a b y z], of w [b c d w]         (MAX_KERNEL = 4)

Where the pack is a partition, a run may hang from a gateway token: its state and the tokens of its
window are then rows that earlier partitions export (`vla_nav.tree.carried`). Padding is in no run.

Axis legend: Q own tokens, P gateway tokens, R runs, C chunks, W windows, S states.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from vla_nav.tree.run_table import RunTable, run_table
from vla_nav.tree.types import Int32Array, IntArray

MAX_KERNEL = 4  # tokens that a window holds: the longest causal conv
CHUNK = 64  # tokens of a chunk at most

_NONE = np.empty(0, dtype=np.int64)


class Runs(NamedTuple):
    """Heavy paths in pack order: start and stop (R,) own rows; parent (R,) joint index of the token
    before the first one on its path (gateway rows 0 .. P-1, own rows behind them; -1 = none);
    round (R,)."""

    start: IntArray
    stop: IntArray
    parent: IntArray
    round: IntArray

    @property
    def num_rounds(self) -> int:
        """At most log2(nodes) + 1 for a tree."""
        return int(self.round.max()) + 1


@dataclass(frozen=True, eq=False)
class Round:
    """One round's chunks, int64 tensors, in the order of the steps.

    initial (R,): where each run starts from, runs of many chunks first: row of the states before
    this round; those are [zero, gateway states ...] in round 0, then the round before's `branch`.
    chunk_start, chunk_length (C,): own rows. num_active: runs of each step. width: the longest
    chunk. branch (S,): chunks after which states are needed, by ascending token.
    """

    initial: torch.Tensor
    chunk_start: torch.Tensor
    chunk_length: torch.Tensor
    branch: torch.Tensor
    num_active: tuple[int, ...]
    width: int


@dataclass(frozen=True, eq=False)
class HeavyPaths:
    """The runs of a pack as tables for a device.

    window_row (W,) int64: the own rows that are among the first MAX_KERNEL - 1 of their run.
    window (W, MAX_KERNEL) int64: what each sees, oldest first, itself last: rows of
    [gateway rows | own rows], -1 = before the path begins. num_tokens: own rows in runs; behind
    them is padding. exported (S,) int64: which of all rounds' branch states, one round behind the
    other, other partitions read. runs: the same in numpy. table: the same for fused kernels.
    """

    rounds: tuple[Round, ...]
    window_row: torch.Tensor
    window: torch.Tensor
    exported: torch.Tensor
    num_tokens: int
    runs: Runs
    table: RunTable

    def to(self, device: torch.device | str, non_blocking: bool = False) -> HeavyPaths:
        """The same on `device`."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> HeavyPaths:
        """The same in page-locked memory."""
        return self._map(torch.Tensor.pin_memory)

    def _map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> HeavyPaths:
        return replace(
            self,
            rounds=tuple(replace(item, **_tensors(item, function)) for item in self.rounds),
            table=replace(self.table, **_tensors(self.table, function)),
            **_tensors(self, function),
        )


def find_runs(subtree_end: Int32Array, depth: IntArray, *, num_prefix: int = 0) -> Runs:
    """The runs of own tokens in pre-order (without padding), which may hang from a gateway.

    subtree_end (Q,), depth (Q,) on the path. num_prefix: P; gateway token p has depth p.

    >>> runs = find_runs(np.array([5, 4, 4, 4, 5]), np.array([0, 1, 2, 3, 1]))   # r a b x | y
    >>> runs.start.tolist(), runs.stop.tolist(), runs.parent.tolist(), runs.round.tolist()
    ([0, 4], [4, 5], [-1, 0], [0, 1])
    """
    num_tokens = len(subtree_end)
    follows = subtree_end[:-1] > np.arange(1, num_tokens)  # a token's parent is the one before it
    start = np.concatenate([[0], np.flatnonzero(~follows) + 1])
    stop = np.append(start[1:], num_tokens)
    first_depth = depth[start].tolist()
    parents: list[int] = []
    rounds: list[int] = []
    above: list[int] = []  # runs that the walk hangs below
    for number, shallowest in enumerate(first_depth):
        while above and first_depth[above[-1]] >= shallowest:
            above.pop()
        if above:
            run = above[-1]
            parents.append(num_prefix + int(start[run]) + shallowest - 1 - first_depth[run])
            rounds.append(rounds[run] + 1)
        else:
            assert shallowest <= num_prefix, (shallowest, num_prefix)
            parents.append(shallowest - 1)
            rounds.append(0)
        above.append(number)
    return Runs(start, stop, np.array(parents, dtype=np.int64), np.array(rounds, dtype=np.int64))


def windows(runs: Runs, *, num_prefix: int = 0) -> tuple[IntArray, IntArray]:
    """The rows (W,) at the start of a run, and their windows (W, MAX_KERNEL) of joint indices."""
    lengths = np.minimum(runs.stop - runs.start, MAX_KERNEL - 1)
    first = np.cumsum(lengths) - lengths
    rows = np.repeat(runs.start - first, lengths) + np.arange(int(lengths.sum()))
    before = np.arange(-1, num_prefix + int(runs.stop[-1]) - 1)
    before[num_prefix + runs.start] = runs.parent
    seen = num_prefix + rows
    columns = [seen]
    for _ in range(MAX_KERNEL - 1):
        seen = np.where(seen >= 0, before[seen], -1)
        columns.append(seen)
    return rows, np.stack(columns[::-1], axis=1)


def heavy_paths(
    runs: Runs,
    *,
    num_prefix: int = 0,
    gateway_states: IntArray = _NONE,
    gateway_rows: IntArray = _NONE,
    exported_states: IntArray = _NONE,
) -> HeavyPaths:
    """The tables of `runs`.

    gateway_states, gateway_rows: ascending gateway tokens (0 .. P-1) whose states, and whose inputs
    of the conv, are read from other partitions. exported_states: ascending own rows after which
    others read the state.
    """
    num_tokens = int(runs.stop[-1])
    is_own = runs.parent >= num_prefix
    branches = np.union1d(runs.parent[is_own] - num_prefix, exported_states)
    chunk_start, chunk_stop = _chunks(runs, branches, num_tokens)
    run_of_chunk = np.searchsorted(runs.start, chunk_start, side="right") - 1
    first_chunk = np.searchsorted(chunk_start, runs.start)
    num_chunks = np.append(first_chunk[1:], len(chunk_start)) - first_chunk
    step = np.arange(len(chunk_start)) - first_chunk[run_of_chunk]
    branch_run = np.searchsorted(runs.start, branches, side="right") - 1
    branch_chunk = np.searchsorted(chunk_stop, branches, side="right")

    found: list[Round] = []
    states = np.concatenate([[-1], gateway_states])  # joint tokens of the states before the round
    before_round: list[IntArray] = []
    for number in range(runs.num_rounds):
        members = np.flatnonzero(runs.round == number)
        members = members[np.argsort(-num_chunks[members], kind="stable")]
        rank = np.empty(len(runs.start), dtype=np.int64)
        rank[members] = np.arange(len(members))
        chunks = np.flatnonzero(runs.round[run_of_chunk] == number)
        chunks = chunks[np.lexsort((rank[run_of_chunk[chunks]], step[chunks]))]
        place = np.empty(len(chunk_start), dtype=np.int64)
        place[chunks] = np.arange(len(chunks))
        is_here = runs.round[branch_run] == number
        length = chunk_stop[chunks] - chunk_start[chunks]
        found.append(
            Round(
                initial=torch.from_numpy(np.searchsorted(states, runs.parent[members])),
                chunk_start=torch.from_numpy(chunk_start[chunks]),
                chunk_length=torch.from_numpy(length),
                branch=torch.from_numpy(place[branch_chunk[is_here]]),
                num_active=tuple(np.bincount(step[chunks]).tolist()),
                width=int(length.max()),
            )
        )
        states = branches[is_here] + num_prefix
        before_round.append(branches[is_here])
    order = np.concatenate([_NONE, *before_round])
    exported = np.argsort(order, kind="stable")[np.searchsorted(branches, exported_states)]
    rows, seen = windows(runs, num_prefix=num_prefix)
    read = np.where(seen < 0, -1, np.searchsorted(gateway_rows, seen))
    seen = np.where(seen >= num_prefix, seen - num_prefix + len(gateway_rows), read)
    return HeavyPaths(
        tuple(found),
        torch.from_numpy(rows),
        torch.from_numpy(seen),
        torch.from_numpy(exported),
        num_tokens,
        runs,
        run_table(
            chunk_start=chunk_start,
            num_tokens=num_tokens,
            run_start=runs.start,
            parent=runs.parent,
            round_of_run=runs.round,
            branches=branches,
            gateway_states=gateway_states,
            exported_states=exported_states,
            num_prefix=num_prefix,
        ),
    )


def _chunks(runs: Runs, branches: IntArray, num_tokens: int) -> tuple[IntArray, IntArray]:
    """(C,) starts and stops in pack order: every run, cut behind its branch points, in equal parts
    of at most CHUNK tokens."""
    bounds = np.union1d(runs.start, branches + 1)
    bounds = bounds[bounds < num_tokens]
    lengths = np.diff(np.append(bounds, num_tokens))
    pieces = -(-lengths // CHUNK)
    width = -(-lengths // pieces)
    pieces = -(-lengths // width)
    first = np.cumsum(pieces) - pieces
    within = np.arange(int(pieces.sum())) - np.repeat(first, pieces)
    start = np.repeat(bounds, pieces) + within * np.repeat(width, pieces)
    return start, np.append(start[1:], num_tokens)


def _tensors(item: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, Any]:
    """Every tensor field of a dataclass through `function`."""
    return {
        field.name: function(value)
        for field in fields(item)
        if isinstance(value := getattr(item, field.name), torch.Tensor)
    }
