"""The random trees of the property tests are of every kind that those tests claim to cover."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from tests.tree.random_paths import random_paths
from tests.tree.sampled_paths import sampled_paths
from vla_nav.tree import Path, PrefixTree, flatten, pack, text_segment, tree_stats


def kinds_of(tree: PrefixTree) -> set[str]:
    """What is special about a tree."""
    lengths = np.diff(tree.node_start)
    children = Counter(tree.node_parent.tolist())
    inner = [node for node in tree.path_node.tolist() if children[node]]
    depth = {-1: -1}
    for node, parent in enumerate(tree.node_parent.tolist()):
        depth[node] = depth[parent] + 1
    found = {
        "one path": tree.num_paths == 1,
        "forest": children[-1] > 1,
        "one-token node": bool((lengths == 1).any()),
        "unary chain": any(children[node] == 1 for node in range(tree.num_nodes)),
        "path that ends at an inner node": bool(inner),
        "equal paths": len(set(tree.path_node.tolist())) < tree.num_paths,
        "single node": tree.num_nodes == 1,
        "deep": max(depth.values()) >= 6,
        "vision": bool((tree.frame_index >= 0).any()),
        "shared target": len(tree.loss_weights) > 0 and float(tree.loss_weights.max()) > 1,
        "zero weight": bool((tree.loss_weights == 0).any()),
        "nothing supervised": len(tree.target_index) == 0,
    }
    if tree.policy is not None:
        both = (tree.policy.positive != 0) & (tree.policy.negative != 0)
        found["mixed signs at one target"] = bool(both.any())
        found["equal ids split by log-probability"] = any(
            len(set(firsts)) < len(firsts)
            for parent in range(-1, tree.num_nodes)
            if (firsts := _first_text_ids(tree, parent))
        )
    return {name for name, is_true in found.items() if is_true}


def _first_text_ids(tree: PrefixTree, parent: int) -> list[int]:
    starts = tree.node_start[:-1][tree.node_parent == parent]
    return tree.token_ids[starts[tree.frame_index[starts] < 0]].tolist()


def test_random_trees_are_of_every_kind():
    seen = Counter()
    for seed in range(150):
        seen.update(kinds_of(PrefixTree.from_paths(random_paths(seed))))
    assert len(seen) == 12, seen
    assert min(seen.values()) >= 3, seen


def test_sampled_trees_are_of_every_kind():
    seen = Counter()
    for seed in range(150):
        seen.update(kinds_of(PrefixTree.from_paths(sampled_paths(seed))))
    assert len(seen) == 14, seen
    assert min(seen.values()) >= 3, seen


@pytest.mark.parametrize("advantage", [None, -1.0])
def test_the_smallest_tree_is_one_token(advantage):
    tree = PrefixTree.from_paths([Path((text_segment([3]),), advantage=advantage)])
    packed = pack([tree, tree])
    assert tree.num_nodes == tree.num_paths == tree.num_tokens == 1
    assert packed.subtree_end.tolist() == [1, 2]
    assert packed.position_ids.tolist() == [0, 0]
    assert (packed.policy is None) == (advantage is None)
    assert tree_stats(tree).token_bound == 1.0
    assert flatten(tree)[0].advantage == advantage


def test_an_empty_history_leaves_root_and_label():
    empty = text_segment([])
    label = text_segment([7, 8], is_supervised=True)
    tree = PrefixTree.from_paths([Path((empty, text_segment([1]), empty, label, empty))])
    assert tree.num_nodes == 1
    assert tree.predictor_index.tolist() == [0, 1]
    assert tree.target_index.tolist() == [1, 2]
