"""Policy gradients on trees against plain loops over the flat paths: value and gradient."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings

from tests.tree.random_paths import seeds
from tests.tree.sampled_paths import sampled_paths
from vla_nav.errors import UserError
from vla_nav.losses import (
    Cispo,
    Clip,
    Penalties,
    Reinforce,
    SequenceClip,
    loss_denominator,
    policy_gradient,
    sequence_gradient,
    total_denominator,
)
from vla_nav.tree import (
    Path,
    PrefixTree,
    flatten,
    pack,
    partition,
    path_token_index,
    text_segment,
)
from vla_nav.tree.path_targets import path_targets

NORMALISATIONS = ("path_mean", "token_mean", "step_sum")
OBJECTIVES = (Reinforce(), Clip(0.2, 0.3), Cispo(0.4, 0.25), SequenceClip(0.15, 0.2))
COLUMNS = 7
# Summation order in float64; terms are up to e^4 in size.
RELATIVE = 1e-11


def trees_of(seed, num_trees):
    """Trees with positive coefficients, so that no denominator is 0 or nearly so."""
    groups = [sampled_paths(seed + i) for i in range(num_trees)]
    groups = [[replace(p, coefficient=abs(p.coefficient)) for p in group] for group in groups]
    return [PrefixTree.from_paths(group, num_frames=3) for group in groups]


def table_of(trees, seed):
    """Logits (T, V) that each token predicts with: near the sampled log-probabilities or far."""
    generator = torch.Generator().manual_seed(seed)
    size = sum(tree.num_tokens for tree in trees)
    table = 1.5 * torch.randn(size, COLUMNS, dtype=torch.float64, generator=generator)
    return table.requires_grad_()


def flat_paths(trees, table):
    """Per flat path: c, A, its tree's K, and (log pi, log pi_old, log distribution) per target."""
    start = 0
    for tree in trees:
        for k, path in enumerate(flatten(tree)):
            index = path_token_index(tree, k) + start
            tokens = path.tokens()
            rows = []
            for i in range(1, len(index)):
                if tokens.is_supervised[i]:
                    distribution = table[index[i - 1]].log_softmax(-1)
                    now = distribution[tokens.token_ids[i]]
                    rows.append((now, float(tokens.log_probs[i]), distribution))
            yield path.coefficient, path.advantage, tree.num_paths, rows
        start += tree.num_tokens


def flat_loss(trees, table, objective, normalisation, kl=0.0, entropy=0.0):
    """What one would write for a batch of single sequences."""
    total = torch.zeros((), dtype=torch.float64)
    taught = 0.0
    for c, a, num_paths, rows in flat_paths(trees, table):
        share = c / num_paths if normalisation == "path_mean" else c
        taught += c * len(rows)
        for now, old, distribution in rows:
            ratio = torch.exp(now - old)
            if isinstance(objective, Reinforce):
                total = total - share * a * now
            elif isinstance(objective, Clip):
                low, high = 1 - objective.low, 1 + objective.high
                total = total - share * torch.min(ratio * a, ratio.clamp(low, high) * a)
            elif isinstance(objective, Cispo):
                weight = min(max(ratio.item(), 1 - objective.low), 1 + objective.high)
                total = total - share * a * weight * now
            difference = -1.25 - now  # the reference: log-probability -1.25 everywhere
            total = total + share * kl * (torch.exp(difference) - difference - 1)
            total = total + share * entropy * (distribution.exp() * distribution).sum()
        if isinstance(objective, SequenceClip) and rows:
            low, high = 1 - objective.low, 1 + objective.high
            ratio = torch.exp(sum(now - old for now, old, _ in rows) / len(rows))
            times = len(rows) if normalisation == "token_mean" else 1
            total = total - share * times * torch.min(ratio * a, ratio.clamp(low, high) * a)
    if normalisation == "path_mean":
        return total / len(trees)
    return total / taught if normalisation == "token_mean" and taught else total


