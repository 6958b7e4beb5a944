"""Partitions: every token once, every ancestor visible, cuts as cheap as an exhaustive search."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tree.random_paths import random_paths, seeds
from vla_nav.errors import UserError
from vla_nav.tree import PrefixTree, pack
from vla_nav.tree.cuts import cheapest_cuts, cut_points
from vla_nav.tree.partition import partition
from vla_nav.tree.types import Path, text_segment

MODES = ("recompute", "keep")


def forest(seed, num_trees):
    return [PrefixTree.from_paths(random_paths(seed + k), num_frames=3) for k in range(num_trees)]


def ancestors_of(whole):
    """Pack index -> set of the pack indices that it sees, by the definition."""
    end = whole.subtree_end.tolist()
    return [{k for k in range(q + 1) if q < end[k]} for q in range(whole.num_tokens)]


def gateway_of(cut, part):
    """The gateway's pack indices, from what earlier partitions export."""
    tokens = []
    for run in part.sources:
        source = cut.parts[run.number]
        rows = [row for export in source.exports for row in range(export.start, export.stop)]
        tokens += source.own[rows[run.start : run.stop]].tolist()
    return tokens


def seen_by(cut, part, row):
    """Pack indices that own row `row` sees through the partition's own mask."""
    prefix_end, end = part.packed.prefix_end.tolist(), part.packed.subtree_end.tolist()
    prefix, own = gateway_of(cut, part), part.own.tolist()
    assert len(prefix) == part.num_prefix
    through_gateway = {prefix[p] for p in range(len(prefix)) if row < prefix_end[p]}
    return through_gateway | {own[k] for k in range(row + 1) if row < end[k]}


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=60, deadline=None)
@given(seed=seeds(), num_trees=st.integers(1, 3), capacity=st.integers(1, 40))
def test_every_token_is_in_one_partition_and_sees_exactly_its_ancestors(
    mode, seed, num_trees, capacity
):
    trees = forest(seed, num_trees)
    whole, cut = pack(trees), partition(trees, capacity=capacity, mode=mode)
    assert sorted(np.concatenate([part.own for part in cut.parts])) == list(range(whole.num_tokens))
    assert all(len(part.own) <= capacity for part in cut.parts)
    expected = ancestors_of(whole)
    for part in (*cut.parts, *(item.part for item in cut.first_pass)):
        for row, token in enumerate(part.own.tolist()):
            assert seen_by(cut, part, row) == expected[token]
            assert part.packed.token_ids[row] == whole.token_ids[token]
            assert part.packed.position_ids[row] == whole.position_ids[token]


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=40, deadline=None)
@given(seed=seeds(), num_trees=st.integers(1, 3), capacity=st.integers(1, 40))
def test_every_target_is_with_its_predictor_once(mode, seed, num_trees, capacity):
    trees = forest(seed, num_trees)
    whole, cut = pack(trees), partition(trees, capacity=capacity, mode=mode)
    taken = np.concatenate([part.targets for part in cut.parts])
    assert sorted(taken) == list(range(len(whole.target_ids)))
    for part in cut.parts:
        packed = part.packed
        assert (part.own[packed.predictor_index] == whole.predictor_index[part.targets]).all()
        assert (packed.target_ids == whole.target_ids[part.targets]).all()
        assert (packed.loss_weights == whole.loss_weights[part.targets]).all()


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=40, deadline=None)
@given(seed=seeds(), num_trees=st.integers(1, 3), capacity=st.integers(1, 40))
def test_gateways_are_read_from_earlier_partitions_in_a_good_order(mode, seed, num_trees, capacity):
    cut = partition(forest(seed, num_trees), capacity=capacity, mode=mode)
    for part in cut.parts:
        assert all(source.number < part.number for source in part.sources)
        if part.num_prefix:
            assert part.parent == part.sources[-1].number
    if mode == "keep":  # depth-first: what is open when a partition starts are its ancestors
        open_parts = []
        for part in cut.parts:
            while open_parts and open_parts[-1] != part.parent:
                open_parts.pop()
            assert {source.number for source in part.sources} <= set(open_parts)
            open_parts.append(part.number)
    else:
        again = sorted(token for item in cut.first_pass for token in item.part.own.tolist())
        read = {token for part in cut.parts for token in gateway_of(cut, part)}
        assert again == sorted(read)


@settings(max_examples=60, deadline=None)
@given(
    gaps=st.lists(st.integers(1, 5), min_size=1, max_size=9),
    costs=st.data(),
    capacity=st.integers(5, 12),
)
def test_cheapest_cuts_equal_an_exhaustive_search(gaps, costs, capacity):
    starts = np.cumsum([0, *gaps])
    stop, starts = int(starts[-1]), starts[:-1]
    cost = np.array([0, *(costs.draw(st.integers(0, 9)) for _ in starts[1:])])
    found = cheapest_cuts(starts, stop, capacity, cost=cost)

    def price(chosen):
        bounds = [*chosen, stop]
        if any(b - a > capacity for a, b in pairwise(bounds)):
            return None
        return len(chosen), sum(cost[starts.tolist().index(c)] for c in chosen)

    all_choices = (
        (0, *inner)
        for size in range(len(starts))
        for inner in combinations(starts[1:].tolist(), size)
    )
    best = min(p for p in map(price, all_choices) if p is not None)
    assert price(found) == best


def test_a_caterpillar_is_cut_into_runs_and_a_pooled_trunk_gives_groups_of_leaves():
    def path(step, *, pooled):
        frames = [text_segment([100 + t] * 3) for t in range(step + 1)]
        leaf = text_segment([500 + step] * (9 if pooled else 1))
        return Path((text_segment([1]), *frames, leaf, text_segment([7], is_supervised=True)))

    caterpillar = PrefixTree.from_paths([path(t, pooled=False) for t in range(12)])
    cut = partition([caterpillar], capacity=-(-caterpillar.num_tokens // 4))
    assert len(cut.parts) == 4
    assert cut.chain_tokens() <= -(-caterpillar.num_tokens // 4)

    pooled = PrefixTree.from_paths([path(t, pooled=True) for t in range(12)])
    kept = partition([pooled], capacity=52, mode="keep")
    trunk = kept.parts[0]
    assert trunk.own.tolist() == list(range(47))  # root, 12 frames and the last leaf in one run
    assert {part.parent for part in kept.parts[1:]} == {0}
    assert kept.recomputed_tokens == 0
    assert kept.chain_tokens() == 47 + 5 * 10  # of 157: the trunk and one group of five leaves


def test_long_nodes_offer_cut_points_inside():
    chain = PrefixTree.from_paths([Path((text_segment(range(10)),))])
    assert cut_points([chain, chain], stride=4).tolist() == [0, 4, 8, 10, 14, 18]


def test_bad_arguments_are_named():
    tree = PrefixTree.from_paths([Path((text_segment([1, 2]),))])
    with pytest.raises(UserError, match=r"training\.partition\.mode.*keep"):
        partition([tree], capacity=4, mode="kept")
    for capacity in (0, float("nan"), 1.5, 2**31):
        with pytest.raises(ValueError, match="capacity"):
            partition([tree], capacity=capacity)
