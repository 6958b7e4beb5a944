"""Heavy paths: every token once, parents and windows as on the path, few rounds, whole chunks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tree.random_paths import random_paths, seeds
from vla_nav.tree import Path, PrefixTree, pack, partition, text_segment
from vla_nav.tree.heavy_paths import CHUNK, MAX_KERNEL, find_runs, heavy_paths


def chains(packed):
    """For every token its path, root first, by walking the mask: what it sees."""
    end = packed.subtree_end.tolist()
    return [[k for k in range(t + 1) if t < end[k]] for t in range(packed.num_tokens)]


def caterpillar(num_steps: int, num_frame: int = 5, num_leaf: int = 3) -> PrefixTree:
    frames = [text_segment(range(10 * t, 10 * t + num_frame)) for t in range(num_steps)]
    leaf = text_segment(range(900, 900 + num_leaf))
    return PrefixTree.from_paths([Path((*frames[: t + 1], leaf)) for t in range(num_steps)])


def forest(*given_seeds: int) -> list[PrefixTree]:
    return [PrefixTree.from_paths(random_paths(seed)) for seed in given_seeds]


@given(st.lists(seeds(), min_size=1, max_size=3))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_runs_follow_the_paths(given_seeds):
    trees = forest(*given_seeds)
    packed = pack(trees, pad_to=sum(tree.num_tokens for tree in trees) + 7)
    runs, path_of = packed.heavy_paths.runs, chains(packed)
    covered = [t for a, b in zip(runs.start, runs.stop, strict=True) for t in range(a, b)]
    assert covered == list(range(packed.num_tokens)), "no padding, every token once"
    for number, (start, stop) in enumerate(zip(runs.start, runs.stop, strict=True)):
        for token in range(start + 1, stop):
            assert path_of[token][-2] == token - 1
        above = path_of[start][:-1]
        assert runs.parent[number] == (above[-1] if above else -1)
        if above:
            of_parent = np.searchsorted(runs.start, above[-1], side="right") - 1
            assert runs.round[number] == runs.round[of_parent] + 1
        else:
            assert runs.round[number] == 0


@given(seeds())
@settings(max_examples=40, deadline=None, derandomize=True)
def test_windows_hold_the_last_tokens_of_the_path(seed):
    (tree,) = forest(seed)
    packed = pack([tree])
    paths, path_of = packed.heavy_paths, chains(packed)
    for row, window in zip(paths.window_row.tolist(), paths.window.tolist(), strict=True):
        expected = path_of[row][-MAX_KERNEL:]
        assert window == [-1] * (MAX_KERNEL - len(expected)) + expected
    inside = set(range(packed.num_tokens)) - set(paths.window_row.tolist())
    assert all(path_of[t][-MAX_KERNEL:] == list(range(t - MAX_KERNEL + 1, t + 1)) for t in inside)


@given(seeds())
@settings(max_examples=40, deadline=None, derandomize=True)
def test_rounds_grow_with_the_logarithm_of_the_nodes_at_most(seed):
    (tree,) = forest(seed)
    num_rounds = len(pack([tree]).heavy_paths.rounds)
    assert num_rounds <= math.log2(tree.num_nodes) + 1


@pytest.mark.parametrize("num_steps", [2, 3, 44])
def test_a_caterpillar_needs_two_rounds(num_steps):
    trunk, leaves = pack([caterpillar(num_steps, 196, 12)]).heavy_paths.rounds
    assert len(trunk.initial) == 1
    assert len(leaves.initial) == num_steps - 1  # the last frame's leaf goes on with the trunk
    assert leaves.num_active == (num_steps - 1,)


@given(st.lists(seeds(), min_size=1, max_size=2))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_chunks_cover_their_runs_in_order_and_end_at_branch_points(given_seeds):
    """Walk the tables as a recurrence does, with the list of tokens seen as its state."""
    packed = pack(forest(*given_seeds))
    path_of = chains(packed)
    states, found = [[]], {}
    for item in packed.heavy_paths.rounds:
        running = [states[i] for i in item.initial.tolist()]
        ends, chunk = [], 0
        for count in item.num_active:
            for place in range(count):
                start, length = (int(x[chunk]) for x in (item.chunk_start, item.chunk_length))
                assert 1 <= length <= min(item.width, CHUNK)
                for token in range(start, start + length):
                    running[place] = [*running[place], token]
                    found[token] = running[place]
                ends.append(running[place])
                chunk += 1
        assert chunk == len(item.chunk_start)
        states = [ends[i] for i in item.branch.tolist()]
    assert found == dict(enumerate(path_of))


def test_long_runs_are_cut_in_equal_chunks():
    runs = find_runs(np.full(200, 200, dtype=np.int32), np.arange(200))
    (item,) = heavy_paths(runs).rounds
    assert item.chunk_length.tolist() == [50, 50, 50, 50]
    assert item.num_active == (1, 1, 1, 1)


@pytest.mark.parametrize("mode", ["recompute", "keep"])
@given(st.lists(seeds(), min_size=1, max_size=2), st.integers(1, 9))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_partitions_read_the_states_and_rows_of_their_paths(mode, given_seeds, capacity):
    """The same walk over partitions: states and conv rows come from who exports them."""
    trees = forest(*given_seeds)
    packed = pack(trees)
    path_of = chains(packed)
    cut = partition(trees, capacity=capacity, mode=mode, whole=packed)
    shelf_states: dict[int, list] = {}
    shelf_rows: dict[int, list] = {}
    for item in cut.first_pass:
        states, rows = walk(item.part, path_of, shelf_states, shelf_rows)
        for number, size in zip(item.numbers, item.state_sizes, strict=True):
            shelf_states[number], states = states[:size], states[size:]
        for number, size in zip(item.numbers, item.row_sizes, strict=True):
            shelf_rows[number], rows = rows[:size], rows[size:]
        assert not states
        assert not rows
    for part in cut.parts:
        states, rows = walk(part, path_of, shelf_states, shelf_rows)
        if mode == "keep":
            shelf_states[part.number], shelf_rows[part.number] = states, rows
        elif part.number in shelf_states:
            assert (states, rows) == (shelf_states[part.number], shelf_rows[part.number])


def walk(part, path_of, shelf_states, shelf_rows):
    """The exported states and rows of a partition, as tokens seen and tokens."""
    own, paths, carried = part.own.tolist(), part.packed.heavy_paths, part.carried
    states = [[]]
    for run in carried.state_sources:
        states += shelf_states[run.number][run.start : run.stop]
    branches = []
    for item in paths.rounds:
        running = [states[i] for i in item.initial.tolist()]
        ends, chunk = [], 0
        for count in item.num_active:
            for place in range(count):
                start, length = (int(x[chunk]) for x in (item.chunk_start, item.chunk_length))
                for row in range(start, start + length):
                    running[place] = [*running[place], own[row]]
                    assert running[place] == path_of[own[row]]
                ends.append(running[place])
                chunk += 1
        states = [ends[i] for i in item.branch.tolist()]
        branches += states
    before = [
        token
        for run in carried.row_sources
        for token in shelf_rows[run.number][run.start : run.stop]
    ]
    joined = [*before, *own]
    for row, window in zip(paths.window_row.tolist(), paths.window.tolist(), strict=True):
        seen = [joined[i] for i in window if i >= 0]
        assert seen == path_of[own[row]][-MAX_KERNEL:]
    rows = [own[i] for run in carried.row_exports for i in range(run.start, run.stop)]
    return [branches[i] for i in paths.exported.tolist()], rows
