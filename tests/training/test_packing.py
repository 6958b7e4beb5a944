"""Packs hold every episode once per epoch, keep the budget, and depend on the seed alone."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from vla_nav.errors import UserError
from vla_nav.training.packing import PackOrder, epoch_packs, require_fitting, sequential_packs

lengths_of = st.lists(st.integers(1, 97), min_size=1, max_size=130)


@hypothesis_settings(max_examples=40, deadline=None)
@given(lengths=lengths_of, seed=st.integers(0, 5), epoch=st.integers(0, 3))
def test_epoch_takes_every_episode_once_within_the_budget(
    lengths: list[int], seed: int, epoch: int
) -> None:
    packs = epoch_packs(np.array(lengths), pack_tokens=97, seed=seed, epoch=epoch)
    assert sorted(chain(*packs)) == list(range(len(lengths)))
    assert all(0 < sum(lengths[k] for k in pack) <= 97 for pack in packs)
    assert packs == epoch_packs(np.array(lengths), pack_tokens=97, seed=seed, epoch=epoch)


def test_epochs_and_seeds_differ() -> None:
    lengths = np.arange(1, 64)
    packs = [
        epoch_packs(lengths, pack_tokens=130, seed=seed, epoch=epoch)
        for seed, epoch in ((0, 0), (0, 1), (1, 0))
    ]
    assert packs[0] != packs[1]
    assert packs[0] != packs[2]


def test_packs_are_well_filled() -> None:
    lengths = np.random.default_rng(0).integers(150, 260, 1000)
    packs = epoch_packs(lengths, pack_tokens=4096, seed=0, epoch=0)
    assert lengths.sum() / (len(packs) * 4096) > 0.95


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_steps_walk_through_the_epochs_without_gap_or_repeat(
    num_ranks: int, accumulate: int
) -> None:
    lengths = np.random.default_rng(1).integers(1, 40, 63)
    orders = [
        PackOrder(
            lengths, pack_tokens=97, accumulate=accumulate, seed=3, rank=rank, num_ranks=num_ranks
        )
        for rank in range(num_ranks)
    ]
    steps = orders[0].steps_of_epochs(3)
    taken = [pack for step in range(steps) for order in orders for pack in order.step(step)]
    whole = [
        pack
        for epoch in range(4)
        for pack in epoch_packs(lengths, pack_tokens=97, seed=3, epoch=epoch)
    ]
    assert taken == whole[: len(taken)]
    three = sum(len(epoch_packs(lengths, pack_tokens=97, seed=3, epoch=e)) for e in range(3))
    assert three <= len(taken) < three + num_ranks * accumulate


def test_a_late_step_needs_no_earlier_one() -> None:
    lengths = np.random.default_rng(2).integers(1, 40, 63)
    fresh = PackOrder(lengths, pack_tokens=97, seed=0)
    walked = PackOrder(lengths, pack_tokens=97, seed=0)
    for step in range(80):
        walked.step(step)
    assert fresh.step(80) == walked.step(80)
    assert fresh.step(1) == PackOrder(lengths, pack_tokens=97, seed=0).step(1)


def test_too_long_episode_is_named() -> None:
    with pytest.raises(UserError, match=r"pack_tokens=50: episode toy/b has 51 tokens \(1 of 3"):
        require_fitting(np.array([50, 51, 3]), 50, ["toy/a", "toy/b", "toy/c"])
    with pytest.raises(UserError, match="episode number 1"):
        sequential_packs([50, 51], pack_tokens=50)


def test_sequential_packs_keep_the_order() -> None:
    assert sequential_packs([30, 30, 30, 60, 1], pack_tokens=63) == [(0, 1), (2,), (3, 4)]
    assert sequential_packs([], pack_tokens=63) == []
