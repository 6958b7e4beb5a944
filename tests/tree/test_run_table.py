"""The table of chunks that kernels walk along: every chunk once, states from the parent token."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tree.random_paths import random_paths, seeds
from vla_nav.tree import PrefixTree, pack
from vla_nav.tree.heavy_paths import CHUNK


@given(st.lists(seeds(), min_size=1, max_size=3))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_runs_of_chunks_follow_the_paths(given_seeds):
    trees = [PrefixTree.from_paths(random_paths(seed)) for seed in given_seeds]
    packed = pack(trees, pad_to=sum(tree.num_tokens for tree in trees) + 5)
    paths, end = packed.heavy_paths, packed.subtree_end.tolist()
    table, runs = paths.table, paths.runs
    bounds, branch = table.bounds.tolist(), table.branch.tolist()
    assert bounds[0] == 0
    assert bounds[-1] == paths.num_tokens
    assert all(0 < b - a <= CHUNK for a, b in pairwise(bounds))
    assert table.pairs.tolist() == [[chunk, 0] for chunk in range(len(branch))]
    after = {number: bounds[chunk + 1] - 1 for chunk, number in enumerate(branch) if number >= 0}
    assert sorted(after) == list(range(table.num_branches))
    seen_chunks, round_of_branch = [], {}
    numbers = [n for n, count in enumerate(table.num_runs) for _ in range(count)]
    for index, (first, count, row) in enumerate(table.runs.tolist()):
        start, stop = bounds[first], bounds[first + count]
        run = runs.start.tolist().index(start)
        assert stop == runs.stop[run]
        assert numbers[index] == runs.round[run]
        parent = next((t for t in range(start - 1, -1, -1) if start < end[t]), -1)
        assert (after[row - 1] if row else -1) == parent
        assert row == 0 or round_of_branch[row - 1] < numbers[index], "known before it is read"
        for chunk in range(first, first + count):
            seen_chunks.append(chunk)
            if branch[chunk] >= 0:
                round_of_branch[branch[chunk]] = numbers[index]
        children = table.children.tolist()
        if row:
            lower, upper = table.first_child.tolist()[row - 1 : row + 1]
            assert index in children[lower:upper]
    assert sorted(seen_chunks) == list(range(len(branch)))
    assert len(table.children) == sum(row > 0 for _, _, row in table.runs.tolist())
