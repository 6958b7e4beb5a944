"""Trees of sampled actions: log-probabilities in the merge key, and the sums of advantages."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from tests.tree.random_paths import random_paths, seeds
from tests.tree.sampled_paths import expected_sums, sampled_paths, sampled_tokens
from vla_nav.tree import Path, PrefixTree, Segment, concatenate, flatten, pack, text_segment

EXAMPLES = settings(max_examples=60, deadline=None, derandomize=True)


def prefixes_of(tree: PrefixTree) -> list[tuple]:
    """Each token's path from the root, read off pre-order and depth alone."""
    segment = Segment(
        tree.token_ids, tree.frame_index, tree.patch_index, False, log_probs=tree.log_probs
    )
    chain: list = []
    found = []
    for token, depth in zip(sampled_tokens(Path((segment,))), tree.position_ids, strict=True):
        del chain[depth:]
        chain.append(token)
        found.append(tuple(chain))
    return found


@given(seeds())
@EXAMPLES
def test_tokens_merge_only_with_equal_log_probability(seed):
    paths = sampled_paths(seed)
    expected = {
        tuple(tokens[: i + 1]) for tokens in map(sampled_tokens, paths) for i in range(len(tokens))
    }
    for merging in ("token", "atomic"):
        tree = PrefixTree.from_paths(paths, frame_merging=merging)
        found = prefixes_of(tree)
        assert set(found) == expected
        if merging == "token":
            assert len(found) == len(expected)


@given(seeds())
@EXAMPLES
def test_positive_negative_and_plain_sums_are_those_of_the_flat_paths(seed):
    paths = sampled_paths(seed)
    tree = PrefixTree.from_paths(paths)
    assert tree.policy is not None
    prefixes = prefixes_of(tree)
    columns = (tree.target_index, tree.loss_weights, tree.policy.positive, tree.policy.negative)
    found = {prefixes[i]: (w, p, n) for i, w, p, n in zip(*columns, strict=True)}
    assert found == expected_sums(paths)  # multiples of 1/8: exact in any order
    counts = [int(path.tokens().is_supervised.sum()) for path in paths]
    flat = sum(n * p.coefficient * p.advantage for n, p in zip(counts, paths, strict=True))
    assert tree.policy.positive.sum() + tree.policy.negative.sum() == flat
    plain = sum(n * p.coefficient for n, p in zip(counts, paths, strict=True))
    assert tree.loss_weights.sum() == plain
    for i, log_prob in zip(tree.target_index, tree.policy.log_probs, strict=True):
        assert prefixes[i][-1][2] == log_prob


@given(seeds())
@EXAMPLES
def test_flatten_restores_advantages_and_log_probabilities(seed):
    paths = sampled_paths(seed)
    tree = PrefixTree.from_paths(paths)
    flat = flatten(tree)
    for path, source in zip(flat, tree.path_source, strict=True):
        assert sampled_tokens(path) == sampled_tokens(paths[source])
        assert path.advantage == paths[source].advantage
        assert path.coefficient == paths[source].coefficient
    again = PrefixTree.from_paths(flat)
    np.testing.assert_array_equal(again.log_probs, tree.log_probs)
    for one, two in zip(again.policy, tree.policy, strict=True):
        np.testing.assert_array_equal(one, two)


