"""Balancing changes who computes a tree, never which trees a step takes; costs come out equal."""

from __future__ import annotations

from itertools import chain, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from vla_nav.training.balance import balanced_packs, imbalance, level, shared_out
from vla_nav.training.cost_model import CostModel, PackCosts, TreeCounts, passes
from vla_nav.training.packing import PackOrder
from vla_nav.training.settings import PartitionSettings

MODEL = CostModel(per_token=1.0, per_pair=1e-3, per_frame=5.0)


def counts(lengths: np.ndarray) -> TreeCounts:
    """Chains of these lengths with a frame every ten tokens."""
    lengths = np.asarray(lengths, dtype=np.float64)
    return TreeCounts(lengths, lengths * (lengths + 1) / 2, lengths / 16, lengths // 10)


def order(
    lengths: np.ndarray,
    accumulate: int,
    num_ranks: int,
    *,
    is_balanced: bool,
    pack_tokens: int = 2000,
) -> PackOrder:
    return PackOrder(
        lengths,
        pack_tokens=pack_tokens,
        accumulate=accumulate,
        seed=7,
        num_ranks=num_ranks,
        costs=PackCosts(MODEL, counts(lengths)) if is_balanced else None,
    )


def loads(made: PackOrder, costs: PackCosts, num_steps: int) -> np.ndarray:
    """(S, R) predicted costs of ranks."""
    steps = [made.ranks(step) for step in range(num_steps)]
    return np.array([[costs.of(packs).sum() for packs in ranks] for ranks in steps])


@hypothesis_settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 97), min_size=2, max_size=40),
    num_packs=st.integers(1, 9),
    seed=st.integers(0, 9),
)
def test_balanced_packs_hold_the_same_trees_within_the_budget_and_cost_no_more(
    lengths: list[int], num_packs: int, seed: int
) -> None:
    taken = np.random.default_rng(seed).integers(0, len(lengths), max(num_packs, 12))
    packs = tuple(tuple(map(int, part)) for part in np.array_split(taken, num_packs))
    budget = max(sum(lengths[k] for k in pack) for pack in packs)
    costs = PackCosts(MODEL, counts(np.array(lengths)), PartitionSettings(20))
    found = balanced_packs(packs, costs, pack_tokens=budget)
    assert sorted(chain(*found)) == sorted(taken.tolist())
    assert len(found) == num_packs
    assert all(pack and sum(lengths[k] for k in pack) <= budget for pack in found)
    assert costs.of(found).max() <= costs.of(packs).max()
    assert found == balanced_packs(packs, costs, pack_tokens=budget)


def test_small_steps_are_divided_as_well_as_can_be() -> None:
    # Two packs of eight trees: the best division by trying all 128 of them.
    lengths = np.array([97, 61, 60, 44, 31, 30, 12, 5])
    costs = PackCosts(CostModel(per_token=1.0), counts(lengths))
    found = costs.of(balanced_packs(((0, 1, 2, 3), (4, 5, 6, 7)), costs, pack_tokens=400)).max()
    sides = np.arange(128)[:, None] >> np.arange(8) & 1
    one = sides @ costs.trees
    assert found == np.maximum(one, costs.trees.sum() - one).min()


def test_a_full_step_stays_as_it_is_where_nothing_else_fits() -> None:
    lengths = np.array([60, 40, 90, 10])
    costs = PackCosts(MODEL, counts(lengths))
    found = balanced_packs(((0, 1), (2, 3)), costs, pack_tokens=100)
    assert sorted(map(sorted, found)) == [[0, 1], [2, 3]]