def gradient(value, table):
    if not value.requires_grad:
        return torch.zeros_like(table)
    found = torch.autograd.grad(value, table, allow_unused=True)[0]
    return torch.zeros_like(table) if found is None else found


def assert_close(one, two):
    assert (one - two).norm() <= RELATIVE * two.norm() + 1e-13


@given(seeds())
@settings(max_examples=25, deadline=None, derandomize=True)
def test_loss_and_gradient_are_those_of_the_flat_paths(seed):
    trees = trees_of(seed, seed % 2 + 1)
    table = table_of(trees, seed)
    packed, paths = pack(trees), path_targets(trees)
    normalisation = NORMALISATIONS[seed % 3]
    reference = torch.full((len(packed.target_ids),), -1.25, dtype=torch.float64)
    for objective in OBJECTIVES:
        loss = policy_gradient(
            table[packed.predictor_index],
            packed,
            objective,
            paths=paths,
            penalties=Penalties(kl=0.3, entropy=0.7, reference=reference),
            normalisation=normalisation,
        )
        expected = flat_loss(trees, table, objective, normalisation, kl=0.3, entropy=0.7)
        assert_close(loss.value.detach(), expected.detach())
        assert_close(gradient(loss.value, table), gradient(expected, table))


def mixed_signs():
    """Two paths that share all sampled tokens and disagree about them: A = 2 and A = -1."""
    root = text_segment([1])
    shared = text_segment([2, 3], is_supervised=True, log_probs=[-1.0, -2.0])
    one = Path((root, shared, text_segment([4], is_supervised=True, log_probs=[-1.5])))
    return [PrefixTree.from_paths([replace(one, advantage=2.0), replace(one, advantage=-1.0)])]


@pytest.mark.parametrize("ratio", [0.5, 1.0, 1.5])
def test_mixed_signs_clip_each_side_on_its_own(ratio):
    trees = mixed_signs()
    packed = pack(trees)
    logits = torch.zeros(3, COLUMNS, dtype=torch.float64)
    others = torch.arange(COLUMNS)
    for row, (target, old) in enumerate(zip([2, 3, 4], [-1.0, -2.0, -1.5], strict=True)):
        p = ratio * math.exp(old)
        logits[row] = math.log((1 - p) / (COLUMNS - 1))
        logits[row, others == target] = math.log(p)
    logits.requires_grad_()
    loss = policy_gradient(logits, packed, Clip(0.2, 0.2), normalisation="step_sum")
    # Above 1.2 the first path is clipped, below 0.8 the second, and never both.
    each = {0.5: 2 * 0.5 - 0.8, 1.0: 1.0, 1.5: 2 * 1.2 - 1.5}[ratio]
    assert loss.value.item() == pytest.approx(-3 * each, rel=1e-12)
    slope = {0.5: 2.0, 1.0: 1.0, 1.5: -1.0}[ratio]  # d each / d ratio
    log_p = logits.detach().log_softmax(-1)
    for row, target in enumerate([2, 3, 4]):
        expected = slope * ratio * (log_p[row].exp() - torch.eye(COLUMNS)[target])
        found = torch.autograd.grad(loss.value, logits, retain_graph=True)[0][row]
        assert_close(found, expected)
    assert int(loss.num_clipped) == (0 if ratio == 1.0 else 3)


def test_one_sum_of_advantages_is_a_mistake_that_shows():
    trees = mixed_signs()
    packed = pack(trees)
    wrong = packed.policy._replace(
        positive=packed.policy.positive + packed.policy.negative,
        negative=torch.zeros_like(packed.policy.negative),
    )
    table = table_of(trees, 0)
    logits = table[packed.predictor_index]
    expected = flat_loss(trees, table, Clip(0.2, 0.2), "step_sum")
    right = policy_gradient(logits, packed, Clip(0.2, 0.2), normalisation="step_sum")
    mistake = policy_gradient(
        logits, replace(packed, policy=wrong), Clip(0.2, 0.2), normalisation="step_sum"
    )
    assert_close(right.value.detach(), expected.detach())
    assert abs((mistake.value - expected).item()) > 1e-2