@given(seeds())
@EXAMPLES
def test_order_of_sampled_paths_does_not_matter(seed):
    paths = sampled_paths(seed)
    one = PrefixTree.from_paths(paths)
    random.Random(seed).shuffle(paths)
    two = PrefixTree.from_paths(paths)
    for name in ("token_ids", "subtree_end", "path_node", "path_advantage", "log_probs"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
    for left, right in zip(one.policy, two.policy, strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize(
    ("first", "second", "num_tokens"),
    [
        (-0.5, -0.5, 2),
        (-0.5, np.nextafter(np.float32(-0.5), np.float32(0)), 3),  # one bit apart
        (0.0, -0.0, 2),
        (None, 0.0, 3),  # absent is not 0
        (np.nan, None, 2),  # NaN is how absent is written
        (-1e-45, 0.0, 3),  # the smallest float32
    ],
)
def test_equal_means_equal_to_the_bit(first, second, num_tokens):
    root = text_segment([1])
    paths = [
        Path((root, text_segment([7], log_probs=None if value is None else [value])))
        for value in (first, second)
    ]
    assert PrefixTree.from_paths(paths).num_tokens == num_tokens


def test_largest_ids_and_smallest_probabilities_keep_their_keys_apart():
    ids = [0, 1, 2**31 - 1]
    values = [0.0, -1e-45, -1.0, float(np.finfo(np.float32).min)]
    keys = {
        text_segment([i], log_probs=None if v is None else [v]).keys[0]
        for i in ids
        for v in [None, *values]
    }
    assert len(keys) == len(ids) * (len(values) + 1)
    assert min(keys) >= 0  # below 0 are the vision tokens


def test_without_advantages_there_are_no_policy_terms():
    tree = PrefixTree.from_paths(random_paths(5))
    assert tree.policy is None
    assert tree.path_advantage is None
    assert tree.log_probs is None
    assert pack([tree]).policy is None


def test_reinforce_needs_no_log_probabilities():
    path = Path((text_segment([1]), text_segment([2], is_supervised=True)), 0.5, advantage=-2.0)
    tree = PrefixTree.from_paths([path])
    assert tree.policy.positive.tolist() == [0.0]
    assert tree.policy.negative.tolist() == [-1.0]
    assert np.isnan(tree.policy.log_probs).all()


@given(seeds())
@settings(max_examples=20, deadline=None, derandomize=True)
def test_pack_carries_the_trees_policy_terms(seed):
    trees = [PrefixTree.from_paths(sampled_paths(seed + i), num_frames=3) for i in range(3)]
    packed = pack(trees, pad_to=sum(tree.num_tokens for tree in trees) + 2).to("cpu")
    for number, column in enumerate(packed.policy):
        assert column.dtype == torch.float32
        expected = np.concatenate([tree.policy[number] for tree in trees])
        np.testing.assert_array_equal(column.numpy(), expected)
    assert packed.prefix_end.dtype == torch.int32
    assert packed.prefix_end.shape == (0,)


def test_concatenated_segments_keep_log_probabilities():
    joined = concatenate(text_segment([1, 2]), text_segment([3], log_probs=[-0.5]))
    assert np.isnan(joined.log_probs[:2]).all()
    assert joined.log_probs[2] == -0.5
    assert concatenate(text_segment([1]), text_segment([2])).log_probs is None


def test_impossible_samples_are_refused():
    vision = np.zeros(1, np.int32)
    with pytest.raises(ValueError, match=r"at most 0, got 0\.5"):
        text_segment([1], log_probs=[0.5])
    with pytest.raises(ValueError, match="finite"):
        text_segment([1], log_probs=[-np.inf])
    with pytest.raises(ValueError, match=r"float32 \(2,\)"):
        text_segment([1, 2], log_probs=[-1.0])
    with pytest.raises(ValueError, match="vision token was not sampled"):
        Segment(np.zeros(1, np.int64), vision, vision, log_probs=np.zeros(1, np.float32))
    with pytest.raises(ValueError, match=r"below 2\^31"):
        text_segment([2**31], log_probs=[-1.0])
    with pytest.raises(ValueError, match="advantage must be finite"):
        Path((text_segment([1]),), advantage=float("inf"))
    sampled = sampled_paths(1)
    with pytest.raises(ValueError, match=f"1 of {len(sampled) + 1} have|none has"):
        PrefixTree.from_paths([*sampled, replace(sampled[0], advantage=None)])
    with pytest.raises(ValueError, match="1 of 2 have"):
        pack([PrefixTree.from_paths(sampled), PrefixTree.from_paths(random_paths(1))])
