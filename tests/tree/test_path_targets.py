"""Rows of targets per path, against the flat paths."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings

from tests.tree.episodes import token_episode
from tests.tree.random_paths import random_paths, seeds
from tests.tree.sampled_paths import sampled_paths
from vla_nav.tree import PrefixTree, flatten, pack, path_token_index
from vla_nav.tree.path_targets import path_targets


@given(seeds())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_rows_are_the_supervised_tokens_of_each_path_in_order(seed):
    trees = [
        PrefixTree.from_paths(sampled_paths(seed + i), num_frames=3) for i in range(seed % 3 + 1)
    ]
    packed, rows = pack(trees), path_targets(trees)
    k = 0
    for number, tree in enumerate(trees):
        for j, path in enumerate(flatten(tree)):
            own = rows.targets[rows.offsets[k] : rows.offsets[k + 1]]
            index = path_token_index(tree, j)[path.tokens().is_supervised]
            start = int(packed.tree_start[number])
            assert (packed.target_index[own] - start).tolist() == index.tolist()
            assert (rows.row[rows.offsets[k] : rows.offsets[k + 1]] == k).all()
            assert int(rows.tree[k]) == number
            assert float(rows.coefficient[k]) == path.coefficient
            assert float(rows.advantage[k]) == path.advantage
            k += 1
    assert k == len(rows.tree) == len(rows.offsets) - 1
    # What the tree sums per target is what the rows add up to.
    for values, sums in (
        (rows.coefficient, packed.loss_weights),
        (rows.coefficient * rows.advantage.clamp(min=0), packed.policy.positive),
        (rows.coefficient * rows.advantage.clamp(max=0), packed.policy.negative),
    ):
        total = torch.zeros(len(packed.target_ids)).index_add(0, rows.targets, values[rows.row])
        assert torch.equal(total, sums)


def test_rows_of_a_tree_without_advantages():
    tree = PrefixTree.from_paths(random_paths(11))
    rows = path_targets([tree]).to("cpu")
    assert rows.advantage.isnan().all()
    assert {part.dtype for part in rows[:4]} == {torch.int64}
    assert int(rows.offsets[-1]) == sum(int(p.tokens().is_supervised.sum()) for p in flatten(tree))


def test_no_supervision_gives_empty_rows():
    paths = random_paths(4, first_supervised=10**6)
    rows = path_targets([PrefixTree.from_paths(paths)])
    assert rows.offsets.tolist() == [0] * (len(paths) + 1)
    assert len(rows.targets) == 0


def test_own_supervision_has_one_entry_per_target():
    from vla_nav.tree import Layout, paths_of

    tree = PrefixTree.from_paths(paths_of(token_episode(20), Layout()))
    rows = path_targets([tree])
    assert sorted(rows.targets.tolist()) == np.arange(len(tree.target_index)).tolist()
