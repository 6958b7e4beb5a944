"""The chunks of a pack in pack order, and which continues which: what fused kernels walk along.

    pack      r a b c d e | y z | w        chunks     0    1    2  | 3 | 4      bounds  0 2 4 6 8 9
    branches      b   d                    branch    -1    0    1   -1  -1
    runs by round (first chunk, count, initial row)  (0, 3, 0) | (3, 1, 1)  (4, 1, 2)
    rows of states                         [zero | gateway states ... | branch states ...]
    children of branch 0: run 1, of branch 1: run 2

Work inside chunks does not care about rounds: every chunk is a sequence of its own, in one launch
for the whole pack. Only states are passed round by round, from the rows named here; going back, the
gradient of a branch state is the sum over its children, in the order of the runs.

Axis legend: C chunks, R runs, S branch states.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from vla_nav.tree.types import IntArray


@dataclass(frozen=True, eq=False)
class RunTable:
    """int32 tensors, and the number of runs of each round.

    bounds (C+1,): own rows at which chunks begin, and the end of the last one. pairs (C, 2): each
    chunk's number and 0, which is how kernels of variable length count chunks of sequences.
    branch (C,): number of the branch state after a chunk, by ascending token, -1 = none.
    runs (R, 3): first chunk, number of chunks, row of the initial state; round by round.
    first_child (S+1,), children: runs that start from branch s are children[first_child[s] :
    first_child[s+1]]. exported (int64): which branch states other partitions read.
    """

    bounds: torch.Tensor
    pairs: torch.Tensor
    branch: torch.Tensor
    runs: torch.Tensor
    first_child: torch.Tensor
    children: torch.Tensor
    exported: torch.Tensor
    num_runs: tuple[int, ...]

    @property
    def num_branches(self) -> int:
        """S."""
        return len(self.first_child) - 1


def run_table(
    *,
    chunk_start: IntArray,
    num_tokens: int,
    run_start: IntArray,
    parent: IntArray,
    round_of_run: IntArray,
    branches: IntArray,
    gateway_states: IntArray,
    exported_states: IntArray,
    num_prefix: int,
) -> RunTable:
    """chunk_start, run_start: ascending own rows; parent: joint index per run; branches: ascending
    own rows after which states are needed (`vla_nav.tree.heavy_paths`)."""
    bounds = np.append(chunk_start, num_tokens)
    branch = np.full(len(chunk_start), -1)
    branch[np.searchsorted(bounds[1:], branches, side="right")] = np.arange(len(branches))
    first_chunk = np.searchsorted(chunk_start, run_start)
    num_chunks = np.append(first_chunk[1:], len(chunk_start)) - first_chunk
    states = np.concatenate([[-1], gateway_states, branches + num_prefix])
    initial = np.searchsorted(states, parent)
    order = np.lexsort((-num_chunks, round_of_run))  # the longest of a round are begun first
    runs = np.stack([first_chunk, num_chunks, initial], axis=1)[order]
    from_branch = runs[:, 2] - 1 - len(gateway_states)
    children = np.argsort(from_branch, kind="stable")[np.count_nonzero(from_branch < 0) :]
    first_child = np.searchsorted(from_branch[children], np.arange(len(branches) + 1))
    return RunTable(
        bounds=_int32(bounds),
        pairs=_int32(np.stack([np.arange(len(branch)), np.zeros_like(branch)], axis=1)),
        branch=_int32(branch),
        runs=_int32(runs),
        first_child=_int32(first_child),
        children=_int32(children),
        exported=torch.from_numpy(np.searchsorted(branches, exported_states)),
        num_runs=tuple(np.bincount(round_of_run).tolist()),
    )


def _int32(values: IntArray) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.int32))
