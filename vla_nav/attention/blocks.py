"""Which blocks of the mask hold anything: lists for every block-sparse kernel, from `subtree_end`.

For query block [a, a+S) and an earlier key block [c, c+S), with the smallest and largest
subtree_end in the key block:

    live  <=>  largest  > a          (then the block's first query sees that key)
    full  <=>  smallest >= a + S     (then every query sees every key: no mask to evaluate)

    caterpillar     key block ->
                    0 1 2 3 4        P partial (mask evaluated), F full, . dead (skipped)
    query block 0   P
                1   F P
                2   F F P
                3   F P P P
                4   P . . P P

So the queries of key block j are the blocks j (always partial), then full ones up to
smallest // S, then partial ones up to ceil(largest / S): two ranges, no search, nothing T x T.
The other direction is the same entries sorted by query block. Lists are compressed rows
(CSR: offsets and indices), independent of any kernel library.

Axis legend: T tokens (a multiple of the block size S), J blocks, L live blocks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vla_nav.tree.types import Int32Array, IntArray


class Rows(NamedTuple):
    """Compressed rows: row i is indices[offsets[i] : offsets[i+1]], ascending; offsets (J+1,)."""

    offsets: IntArray
    indices: Int32Array


class BlockLists(NamedTuple):
    """Live blocks in both directions. `kv_*`: rows are query blocks and hold key blocks (forward);
    `q_*`: rows are key blocks and hold query blocks (backward)."""

    block_size: int
    num_blocks: int
    kv_partial: Rows
    kv_full: Rows
    q_partial: Rows
    q_full: Rows


def block_lists(subtree_end: npt.NDArray[np.int32], *, block_size: int = 128) -> BlockLists:
    """The lists of a pack: subtree_end (T,) int32, T a multiple of `block_size`. O(T + L)."""
    if len(subtree_end) == 0 or len(subtree_end) % block_size != 0:
        raise ValueError(
            f"block lists need a multiple of {block_size} tokens, got {len(subtree_end)}"
        )
    per_block = subtree_end.reshape(-1, block_size)
    num_blocks = len(per_block)
    own = np.arange(num_blocks, dtype=np.int64)
    smallest = per_block.min(axis=1).astype(np.int64)
    largest = per_block.max(axis=1).astype(np.int64)
    full_stop = np.maximum(smallest // block_size, own + 1)
    live_stop = np.maximum(-(-largest // block_size), full_stop)
    q_full = _ranges(own + 1, full_stop)
    # Row j of the partial list is j itself, then full_stop .. live_stop - 1.
    lengths = 1 + live_stop - full_stop
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    indices = np.where(
        within == 0, np.repeat(own, lengths), np.repeat(full_stop - 1, lengths) + within
    )
    q_partial = Rows(offsets, indices.astype(np.int32))
    return BlockLists(
        block_size,
        num_blocks,
        kv_partial=_transpose(q_partial, num_blocks),
        kv_full=_transpose(q_full, num_blocks),
        q_partial=q_partial,
        q_full=q_full,
    )


def padded_rows(rows: Rows, width: int) -> tuple[Int32Array, Int32Array]:
    """Counts (J,) int32 and a matrix (J, width) int32 of row indices, the rest 0."""
    counts = np.diff(rows.offsets)
    matrix = np.zeros((len(counts), width), dtype=np.int32)
    row = np.repeat(np.arange(len(counts)), counts)
    matrix[row, np.arange(len(rows.indices)) - np.repeat(rows.offsets[:-1], counts)] = rows.indices
    return counts.astype(np.int32), matrix


def longest_row(rows: Rows) -> int:
    """The largest number of indices in a row."""
    return int(np.diff(rows.offsets).max())


def _ranges(start: IntArray, stop: IntArray) -> Rows:
    """Row i holds start[i] .. stop[i] - 1."""
    lengths = stop - start
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    indices = np.arange(offsets[-1]) + np.repeat(start - offsets[:-1], lengths)
    return Rows(offsets, indices.astype(np.int32))


def _transpose(rows: Rows, num_blocks: int) -> Rows:
    """The same entries with row and index exchanged; indices stay ascending (stable sort)."""
    row = np.repeat(np.arange(num_blocks, dtype=np.int32), np.diff(rows.offsets))
    order = np.argsort(
        rows.indices.astype(np.uint16 if num_blocks < 2**16 else np.int32), kind="stable"
    )
    counts = np.bincount(rows.indices, minlength=num_blocks)
    return Rows(np.concatenate([[0], np.cumsum(counts)]), row[order])
