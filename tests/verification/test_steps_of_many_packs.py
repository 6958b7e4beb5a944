"""One pack of N trees and N packs of one tree give the same step; known mistakes do not.

    sum over packs of  d(numerator) / (denominator of all packs of all ranks)
       = the gradient of one pack of everything        1 x N = N x 1, whatever the split

Ranks are lists of packs here (their gradients are summed, as all-reduce does); processes that train
are in tests/training/test_ranks.py.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.verification.random_samples import sample, samples
from tests.verification.steps import flat_step, trees_of
from tests.verification.tiny_models import TinyVLA, packed_forward, with_float64_norms
from vla_nav.losses import (
    Normalisation,
    loss_denominator,
    total_denominator,
    weighted_cross_entropy,
)
from vla_nav.training.packing import PackOrder, epoch_packs
from vla_nav.tree import Path, PrefixTree, pack, text_segment
from vla_nav.verification import Sample

NORMALISATIONS = Normalisation.__args__


@cache
def model() -> TinyVLA:
    return with_float64_norms(TinyVLA(num_layers=1))


def gradients(packs, loss_of):
    """Every parameter's gradient, summed over packs (lists of samples).

    loss_of(packed, logits) -> the pack's loss, and the factor of its gradients.
    """
    named = {name: p for name, p in model().named_parameters() if p.requires_grad}
    sums = {name: torch.zeros_like(value) for name, value in named.items()}
    for group in packs:
        packed = pack(trees_of(group))
        frames = torch.cat([sample.frames for sample in group])
        logits = packed_forward()(model(), packed, frames)
        loss, factor = loss_of(packed, logits)
        found = torch.autograd.grad(loss, list(named.values()), materialize_grads=True)
        for name, grad in zip(named, found, strict=True):
            sums[name] += grad * factor
    return sums


def right(packs, normalisation):
    """The step as the trainer takes it: one denominator for all packs."""
    parts = torch.stack([loss_denominator(pack(trees_of(group)), normalisation) for group in packs])
    total = total_denominator(parts, normalisation)

    def loss(packed, logits):
        found = weighted_cross_entropy(
            logits, packed, normalisation=normalisation, denominator=total
        )
        return found.value, 1.0

    return gradients(packs, loss)


def mean_of_means(packs, normalisation):
    """The mistake: every pack's own mean, then the mean over packs."""

    def loss(packed, logits):
        own = weighted_cross_entropy(logits, packed, normalisation=normalisation)
        return own.value, 1.0 / len(packs)

    return gradients(packs, loss)


def largest_gap(found, expected) -> float:
    """Relative by norm, over all parameters."""
    gap = torch.cat([(found[name] - expected[name]).flatten() for name in expected])
    return float(gap.norm() / torch.cat([value.flatten() for value in expected.values()]).norm())


def split(items, cuts):
    """The items in groups that begin at `cuts`."""
    bounds = [0, *sorted(set(cuts) - {0}), len(items)]
    return [items[a:b] for a, b in pairwise(bounds) if b > a]


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
@given(samples(max_trees=5), st.sets(st.integers(1, 4)))
@settings(max_examples=6, deadline=None, derandomize=True)
def test_any_split_into_packs_gives_the_gradient_of_one_pack(normalisation, forest, cuts):
    packs = split(forest, {cut for cut in cuts if cut < len(forest)})
    whole = flat_step(model(), forest, normalisation).gradients
    assert largest_gap(right([forest], normalisation), whole) < 1e-12
    assert largest_gap(right(packs, normalisation), whole) < 1e-12
    assert largest_gap(right([[one] for one in forest], normalisation), whole) < 1e-12


@pytest.mark.parametrize("normalisation", ["path_mean", "token_mean"])
def test_averaging_means_of_unequal_counts_is_found(normalisation):
    packs = [[sample("bushy", 3, 1), sample("unary", 4, 2)], [sample("one path", 2, 3)]]
    whole = flat_step(model(), [one for group in packs for one in group], normalisation).gradients
    assert largest_gap(right(packs, normalisation), whole) < 1e-12
    assert largest_gap(mean_of_means(packs, normalisation), whole) > 1e-2


@given(samples(max_trees=4))
@settings(max_examples=5, deadline=None, derandomize=True)
def test_ranks_with_their_own_denominators_are_found(forest):
    # The mistake: every rank divides by its own sum of weights, then gradients are averaged.
    assume(len(forest) > 1)
    ranks = [forest[:1], forest[1:]]
    weights = [float(pack(trees_of(rank)).loss_weights.sum()) for rank in ranks]
    assume(max(weights) > 1.5 * min(weights))
    whole = flat_step(model(), forest, "token_mean").gradients
    assert largest_gap(right(ranks, "token_mean"), whole) < 1e-12
    assert largest_gap(mean_of_means(ranks, "token_mean"), whole) > 1e-4


