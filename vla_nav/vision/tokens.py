"""Feature maps as grids of tokens, and grids pooled to smaller ones.

timm's models return (F, C, h, w), (F, h, w, C) or (F, prefix + h*w, C); here all become a grid

    (F, h, w, D)  -- adaptive mean over cells -->  (F, g, g, D)  -- rows first -->  (F, g*g, D)

Axes: F frames, h x w the model's grid, g x g the pooled one, D feature channels.
"""

from __future__ import annotations

import math

from torch import Tensor
from torch.nn import functional as F


def as_grid(
    features: Tensor, *, channels: int, num_prefix: int, grid: tuple[int, int] | None
) -> Tensor:
    """A model's feature tensor as (F, h, w, D).

    features: rank 4 with `channels` at axis 1 or 3, or rank 3 (F, num_prefix + h*w, D).
    grid: the model's (h, w) when it declares one; without one, a token sequence has to be square.
    Raises ValueError for a tensor without a spatial grid.
    """
    if features.ndim == 4:
        is_channels_last = features.shape[3] == channels and features.shape[1] != channels
        return features if is_channels_last else features.permute(0, 2, 3, 1)
    if features.ndim == 3:
        tokens = features[:, num_prefix:]
        num_tokens = tokens.shape[1]
        side = math.isqrt(num_tokens)
        if grid is not None and grid[0] * grid[1] == num_tokens:
            return tokens.unflatten(1, grid)
        if side * side == num_tokens:
            return tokens.unflatten(1, (side, side))
    raise ValueError(f"features of shape {tuple(features.shape)} have no grid of tokens")


def pool_grid(grid: Tensor, side: int) -> Tensor:
    """The adaptive mean of a grid (F, h, w, D) over side x side cells: (F, side, side, D).

    Cell (i, j) is the mean over rows floor(i h / side) .. ceil((i+1) h / side), columns alike; a
    grid smaller than `side` repeats its cells. A grid of that size comes back unchanged.
    """
    if tuple(grid.shape[1:3]) == (side, side):
        return grid
    return F.adaptive_avg_pool2d(grid.permute(0, 3, 1, 2), side).permute(0, 2, 3, 1)


def fold_grid(grid: Tensor, rows: int, columns: int) -> Tensor:
    """Neighbouring cells side by side in the channels: (F, h, w, D) -> (F, h/r, w/c, r*c*D).

    Fewer tokens without averaging anything away; h and w must be multiples of `rows` (r) and
    `columns` (c). rows=3, columns=1 of a 3 x 3 grid keeps the bearing and stacks the heights:

        a b c
        d e f   ->   (a d g) (b e h) (c f i)
        g h i
    """
    num_frames, height, width, channels = grid.shape
    cells = grid.reshape(
        num_frames, height // rows, rows, width // columns, columns, channels
    ).permute(0, 1, 3, 2, 4, 5)
    return cells.reshape(num_frames, height // rows, width // columns, rows * columns * channels)


def grid_side(num_tokens: int) -> int | None:
    """The side g of a g x g grid of `num_tokens`, or None when that is not a square number."""
    side = math.isqrt(num_tokens) if num_tokens > 0 else 0
    return side if side * side == num_tokens and side > 0 else None
