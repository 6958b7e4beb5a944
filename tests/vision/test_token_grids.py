"""Grids of tokens against loops written from the definition."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vla_nav.vision.tokens import as_grid, fold_grid, grid_side, pool_grid


def pool_by_loops(grid: torch.Tensor, side: int) -> torch.Tensor:
    num_frames, height, width, depth = grid.shape
    out = torch.full((num_frames, side, side, depth), math.nan, dtype=grid.dtype)
    for i in range(side):
        for j in range(side):
            rows = slice(i * height // side, math.ceil((i + 1) * height / side))
            columns = slice(j * width // side, math.ceil((j + 1) * width / side))
            out[:, i, j] = grid[:, rows, columns].mean((1, 2))
    return out


@settings(max_examples=40, deadline=None)
@given(
    height=st.integers(1, 13), width=st.integers(1, 13), side=st.integers(1, 7), seed=st.integers(0)
)
def test_pooling_is_the_mean_over_cells(height, width, side, seed):
    generator = torch.Generator().manual_seed(seed % 2**32)
    grid = torch.randn(2, height, width, 3, dtype=torch.float64, generator=generator)
    # float64 sums of at most 169 values in another order
    torch.testing.assert_close(pool_grid(grid, side), pool_by_loops(grid, side), rtol=0, atol=1e-13)


def test_pooling_in_two_stages_equals_one_where_the_cells_nest():
    grid = torch.randn(3, 12, 12, 5, dtype=torch.float64)
    torch.testing.assert_close(pool_grid(pool_grid(grid, 6), 2), pool_grid(grid, 2))


@pytest.mark.parametrize(("height", "width"), [(1, 1), (3, 3), (2, 5), (7, 4)])
def test_every_layout_of_a_feature_map_gives_the_same_grid(height, width):
    depth, num_prefix = 6, 2
    grid = torch.randn(2, height, width, depth)
    tokens = torch.cat([torch.full((2, num_prefix, depth), math.nan), grid.flatten(1, 2)], dim=1)
    layouts = {
        "NCHW": (grid.permute(0, 3, 1, 2).contiguous(), 0, None),
        "NHWC": (grid, 0, None),
        "NLC": (tokens, num_prefix, (height, width)),
    }
    for features, prefix, declared in layouts.values():
        found = as_grid(features, channels=depth, num_prefix=prefix, grid=declared)
        assert torch.equal(found, grid)


def test_a_sequence_without_a_grid_is_refused():
    with pytest.raises(ValueError, match="no grid of tokens"):
        as_grid(torch.zeros(2, 7, 4), channels=4, num_prefix=0, grid=None)
    with pytest.raises(ValueError, match="no grid of tokens"):
        as_grid(torch.zeros(2, 4), channels=4, num_prefix=0, grid=None)


def test_sides_of_square_numbers_only():
    squares = {1: 1, 4: 2, 9: 3, 196: 14}
    for number in range(-3, 200):
        side = grid_side(number)
        assert side == squares.get(number, side)
        assert side is None or side * side == number
    assert [grid_side(n) for n in (-1, 0, 2, 5, 195)] == [None] * 5


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 1), (1, 2), (3, 2)])
def test_folding_moves_neighbouring_cells_into_the_channels(rows, columns):
    grid = torch.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    folded = fold_grid(grid, rows, columns)
    assert folded.shape == (2, 3 // rows, 4 // columns, rows * columns * 5)
    for i in range(3 // rows):
        for j in range(4 // columns):
            cells = [
                grid[:, i * rows + r, j * columns + c] for r in range(rows) for c in range(columns)
            ]
            assert torch.equal(folded[:, i, j], torch.cat(cells, dim=-1))