@given(seeds())
@settings(max_examples=15, deadline=None, derandomize=True)
def test_any_split_of_a_batch_gives_the_same_gradient(seed):
    trees = trees_of(seed, 3)
    table = table_of(trees, seed)
    whole = pack(trees)
    for normalisation in NORMALISATIONS:
        for objective in (Clip(0.2, 0.3), SequenceClip(0.15, 0.2)):
            at_once = policy_gradient(
                table[whole.predictor_index],
                whole,
                objective,
                paths=path_targets(trees),
                normalisation=normalisation,
            )
            packs = [pack(trees[:1]), pack(trees[1:])]
            parts = torch.stack([loss_denominator(part, normalisation) for part in packs])
            total = total_denominator(parts, normalisation)
            value = torch.zeros((), dtype=torch.float64)
            for start, group, part in zip(
                (0, trees[0].num_tokens), (trees[:1], trees[1:]), packs, strict=True
            ):
                value = (
                    value
                    + policy_gradient(
                        table[part.predictor_index + start],
                        part,
                        objective,
                        paths=path_targets(group),
                        normalisation=normalisation,
                        denominator=total,
                    ).value
                )
            assert_close(gradient(value, table), gradient(at_once.value, table))


@given(seeds())
@settings(max_examples=15, deadline=None, derandomize=True)
def test_sequence_gradient_lets_any_part_of_the_targets_be_trained_alone(seed):
    trees = trees_of(seed, 2)
    table = table_of(trees, seed)
    packed, paths = pack(trees), path_targets(trees)
    objective = SequenceClip(0.15, 0.2)
    for normalisation in NORMALISATIONS:
        logits = table[packed.predictor_index]
        loss = policy_gradient(logits, packed, objective, paths=paths, normalisation=normalisation)
        weights = sequence_gradient(
            loss.log_probs, packed, objective, paths, normalisation=normalisation
        )
        total = torch.zeros_like(table)
        for part in (slice(0, None, 2), slice(1, None, 2)):
            log_p = table[packed.predictor_index[part]].log_softmax(-1)
            chosen = log_p.gather(1, packed.target_ids[part, None])[:, 0]
            total = total + gradient((weights[part] * chosen).sum() / loss.denominator, table)
        assert_close(total, gradient(loss.value, table))