# --- a fused loss ------------------------------------------------------------------------------


class _Fused(torch.autograd.Function):
    """Weighted cross-entropy whose forward is right and whose backward forgets the weights: what
    fused kernels did that compute the gradient in the forward with a mean reduction."""

    @staticmethod
    def forward(ctx, logits, targets, weights):
        log_probs = logits.log_softmax(-1)
        ctx.save_for_backward(log_probs, targets, weights)
        return -(weights * log_probs.gather(1, targets[:, None])[:, 0]).sum()

    @staticmethod
    def backward(ctx, grad):
        log_probs, targets, weights = ctx.saved_tensors
        soft = log_probs.exp()
        soft[torch.arange(len(targets)), targets] -= 1
        return grad * soft * weights.mean(), None, None


def test_a_fused_loss_with_wrong_weight_gradients_is_found():
    forest = [sample("bushy", 4, 5), sample("single tokens", 5, 6)]
    flat = flat_step(model(), forest, "step_sum")
    assert len({path.coefficient for one in forest for path in one.paths}) > 1
    values = []

    def fused(packed, logits):
        values.append(_Fused.apply(logits, packed.target_ids, packed.loss_weights.double()))
        return values[-1], 1.0

    found = gradients([forest], fused)
    assert float(values[0].detach()) == pytest.approx(flat.loss, rel=1e-12)  # the loss looks right
    assert largest_gap(found, flat.gradients) > 1e-2
    assert largest_gap(right([forest], "step_sum"), flat.gradients) < 1e-12


# --- a rank without a tree ---------------------------------------------------------------------


def untaught() -> Sample:
    """A tree that supervises nothing: what a rank computes when it has nothing to learn from."""
    return Sample((Path((text_segment([1, 2, 3]),)),), sample("one path", 0, 0).frames)


@pytest.mark.parametrize("normalisation", ["token_mean", "step_sum"])
def test_a_rank_without_targets_adds_nothing_and_joins_the_exchange(normalisation):
    busy, idle = [sample("bushy", 3, 7)], [untaught()]
    whole = flat_step(model(), busy, normalisation).gradients
    assert largest_gap(right([busy, idle], normalisation), whole) < 1e-12
    # Every parameter that the busy rank trains has a gradient on the idle one too (all zero), so
    # that an exchange of gradients does not wait for it.
    packed = pack(trees_of(idle))
    logits = packed_forward()(model(), packed, idle[0].frames)
    assert logits.shape[0] == 0
    loss = weighted_cross_entropy(logits, packed, normalisation=normalisation)
    assert loss.value.isfinite()
    trained = [p for p in model().parameters() if p.requires_grad]
    found = torch.autograd.grad(loss.value, trained, allow_unused=True)
    assert all(grad is None or not grad.any() for grad in found)
    assert sum(grad is not None for grad in found) == sum(
        bool(value.any()) for value in whole.values()
    )
    # The mistake: the idle rank's mean is 0 / 0.
    alone = loss.numerator / loss_denominator(packed, "token_mean")
    assert not alone.isfinite()


@given(st.lists(st.integers(1, 60), min_size=1, max_size=9), st.sampled_from([1, 2, 4]))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_no_rank_is_ever_without_a_tree(lengths, num_ranks):
    orders = [
        PackOrder(lengths, pack_tokens=60, accumulate=2, rank=rank, num_ranks=num_ranks)
        for rank in range(num_ranks)
    ]
    num_steps = orders[0].steps_of_epochs(2)
    for step in range(num_steps):
        assert all(len(pack) for order in orders for pack in order.step(step))
        assert {len(order.step(step)) for order in orders} == {2}
    # The mistake: deal one epoch's packs out, and a rank runs dry where they do not divide.
    packs = epoch_packs(np.array(lengths), pack_tokens=60, seed=0, epoch=0)
    dealt = {len(packs[rank::num_ranks]) for rank in range(num_ranks)}
    assert (len(dealt) > 1) == (len(packs) % num_ranks > 0)


def test_a_pack_without_a_tree_is_refused():
    with pytest.raises(ValueError, match="at least one tree"):
        pack([])
    with pytest.raises(ValueError, match="at least one path"):
        PrefixTree.from_paths([])
