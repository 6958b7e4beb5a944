"""Counts before training, against the flat paths themselves and the closed forms of the design."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from tests.tree.episodes import token_episode
from tests.tree.random_paths import random_paths, seeds
from vla_nav.tree import (
    FlopModel,
    Layout,
    Path,
    PrefixTree,
    flop_bound,
    paths_of,
    text_segment,
    total_stats,
    tree_stats,
)


@given(seeds())
@settings(max_examples=80, deadline=None, derandomize=True)
def test_flat_counts_are_those_of_the_paths(seed):
    paths = random_paths(seed)
    tree = PrefixTree.from_paths(paths)
    stats = tree_stats(tree)
    lengths = [len(path.tokens().token_ids) for path in paths]
    assert stats.num_flat_tokens == sum(lengths)
    assert stats.num_flat_pairs == sum(n * (n + 1) // 2 for n in lengths)
    assert stats.num_flat_predictors == sum(int(p.tokens().is_supervised.sum()) for p in paths)
    runs = 0
    for path in paths:
        frame = path.tokens().frame_index
        runs += sum(int(f >= 0 and (i == 0 or frame[i - 1] != f)) for i, f in enumerate(frame))
    assert stats.num_flat_frames == runs
    index = range(tree.num_tokens)
    visible = sum(k <= q < tree.subtree_end[k] for k in index for q in index)
    assert stats.num_tree_pairs == visible
    assert 0 <= stats.potential_overlap < 1
    assert stats.token_bound == pytest.approx(1 / (1 - stats.potential_overlap))


def test_chain_of_equal_steps_reaches_the_closed_forms():
    # S steps of n tokens, a path ends after each: (S+1)/2 on tokens and about S/3 on pairs.
    num_steps, n = 60, 50
    segments = tuple(text_segment([s] * n) for s in range(num_steps))
    tree = PrefixTree.from_paths([Path(segments[: s + 1]) for s in range(num_steps)])
    stats = tree_stats(tree)
    assert stats.token_bound == (num_steps + 1) / 2
    assert stats.num_flat_pairs / stats.num_tree_pairs == pytest.approx(num_steps / 3, rel=0.05)


def test_flop_bound_lies_between_the_pair_and_the_token_bound():
    episode = token_episode(40, full=20)
    stats = tree_stats(PrefixTree.from_paths(paths_of(episode, Layout("full", "hidden"))))
    pairs = stats.num_flat_pairs / stats.num_tree_pairs
    bound = flop_bound(stats, FlopModel(10_000, 0, 2, 4, 32))
    assert pairs < bound < stats.token_bound
    only_tokens = flop_bound(stats, FlopModel(10_000, 0, 0, 4, 32))
    assert only_tokens == pytest.approx(stats.token_bound)


def test_stats_add_up_over_trees():
    one, two = (tree_stats(PrefixTree.from_paths(random_paths(seed))) for seed in (1, 2))
    total = total_stats([one, two])
    assert total.num_trees == 2
    assert total.num_flat_tokens == one.num_flat_tokens + two.num_flat_tokens
    with pytest.raises(ValueError, match="no tree"):
        total_stats([])
