"""Packs: isolation of trees, padding, frame tables, targets."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from tests.tree.random_paths import random_paths, seeds
from vla_nav.tree import Path, PrefixTree, frame_segment, pack, text_segment


@given(seeds())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_pack_is_the_trees_side_by_side(seed):
    trees = [
        PrefixTree.from_paths(random_paths(seed + i), num_frames=4 + i) for i in range(seed % 3 + 1)
    ]
    total = sum(tree.num_tokens for tree in trees)
    packed = pack(trees, pad_to=total + seed % 5)
    index = torch.arange(len(packed.token_ids))
    mask = (index[None] <= index[:, None]) & (index[:, None] < packed.subtree_end[None])
    start, target, frame = 0, 0, 0
    for number, tree in enumerate(trees):
        stop = start + tree.num_tokens
        own = torch.arange(tree.num_tokens)
        alone = (own[None] <= own[:, None]) & (own[:, None] < torch.tensor(tree.subtree_end)[None])
        assert (mask[start:stop, start:stop] == alone).all()
        assert not mask[start:stop, :start].any()
        assert not mask[stop:, start:stop].any()
        assert packed.token_ids[start:stop].tolist() == tree.token_ids.tolist()
        assert packed.position_ids[start:stop].tolist() == tree.position_ids.tolist()
        expected = np.where(tree.frame_index >= 0, tree.frame_index + frame, -1)
        assert packed.frame_index[start:stop].tolist() == expected.tolist()
        last = target + len(tree.target_index)
        assert (packed.target_tree[target:last] == number).all()
        assert (packed.target_index[target:last] - start).tolist() == tree.target_index.tolist()
        assert packed.target_ids[target:last].tolist() == tree.token_ids[tree.target_index].tolist()
        predictor = packed.predictor_index[target:last] - start
        assert predictor.tolist() == tree.predictor_index.tolist()
        assert packed.num_paths[number] == tree.num_paths
        start, target, frame = stop, last, frame + tree.num_frames
    assert target == len(packed.target_ids)
    assert packed.num_tokens == start == packed.tree_start[-1]
    assert packed.num_frames == frame == packed.frame_offset[-1]
    padding = torch.arange(start, len(packed.token_ids))
    assert (packed.subtree_end[start:] == padding + 1).all()
    assert (packed.frame_index[start:] == -1).all()


def test_packing_leaves_the_trees_alone():
    tree = PrefixTree.from_paths([Path((text_segment([1]), frame_segment(2, 0, 3)))])
    before = tree.frame_index.copy(), tree.subtree_end.copy()
    pack([tree, tree])
    assert (tree.frame_index == before[0]).all()
    assert (tree.subtree_end == before[1]).all()


def test_dtypes_are_those_of_the_contract():
    packed = pack([PrefixTree.from_paths(random_paths(3))])
    int64 = "token_ids position_ids target_index predictor_index target_ids target_tree num_paths"
    assert {getattr(packed, name).dtype for name in int64.split()} == {torch.int64}
    int32 = "subtree_end frame_index patch_index"
    assert {getattr(packed, name).dtype for name in int32.split()} == {torch.int32}
    assert packed.loss_weights.dtype == torch.float32
    moved = packed.to("cpu")
    assert torch.equal(moved.token_ids, packed.token_ids)
    assert moved.num_tokens == packed.num_tokens


def test_impossible_packs_are_refused():
    tree = PrefixTree.from_paths([Path((text_segment([1, 2, 3]),))])
    with pytest.raises(ValueError, match="at least one tree"):
        pack([])
    with pytest.raises(ValueError, match="pad_to is 2, but the trees have 3 tokens"):
        pack([tree], pad_to=2)
