"""The loss against plain loops over the flat paths, and its exactness over any split of a batch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings

from tests.tree.random_paths import random_paths, seeds
from vla_nav.errors import UserError
from vla_nav.losses import loss_denominator, total_denominator, weighted_cross_entropy
from vla_nav.tree import Path, PrefixTree, flatten, pack, path_token_index, text_segment

NORMALISATIONS = ("path_mean", "token_mean", "step_sum")


def trees_of(seed, num_trees):
    paths = [random_paths(seed + i, vocabulary=5) for i in range(num_trees)]
    positive = [[Path(p.segments, abs(p.coefficient), p.trunk) for p in group] for group in paths]
    return [PrefixTree.from_paths(group, num_frames=3) for group in positive]


def flat_loss(trees, table, normalisation):
    """Path by path; the prediction at a token depends on the token's own path prefix only."""
    total = torch.zeros((), dtype=torch.float64)
    taught = 0.0
    for number, tree in enumerate(trees):
        for k, path in enumerate(flatten(tree)):
            index = path_token_index(tree, k)
            tokens = path.tokens()
            for i in range(1, len(index)):
                if tokens.is_supervised[i]:
                    log_p = table[number][index[i - 1]].log_softmax(-1)[tokens.token_ids[i]]
                    share = path.coefficient / (
                        tree.num_paths if normalisation == "path_mean" else 1
                    )
                    total = total - share * log_p
                    taught += path.coefficient
    if normalisation == "path_mean":
        return total / len(trees)
    return total / taught if normalisation == "token_mean" and taught else total


@given(seeds())
@settings(max_examples=40, deadline=None, derandomize=True)
def test_loss_is_that_of_the_flat_paths(seed):
    trees = trees_of(seed, seed % 3 + 1)
    generator = torch.Generator().manual_seed(seed)
    table = [
        torch.randn(tree.num_tokens, 7, dtype=torch.float64, generator=generator) for tree in trees
    ]
    packed = pack(trees, pad_to=sum(tree.num_tokens for tree in trees) + 3)
    hidden = torch.cat([*table, torch.full((3, 7), float("nan"), dtype=torch.float64)])
    logits = hidden[packed.predictor_index]
    for normalisation in NORMALISATIONS:
        loss = weighted_cross_entropy(logits, packed, normalisation=normalisation)
        expected = flat_loss(trees, table, normalisation)
        # Weights are float32 multiples of 1/2, hence exact; the rest is summation order.
        assert float(loss.value) == pytest.approx(float(expected), rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
def test_any_split_of_a_batch_gives_the_same_loss_and_gradient(normalisation):
    trees = trees_of(9, 4)
    generator = torch.Generator().manual_seed(0)
    num_targets = sum(len(tree.target_index) for tree in trees)
    logits = torch.randn(num_targets, 7, dtype=torch.float64, generator=generator)
    logits.requires_grad_()
    whole = weighted_cross_entropy(logits, pack(trees), normalisation=normalisation).value
    expected = torch.autograd.grad(whole, logits)[0]
    for split in ([1, 3], [2, 1, 1], [1, 1, 1, 1]):
        packs, start = [], 0
        for size in split:
            packs.append(pack(trees[start : start + size]))
            start += size
        parts = torch.stack([loss_denominator(p, normalisation) for p in packs])
        total = total_denominator(parts, normalisation)
        value, first = torch.zeros((), dtype=torch.float64), 0
        for packed in packs:
            last = first + len(packed.target_ids)
            value = (
                value
                + weighted_cross_entropy(
                    logits[first:last], packed, normalisation=normalisation, denominator=total
                ).value
            )
            first = last
        assert value.item() == pytest.approx(whole.item(), rel=1e-12)
        gradient = torch.autograd.grad(value, logits)[0]
        assert (gradient - expected).norm() / expected.norm() < 1e-12


def test_averaging_means_of_unequal_counts_is_a_mistake_that_shows():
    trees = [t for t in trees_of(9, 6) if len(t.target_index)]
    logits = [torch.randn(len(t.target_index), 7, dtype=torch.float64) for t in trees]
    whole = weighted_cross_entropy(torch.cat(logits), pack(trees), normalisation="token_mean")
    wrong = sum(
        weighted_cross_entropy(part, pack([tree]), normalisation="token_mean").value
        for part, tree in zip(logits, trees, strict=True)
    ) / len(trees)
    assert abs(float(wrong - whole.value)) > 1e-3


def test_no_target_gives_zero_with_a_connected_graph():
    packed = pack([PrefixTree.from_paths([Path((text_segment([1, 2]),))])])
    hidden = torch.randn(0, 7, requires_grad=True)
    for normalisation in NORMALISATIONS:
        loss = weighted_cross_entropy(hidden * 2, packed, normalisation=normalisation)
        loss.value.backward()
        assert loss.value.item() == 0.0
        assert hidden.grad is not None


def test_head_over_a_part_of_the_vocabulary():
    tree = PrefixTree.from_paths(
        [Path((text_segment([1]), text_segment([100, 102], is_supervised=True)))]
    )
    packed = pack([tree])
    logits = torch.randn(2, 3, dtype=torch.float64)
    loss = weighted_cross_entropy(logits, packed, first_id=100)
    expected = -logits.log_softmax(-1)[[0, 1], [0, 2]].sum()
    assert float(loss.value) == pytest.approx(float(expected))
    with pytest.raises(ValueError, match=r"target ids 100 .. 102 are outside .* 101 .. 103"):
        weighted_cross_entropy(logits, packed, first_id=101)
    with pytest.raises(ValueError, match=r"logits must be \(2, V\)"):
        weighted_cross_entropy(logits[:1], packed, first_id=100)


def test_low_precision_logits_are_summed_in_float32():
    tree = PrefixTree.from_paths(
        [Path((text_segment([1]), text_segment([2] * 50, is_supervised=True)))]
    )
    logits = torch.randn(50, 7, generator=torch.Generator().manual_seed(0)).bfloat16()
    loss = weighted_cross_entropy(logits, pack([tree]))
    assert loss.value.dtype == torch.float32
    precise = weighted_cross_entropy(logits.double(), pack([tree]))
    assert float(loss.value) == pytest.approx(float(precise.value), rel=1e-6)


def test_unknown_normalisation_is_refused():
    packed = pack([PrefixTree.from_paths([Path((text_segment([1, 2]),))])])
    with pytest.raises(UserError, match=r"unknown losses.normalisation 'mean'"):
        weighted_cross_entropy(torch.zeros(0, 3), packed, normalisation="mean")