@pytest.mark.parametrize("is_balanced", [True, False])
def test_the_packs_of_a_step_do_not_depend_on_how_it_is_divided(is_balanced: bool) -> None:
    lengths = np.random.default_rng(3).integers(50, 1500, 130)
    orders = [
        order(lengths, accumulate, 4 // accumulate, is_balanced=is_balanced)
        for accumulate in (4, 2, 1)
    ]
    for step in range(30):
        divided = [made.ranks(step) for made in orders]
        assert [len(ranks) for ranks in divided] == [1, 2, 4]
        packs = [sorted(chain(*ranks)) for ranks in divided]
        assert packs[0] == packs[1] == packs[2]


def test_balancing_keeps_the_trees_of_every_step() -> None:
    lengths = np.random.default_rng(4).integers(50, 1500, 97)
    naive = order(lengths, 2, 2, is_balanced=False, pack_tokens=1940)  # as full as it fills them
    balanced = order(lengths, 2, 2, is_balanced=True)
    assert naive.steps_of_epochs(3) == balanced.steps_of_epochs(3)
    differ = 0
    for step in range(naive.steps_of_epochs(2)):
        one, two = (list(chain(*chain(*made.ranks(step)))) for made in (naive, balanced))
        assert sorted(one) == sorted(two)
        assert naive.epoch_of(step) == balanced.epoch_of(step)
        differ += naive.ranks(step) != balanced.ranks(step)
    assert differ > 5


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_ranks_have_the_same_to_do(num_ranks: int) -> None:
    # A step takes as long as its costliest rank: within 1 % of the mean, where packs as filled are
    # 2 to 9 % above it.
    lengths = np.random.default_rng(5).lognormal(5.5, 0.6, 3000).clip(40, 1600).astype(int)
    costs = PackCosts(MODEL, counts(lengths))
    found = {
        is_balanced: imbalance(
            loads(order(lengths, 1, num_ranks, is_balanced=is_balanced), costs, 30)
        )
        for is_balanced in (True, False)
    }
    assert 1.0 <= found[True] < 1.01
    assert found[False] > 1.02


def test_packs_go_to_ranks_evenly_the_costliest_first() -> None:
    packs = tuple((k,) for k in range(6))
    costs = np.array([9, 2, 5, 4, 7, 3])
    shared = shared_out(packs, costs, 2)
    assert sorted(chain(*shared)) == sorted(packs)
    for rank in shared:
        own = [costs[k] for (k,) in rank]
        assert own == sorted(own, reverse=True)
    best = min(abs(30 - 2 * costs[list(some)].sum()) for some in permutations(range(6), 3))
    sums = [sum(costs[k] for (k,) in rank) for rank in shared]
    assert [len(rank) for rank in shared] == [3, 3]
    assert abs(sums[0] - sums[1]) == best


def test_level_never_empties_a_group() -> None:
    costs, sizes = np.array([5, 0]), np.array([5, 1])
    made = level([[0], [1]], costs, sizes, capacity=10, cost_of=lambda cost, _: cost)
    assert sorted(map(len, made)) == [1, 1]


def test_a_packs_cost_is_the_sum_of_its_terms() -> None:
    model = CostModel(2.0, 0.5, 3.0, 7.0, per_pack=100.0, per_partition=40.0,
                      per_recomputed_token=0.25)  # fmt: skip
    made = TreeCounts(*(np.array(x, dtype=float) for x in ([30, 20], [90, 50], [4, 2], [3, 1])))
    packs = [(0,), (1,), (0, 1), (0, 0)]
    trees = [60 + 45 + 12 + 21, 40 + 25 + 6 + 7]
    # Of 25 tokens a partition: 30 tokens are two, of which 5 tokens are computed again.
    expected = [
        trees[0] + 100 + 2 * 40 + 0.25 * 5,
        trees[1] + 100,
        sum(trees) + 100 + 2 * 40 + 0.25 * 25,
        2 * trees[0] + 100 + 3 * 40 + 0.25 * 35,
    ]
    costs = PackCosts(model, made, PartitionSettings(25))
    assert costs.of(packs) * costs.unit == pytest.approx(expected, rel=1e-7)
    kept = PackCosts(model, made, PartitionSettings(25, "keep"))
    assert kept.of(packs[:1]) * kept.unit == pytest.approx([expected[0] - 0.25 * 5], rel=1e-7)
    assert [int(x) for x in passes(np.array([25, 26]), PartitionSettings(25))[0]] == [0, 2]
