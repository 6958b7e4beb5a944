"""Losses of logits in chunks are those of all logits at once, and never hold more than a chunk."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import linear

from tests.losses.test_policy_gradient import NORMALISATIONS, OBJECTIVES, trees_of
from vla_nav.losses import Penalties, Predictions, policy_gradient, weighted_cross_entropy
from vla_nav.losses import predictions as module
from vla_nav.tree import pack
from vla_nav.tree.path_targets import path_targets

COLUMNS, WIDTH = 7, 6
EXACT = 1e-12  # float64: the order of sums is all that differs
TREES = trees_of(3, 3)
PACKED = pack(TREES)
NUM_TARGETS = len(PACKED.target_ids)


def leaves(*, split=(3, 4), dtype=torch.float64):
    """Hidden states and the head's parts, as leaves."""
    generator = torch.Generator().manual_seed(0)
    sizes = (NUM_TARGETS, *split)
    return [
        torch.randn(n, WIDTH, dtype=torch.float64, generator=generator).to(dtype).requires_grad_()
        for n in sizes
    ]


def predictions(hidden, weights, rows):
    def project(hidden):
        return torch.cat([linear(hidden, weight) for weight in weights], -1)

    return Predictions(hidden, tuple(weights), project, max_logits=rows * COLUMNS)


def run(loss_of, rows, *, frozen=(), **given):
    """Every field of the loss, and the gradients of 3 times its value; rows None: a tensor."""
    hidden, *weights = inputs = leaves(**given)
    for place in frozen:
        inputs[place].requires_grad_(False)
    logits = predictions(hidden, weights, NUM_TARGETS if rows is None else rows)
    loss = loss_of(logits.dense() if rows is None else logits)
    (3 * loss.value).backward()
    return loss, [x.grad for x in inputs]


def require_equal(found, expected):
    (loss, gradients), (whole, whole_gradients) = found, expected
    for name, value in whole._asdict().items():
        assert (getattr(loss, name) - value).abs().max() <= EXACT * (1 + value.abs().max()), name
    for ours, theirs in zip(gradients, whole_gradients, strict=True):
        assert (ours is None) == (theirs is None)
        if theirs is not None:
            assert (ours - theirs).norm() <= EXACT * (1 + theirs.norm())


@pytest.mark.parametrize("rows", [1, 5, NUM_TARGETS - 1, NUM_TARGETS])
@pytest.mark.parametrize("normalisation", NORMALISATIONS)
def test_cross_entropy_in_chunks_is_that_of_all_logits(normalisation, rows):
    def loss_of(logits):
        return weighted_cross_entropy(logits, PACKED, normalisation=normalisation)

    require_equal(run(loss_of, rows), run(loss_of, None))


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda objective: type(objective).__name__)
def test_policy_gradients_in_chunks_are_those_of_all_logits(objective, normalisation):
    penalties = Penalties(0.3, 0.2, torch.linspace(-3, -0.1, NUM_TARGETS, dtype=torch.float64))

    def loss_of(logits):
        return policy_gradient(
            logits,
            PACKED,
            objective,
            paths=path_targets(TREES),
            penalties=penalties,
            normalisation=normalisation,
        )

    require_equal(run(loss_of, 4), run(loss_of, None))


@pytest.mark.parametrize("frozen", [(0,), (1,), (1, 2), (0, 2)])
def test_what_is_frozen_gets_no_gradient_and_the_rest_does_not_change(frozen):
    require_equal(
        run(lambda logits: weighted_cross_entropy(logits, PACKED), 4, frozen=frozen),
        run(lambda logits: weighted_cross_entropy(logits, PACKED), None, frozen=frozen),
    )


def test_a_head_of_one_part_and_bfloat16_within_its_rounding():
    def loss_of(logits):
        return weighted_cross_entropy(logits, PACKED)

    _, exact = run(loss_of, None, split=(7,))
    _, whole = run(loss_of, None, split=(7,), dtype=torch.bfloat16)
    _, chunked = run(loss_of, 4, split=(7,), dtype=torch.bfloat16)
    for ours, theirs, true in zip(chunked, whole, exact, strict=True):
        assert ours.dtype == torch.bfloat16
        # Both differ from float64 by roundings of 2^-9; chunks add one per chunk, averaged out.
        ours_off, theirs_off = ((x.double() - true).norm() / true.norm() for x in (ours, theirs))
        assert ours_off < 1.5 * theirs_off + 1e-3


def test_under_autocast_weights_are_cast_once_and_gradients_are_float32(monkeypatch):
    seen = []

    def recorded(x, weight):
        seen.append((x.dtype, weight.dtype, weight.data_ptr()))
        return linear(x, weight)

    monkeypatch.setattr(module, "linear", recorded)
    hidden, *weights = leaves(split=(7,), dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        loss = weighted_cross_entropy(predictions(hidden, weights, 4), PACKED)
    loss.value.backward()
    assert len(seen) == -(-NUM_TARGETS // 4)
    assert set(seen) == {(torch.bfloat16, torch.bfloat16, seen[0][2])}
    assert {x.grad.dtype for x in (hidden, *weights)} == {torch.float32}


def test_no_more_than_a_chunk_of_logits_is_alive():
    """Saved tensors and outputs of the whole loss are smaller than the logits."""
    hidden, *weights = leaves()
    sizes, saved = [], []

    def numerator_of(logits, rows):
        sizes.append(logits.numel())
        return logits.square().sum(), (logits[:, 0].detach(),)

    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        numerator, (column,) = module.summed(predictions(hidden, weights, 4), numerator_of)
    assert max(sizes) == 4 * COLUMNS
    assert sum(sizes) == NUM_TARGETS * COLUMNS
    outer = [x for x in saved if x.grad_fn is None and x.shape[-1] == COLUMNS]
    assert all(len(x) <= 4 for x in outer)
    assert len(column) == NUM_TARGETS
    assert not column.requires_grad
    assert numerator.requires_grad


def test_without_gradients_the_values_are_the_same():
    hidden, *weights = leaves()
    with torch.no_grad():
        found = weighted_cross_entropy(predictions(hidden, weights, 4), PACKED)
        logits = predictions(hidden, weights, 4).dense()
        expected = weighted_cross_entropy(logits, PACKED)
    assert not found.value.requires_grad
    assert torch.allclose(found.token_loss, expected.token_loss, rtol=EXACT)
    assert torch.equal(predictions(hidden, weights, 4).argmax(), logits.argmax(-1))


def test_hooks_of_a_parameter_see_one_whole_gradient():
    """What the exchange between ranks waits for."""
    hidden, *weights = leaves()
    seen = []
    for weight in weights:
        weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    weighted_cross_entropy(predictions(hidden, weights, 4), PACKED).value.backward()
    _, (_, *expected) = run(lambda logits: weighted_cross_entropy(logits, PACKED), None)
    assert len(seen) == len(weights)
    by_size = {len(x): x for x in seen}
    for gradient in expected:
        assert (3 * by_size[len(gradient)] - gradient).norm() <= EXACT * gradient.norm()


def test_no_target_gives_zero_with_a_connected_graph():
    empty = torch.zeros(0, WIDTH, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(COLUMNS, WIDTH, dtype=torch.float64).requires_grad_()
    none = predictions(empty, [weight], 4)
    numerator, _ = module.summed(none, lambda logits, rows: (logits.sum(), (logits[:, 0],)))
    numerator.backward()
    assert float(numerator.detach()) == 0
    assert torch.equal(weight.grad, torch.zeros_like(weight))
    assert len(none.argmax()) == 0
