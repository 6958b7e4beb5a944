"""The mask as a picture of bounded size, and its blocks; nothing T x T is ever made.

A key k is seen by the queries k .. subtree_end[k] - 1, so the visible pairs of a key in the query
rows [a, b) are  clip(b - k, 0, n) - clip(a - k, 0, n)  with n = subtree_end[k] - k:

    picture (R x R)          key cell ->          each cell holds the visible share of its pairs
      query cell   1.0  .   .   .
          |        1.0 1.0  .   .
          v        1.0 0.5  1   .
                   1.0  .   .   1

Axis legend: T tokens, R cells of the picture, J blocks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes

from vla_nav.attention.blocks import block_lists
from vla_nav.tree.types import Int32Array, IntArray

FULL, PARTIAL, DEAD = "#7fcdbb", "#fdae61", "#f4f5f7"
_CELLS = 640  # the largest picture
_KERNEL_BLOCK = 128
_BLOCKS = 256  # more would be thinner than a hair

Picture = npt.NDArray[np.float64]


class Blocks(NamedTuple):
    """kind (J, J) int8: 0 dead, 1 partial, 2 full, rows are queries; live_density: visible share of
    the pairs in live blocks."""

    size: int
    kind: npt.NDArray[np.int8]
    live_density: float

    @property
    def num_full(self) -> int:
        """Blocks in which every query sees every key."""
        return int((self.kind == 2).sum())

    @property
    def num_partial(self) -> int:
        """Blocks in which the mask has to be evaluated."""
        return int((self.kind == 1).sum())

    @property
    def num_dead(self) -> int:
        """Blocks that are skipped."""
        return int((self.kind == 0).sum())


def mask_density(subtree_end: Int32Array, *, max_cells: int = _CELLS) -> tuple[Picture, IntArray]:
    """(R, R) visible share of every cell, rows are queries; and the cell edges (R + 1,)."""
    num_tokens = len(subtree_end)
    num_cells = min(num_tokens, max_cells)
    edges = np.linspace(0, num_tokens, num_cells + 1).round().astype(np.int64)
    density = np.empty((num_cells, num_cells))
    for column in range(num_cells):
        keys = np.arange(edges[column], edges[column + 1])
        seen_by = subtree_end[keys] - keys  # (n,) queries that see each key
        covered = np.clip(edges[:, None] - keys, 0, seen_by)  # (R + 1, n)
        density[:, column] = np.diff(covered.sum(axis=1))
    sizes = np.diff(edges)
    return density / np.outer(sizes, sizes), edges


def mask_blocks(subtree_end: Int32Array, *, block_size: int | None = None) -> Blocks:
    """The blocks of a pack, padded to whole ones as for a kernel.

    block_size: None takes the kernels' 128, smaller for a pack of a few blocks (so that there is
    something to see) and a multiple of it for a very long one.
    """
    num_tokens = len(subtree_end)
    if block_size is None:
        block_size = _KERNEL_BLOCK
        while block_size > 4 and num_tokens < 12 * block_size:
            block_size //= 2
        block_size *= -(-num_tokens // (block_size * _BLOCKS))
    num_blocks = -(-num_tokens // block_size)
    padded = np.arange(1, num_blocks * block_size + 1, dtype=np.int32)
    padded[:num_tokens] = subtree_end
    lists = block_lists(padded, block_size=block_size)
    kind = np.zeros((num_blocks, num_blocks), dtype=np.int8)
    for value, rows in ((1, lists.kv_partial), (2, lists.kv_full)):
        query = np.repeat(np.arange(num_blocks), np.diff(rows.offsets))
        kind[query, rows.indices] = value
    pairs = int((padded - np.arange(len(padded))).sum())
    return Blocks(block_size, kind, pairs / (int((kind > 0).sum()) * block_size**2))


def paint_mask(axes: Axes, density: Picture, edges: IntArray, colours: Picture) -> None:
    """The mask in the colours of its keys. colours (T, 3) RGB of every token."""
    sums = np.add.reduceat(colours, edges[:-1], axis=0)
    keys = sums / np.diff(edges)[:, None]  # (R, 3)
    shown = 1 - density[..., None] * (1 - keys[None])
    _show(axes, shown, int(edges[-1]), colours)


def paint_blocks(
    axes: Axes, density: Picture, edges: IntArray, blocks: Blocks, colours: Picture
) -> None:
    """Full, partial and dead blocks, the mask as a shadow on them."""
    palette = np.array([[int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)] for c in _PALETTE])
    cell = np.minimum(edges[:-1] // blocks.size, len(blocks.kind) - 1)  # (R,) block of a cell
    ground = palette[blocks.kind[np.ix_(cell, cell)]]
    _show(axes, ground * (1 - 0.3 * density[..., None]), int(edges[-1]), colours)
    lines = np.arange(0, int(edges[-1]), blocks.size)
    if len(lines) <= 64:
        axes.hlines(lines, 0, edges[-1], colors="white", linewidths=0.5)
        axes.vlines(lines, 0, edges[-1], colors="white", linewidths=0.5)


_PALETTE = (DEAD, PARTIAL, FULL)


def _show(axes: Axes, picture: Picture, num_tokens: int, colours: Picture) -> None:
    """A square picture with a strip of token colours along both axes."""
    strip = num_tokens * 0.025
    box = (0, num_tokens, num_tokens, 0)
    axes.imshow(picture, extent=box, interpolation="nearest", aspect="equal")
    kinds = {"interpolation": "nearest", "aspect": "auto", "clip_on": False}
    axes.imshow(colours[None], extent=(0, num_tokens, -0.4 * strip, -1.4 * strip), **kinds)
    axes.imshow(colours[:, None], extent=(-1.4 * strip, -0.4 * strip, num_tokens, 0), **kinds)
    axes.set_xlim(-1.5 * strip, num_tokens)
    axes.set_ylim(num_tokens, -1.5 * strip)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_xlabel("key k (in pack order)", fontsize=8)
    axes.set_ylabel("query q (in pack order)", fontsize=8)
    for side in ("top", "right", "bottom", "left"):
        axes.spines[side].set_visible(False)
