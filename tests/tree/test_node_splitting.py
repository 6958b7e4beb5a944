"""Splitting long nodes changes the list of nodes and nothing else."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tree.random_paths import seeds, token_list
from tests.tree.sampled_paths import sampled_paths
from vla_nav.tree import Path, PrefixTree, flatten, path_token_index, text_segment
from vla_nav.tree.node_splitting import split_long_nodes

NODE_FIELDS = {"node_start", "node_parent", "path_node"}


@given(seeds(), st.integers(1, 4))
@settings(max_examples=80, deadline=None, derandomize=True)
def test_pieces_are_chains_no_longer_than_asked_and_nothing_else_changes(seed, max_tokens):
    tree = PrefixTree.from_paths(sampled_paths(seed))
    split = split_long_nodes(tree, max_tokens)
    for item in fields(tree):
        if item.name == "policy":
            for one, two in zip(split.policy, tree.policy, strict=True):
                np.testing.assert_array_equal(one, two)
        elif item.name not in NODE_FIELDS:
            np.testing.assert_array_equal(getattr(split, item.name), getattr(tree, item.name))
    lengths = np.diff(split.node_start)
    assert lengths.min() >= 1
    assert lengths.max() <= max_tokens
    # The fewest pieces that the longest node allows, and every old boundary is still one.
    expected = sum(-(-length // max_tokens) for length in np.diff(tree.node_start).tolist())
    assert split.num_nodes == expected
    assert set(tree.node_start.tolist()) <= set(split.node_start.tolist())
    for number in range(tree.num_paths):  # walks node_parent from path_node to the root
        assert path_token_index(split, number).tolist() == path_token_index(tree, number).tolist()
    for one, two in zip(flatten(split), flatten(tree), strict=True):
        assert token_list(one) == token_list(two)


@given(seeds(), st.integers(1, 4))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_parents_end_where_their_children_branch_off(seed, max_tokens):
    split = split_long_nodes(PrefixTree.from_paths(sampled_paths(seed)), max_tokens)
    for node, parent in enumerate(split.node_parent.tolist()):
        first = split.node_start[node]
        if parent < 0:
            assert split.position_ids[first] == 0
            continue
        last = split.node_start[parent + 1] - 1
        assert split.position_ids[first] == split.position_ids[last] + 1
        assert last < first < split.subtree_end[last]


def test_drawn_example():
    r, x, y = text_segment([0, 1, 2, 3, 4]), text_segment([5]), text_segment([6])
    tree = PrefixTree.from_paths([Path((r, x)), Path((r, y))])
    split = split_long_nodes(tree, 2)
    assert split.node_start.tolist() == [0, 1, 3, 5, 6, 7]
    assert split.node_parent.tolist() == [-1, 0, 1, 2, 2]
    assert split.path_node.tolist() == [3, 4]


def test_short_nodes_stay_as_they_are():
    tree = PrefixTree.from_paths(sampled_paths(2))
    longest = int(np.diff(tree.node_start).max())
    assert split_long_nodes(tree, longest) is tree
    with pytest.raises(ValueError, match="at least 1, got 0"):
        split_long_nodes(tree, 0)
