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

With gateway keys before the own tokens (`mask.py`, everything in joint indices) the same rule holds
for a rectangle: the query blocks are the own ones, and a prefix block has no diagonal.

    prefix of 2 blocks    key block ->
                          0 1 | 2 3 4
    query block 0         F F | P              full while smallest >= the end of the query block;
                1         F P | F P            here the second prefix block's last keys are seen by
                2         P . | P . P          a part of the rows only

Query blocks count from the first own one, key blocks from the first of the prefix.

Query blocks may be smaller than key blocks (`query_lists`): the diagonal is then S / query_block of
them.

Axis legend: T joint tokens (a multiple of the block size S), Jk key blocks, Jq query blocks, L live
blocks.
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
    """Live blocks in both directions. `kv_*`: Jq rows, query blocks, hold key blocks (forward);
    `q_*`: Jk rows, key blocks, hold query blocks (backward)."""

    block_size: int
    num_query_blocks: int
    num_key_blocks: int
    kv_partial: Rows
    kv_full: Rows
    q_partial: Rows
    q_full: Rows


def block_lists(
    end: npt.NDArray[np.int32], *, num_prefix: int = 0, block_size: int = 128
) -> BlockLists:
    """The lists of a pack: end (T,) int32, joint; T and `num_prefix` are multiples of `block_size`,
    and the rows are the tokens behind the prefix. O(T + L)."""
    q_partial, q_full = query_lists(end, num_prefix=num_prefix, block_size=block_size)
    num_queries = (len(end) - num_prefix) // block_size
    return BlockLists(
        block_size,
        num_queries,
        len(end) // block_size,
        kv_partial=transposed(q_partial, num_queries),
        kv_full=transposed(q_full, num_queries),
        q_partial=q_partial,
        q_full=q_full,
    )


def query_lists(
    end: npt.NDArray[np.int32],
    *,
    num_prefix: int = 0,
    block_size: int = 128,
    query_block: int | None = None,
) -> tuple[Rows, Rows]:
    """Partial and full query blocks of every key block: Jk rows of block_size keys, which hold
    blocks of `query_block` queries (a divisor of block_size, by default the same)."""
    num_rows, step = len(end) - num_prefix, query_block or block_size
    if num_rows <= 0 or num_rows % block_size != 0 or num_prefix % block_size != 0:
        raise ValueError(
            f"block lists need a multiple of {block_size} tokens, got {num_rows} "
            f"behind a prefix of {num_prefix}"
        )
    if block_size % step != 0:
        raise ValueError(f"query blocks of {step} do not divide key blocks of {block_size}")
    per_block, first_row = end.reshape(-1, block_size), num_prefix // step
    first, ratio = num_prefix // block_size, block_size // step
    block = np.arange(len(per_block), dtype=np.int64)
    own = block >= first
    smallest = per_block.min(axis=1).astype(np.int64)
    largest = per_block.max(axis=1).astype(np.int64)
    # In query blocks: row j of the full list is start .. full_stop - 1, and the partial list has
    # the diagonal (`ratio` blocks, own keys only), then full_stop .. live_stop - 1.
    start = np.where(own, (block - first + 1) * ratio, 0)
    full_stop = np.maximum(smallest // step - first_row, start)
    live_stop = np.maximum(-(-largest // step) - first_row, full_stop)
    q_full = _ranges(start, full_stop)
    diagonal = own * ratio
    lengths = diagonal + live_stop - full_stop
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    indices = np.arange(offsets[-1]) + np.repeat(full_stop - diagonal - offsets[:-1], lengths)
    places = offsets[first:-1, None] + np.arange(ratio)  # the diagonal comes first
    indices[places] = np.arange(num_rows // step).reshape(-1, ratio)
    return Rows(offsets, indices.astype(np.int32)), q_full


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


def transposed(rows: Rows, num_indices: int) -> Rows:
    """The same entries with row and index exchanged; indices stay ascending (stable sort)."""
    lengths = np.diff(rows.offsets)
    row = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    order = np.argsort(
        rows.indices.astype(np.uint16 if num_indices < 2**16 else np.int32), kind="stable"
    )
    counts = np.bincount(rows.indices, minlength=num_indices)
    return Rows(np.concatenate([[0], np.cumsum(counts)]), row[order])


def repeated(rows: Rows, times: int) -> Rows:
    """Every row `times` behind one another."""
    lengths = np.repeat(np.diff(rows.offsets), times)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    starts = np.repeat(rows.offsets[:-1], times)
    places = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
    return Rows(offsets, rows.indices[places])


def _ranges(start: IntArray, stop: IntArray) -> Rows:
    """Row i holds start[i] .. stop[i] - 1."""
    lengths = stop - start
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    indices = np.arange(offsets[-1]) + np.repeat(start - offsets[:-1], lengths)
    return Rows(offsets, indices.astype(np.int32))