@given(seeds())
@settings(max_examples=15, deadline=None, derandomize=True)
def test_partitions_add_up_to_the_whole_pack(seed):
    trees = trees_of(seed, 2)
    table = table_of(trees, seed)
    packed, paths = pack(trees), path_targets(trees)
    logits = table[packed.predictor_index]
    capacity = max(1, packed.num_tokens // 3)
    parts = partition(trees, capacity=capacity, mode="recompute").parts
    objective = SequenceClip(0.15, 0.2)
    weights = sequence_gradient(
        logits.detach().log_softmax(-1).gather(1, packed.target_ids[:, None])[:, 0],
        packed,
        objective,
        paths,
    )
    total = loss_denominator(packed, "path_mean")
    tokens, sequences = torch.zeros_like(table), torch.zeros_like(table)
    for part in parts:
        own = logits[part.targets]
        loss = policy_gradient(own, part.packed, Clip(0.2, 0.3), denominator=total)
        tokens += torch.autograd.grad(loss.value, table, retain_graph=True)[0]
        log_p = own.log_softmax(-1).gather(1, part.packed.target_ids[:, None])[:, 0]
        value = (weights[part.targets] * log_p).sum() / total
        sequences += torch.autograd.grad(value, table, retain_graph=True)[0]
    at_once = policy_gradient(table[packed.predictor_index], packed, Clip(0.2, 0.3))
    assert_close(tokens, gradient(at_once.value, table))
    whole = policy_gradient(table[packed.predictor_index], packed, objective, paths=paths)
    assert_close(sequences, gradient(whole.value, table))


def test_first_step_on_the_sampling_policy_is_reinforce():
    trees = mixed_signs()
    packed = pack(trees)
    table = table_of(trees, 3)
    logits = table.detach()[packed.predictor_index]
    log_probs = logits.log_softmax(-1).gather(1, packed.target_ids[:, None])[:, 0]
    on_policy = replace(packed, policy=packed.policy._replace(log_probs=log_probs))
    plain = policy_gradient(table[packed.predictor_index], packed, Reinforce())
    expected = gradient(plain.value, table)
    for objective in (Clip(), Cispo()):
        loss = policy_gradient(table[packed.predictor_index], on_policy, objective)
        assert int(loss.num_clipped) == 0
        assert_close(gradient(loss.value, table), expected)


def test_a_target_that_became_certain_or_impossible_stays_finite():
    root = text_segment([0])
    taught = text_segment([1], is_supervised=True, log_probs=[-200.0])
    packed = pack([PrefixTree.from_paths([Path((root, taught), advantage=1.0)])])
    for certain in (500.0, -500.0):
        logits = torch.tensor([[0.0, certain, 0.0]], requires_grad=True)
        for objective in (Clip(), Cispo()):
            loss = policy_gradient(logits, packed, objective)
            loss.value.backward()
            assert loss.value.isfinite()
            assert logits.grad.isfinite().all()


def test_entropy_of_masked_columns_is_zero_with_finite_gradients():
    packed = pack(mixed_signs())
    logits = torch.randn(
        3, COLUMNS, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    logits[:, 5:] = -torch.inf
    logits.requires_grad_()
    loss = policy_gradient(logits, packed, Reinforce(), penalties=Penalties(entropy=1.0))
    loss.value.backward()
    seen = logits.detach()[:, :5].log_softmax(-1)
    assert loss.entropy.item() == pytest.approx(float(-(seen.exp() * seen).sum()))  # w / K = 1
    assert logits.grad.isfinite().all()
    assert (logits.grad[:, 5:] == 0).all()


def test_no_target_gives_zero_with_a_connected_graph():
    tree = PrefixTree.from_paths([Path((text_segment([1, 2]),), advantage=1.0)])
    hidden = torch.randn(0, COLUMNS, requires_grad=True)
    for objective in OBJECTIVES:
        loss = policy_gradient(hidden * 2, pack([tree]), objective, paths=path_targets([tree]))
        loss.value.backward()
        assert loss.value.item() == 0.0
        assert hidden.grad is not None


def test_missing_inputs_are_named():
    packed = pack(mixed_signs())
    logits = torch.zeros(3, COLUMNS)
    with pytest.raises(ValueError, match=r"Path\(advantage="):
        policy_gradient(logits, replace(packed, policy=None), Reinforce())
    absent = packed.policy._replace(log_probs=torch.tensor([-1.0, torch.nan, -1.0]))
    with pytest.raises(ValueError, match="1 of 3 targets have no behaviour log-probability"):
        policy_gradient(logits, replace(packed, policy=absent), Clip())
    policy_gradient(logits, replace(packed, policy=absent), Reinforce())  # needs none
    with pytest.raises(ValueError, match=r"paths=path_targets\(trees\)"):
        policy_gradient(logits, packed, SequenceClip())
    other = path_targets(mixed_signs() * 2)
    with pytest.raises(ValueError, match=r"paths are 4 with 6 targets, the pack has 2 with 3"):
        policy_gradient(logits, packed, SequenceClip(), paths=other)
    with pytest.raises(ValueError, match=r"reference log-probabilities \(3,\), got None"):
        policy_gradient(logits, packed, Reinforce(), penalties=Penalties(kl=0.1))
    with pytest.raises(UserError, match=r"clip low is 1\.5; allowed: 0 \.\. 1"):
        Clip(low=1.5)
    with pytest.raises(UserError, match=r"clip high is -0\.1"):
        Cispo(high=-0.1)
    with pytest.raises(UserError, match=r"unknown losses\.normalisation 'mean'"):
        policy_gradient(logits, packed, Reinforce(), normalisation="mean")
