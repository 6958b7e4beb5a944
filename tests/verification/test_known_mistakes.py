"""The mistakes of public systems, put in by hand: each must make the oracle fail."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.verification.tiny_models import (
    TinyVLA,
    flat_copy,
    flat_forward,
    layout_sample,
    packed_forward,
    with_float64_norms,
)
from vla_nav.attention import backend, sdpa
from vla_nav.tree import Path, PrefixTree, pack, text_segment
from vla_nav.tree.packing import PackedTree
from vla_nav.verification import Bounds, check_equivalence, check_leakage
from vla_nav.verification.equivalence import trees_of

LOOSE = Bounds(logits=1e-3, loss=1e-3, gradients=1e-3, parameters=1e-6)


def violated(samples, *, forward=None, trees=None):
    """Names of the checks that fail, at bounds a thousand times too wide for rounding."""
    model = with_float64_norms(TinyVLA())
    findings = check_equivalence(
        model,
        samples,
        packed_forward=forward or packed_forward(),
        flat_forward=flat_forward,
        flat_model=flat_copy(model),
        bounds=LOOSE,
        trees=trees,
    )
    return {finding.check for finding in findings if not finding.is_ok}


@pytest.fixture(name="samples")
def two_episodes():
    return [
        layout_sample("full", "hidden", num_steps=4, seed=1),
        layout_sample("pooled", "visible", num_steps=3, seed=2),
    ]


def changed(**mistake):
    """The stock forward over a pack in which `mistake` replaces fields."""
    stock = packed_forward()

    def forward(model, packed: PackedTree, frames):
        fields = {name: function(packed) for name, function in mistake.items()}
        return stock(model, replace(packed, **fields), frames)

    return forward


def test_no_mistake_no_violation(samples):
    assert violated(samples) == set()


def test_shifting_the_sequence_instead_of_gathering_at_predictors(samples):
    # logits[:, :-1] against labels[:, 1:]: the token before in the pack predicts the target.
    wrong = changed(predictor_index=lambda packed: packed.target_index - 1)
    assert {"logits at every target", "loss", "gradients"} <= violated(samples, forward=wrong)


def test_circular_shift_lets_the_last_token_predict_the_root(samples):
    # labels = roll(token_ids, -1): the last token of a tree gets the first one as its target.
    rolled = [
        replace(
            tree,
            target_index=np.append(tree.target_index, 0),
            predictor_index=np.append(tree.predictor_index, tree.num_tokens - 1),
            loss_weights=np.append(tree.loss_weights, 1.0),
        )
        for tree in trees_of(samples)
    ]
    assert {"loss", "gradients", "sum of weights"} <= violated(samples, trees=rolled)
    # A first token that is supervised has no predictor: refused instead of rolled.
    with pytest.raises(ValueError, match="nothing can predict it"):
        PrefixTree.from_paths([Path((text_segment([1, 2], is_supervised=True),))])


def test_first_token_of_a_node_never_supervised(samples):
    trees = trees_of(samples)
    broken = []
    for tree in trees:
        opens = np.isin(tree.target_index, tree.node_start)
        weights = np.where(opens, 0.0, tree.loss_weights)
        broken.append(replace(tree, loss_weights=weights))
    assert {"loss", "gradients", "sum of weights"} <= violated(samples, trees=broken)


def test_positions_by_place_in_the_pack(samples):
    wrong = changed(position_ids=lambda packed: torch.arange(len(packed.token_ids)))
    assert "logits at every target" in violated(samples, forward=wrong)


def test_plain_causal_attention_over_the_pack(samples):
    size = sum(tree.num_tokens for tree in trees_of(samples))
    wrong = changed(subtree_end=lambda packed: torch.full_like(packed.subtree_end, size))
    assert "logits at every target" in violated(samples, forward=wrong)
    findings = check_leakage(TinyVLA(), samples, packed_forward=wrong)
    assert not all(finding.is_ok for finding in findings)


def test_weights_that_count_leaves_instead_of_paths(samples):
    # Equal paths count twice: a sample with one path given twice.
    sample = samples[0]
    doubled = type(sample)((*sample.paths, sample.paths[-1]), sample.frames)
    assert violated([doubled]) == set()
    assert {"loss", "sum of weights"} <= violated([doubled], trees=trees_of([sample]))


def test_transformers_guessing_packed_sequences_from_position_ids(samples):
    # A pack through the stock attention without any mask leaks without a word.
    model = flat_copy(TinyVLA(), "sdpa")

    def stock(model, packed, frames):
        embeddings = model.embed(packed.token_ids, packed.frame_index, packed.patch_index, frames)
        out = model.backbone(
            inputs_embeds=embeddings[None], position_ids=packed.position_ids[None], use_cache=False
        )
        return model.head(out.last_hidden_state[0][packed.predictor_index])

    findings = check_equivalence(
        model, samples, packed_forward=stock, flat_forward=flat_forward, bounds=LOOSE
    )
    assert not findings[0].is_ok
    assert findings[0].relative > 0.01


def test_a_key_hidden_from_its_own_descendants(samples):
    # A block list that forgets a block: emulated by hiding one trunk token from the leaves.
    def hide(packed):
        end = packed.subtree_end.clone()
        end[3] = 5
        return end

    reference = backend("reference")
    forward = packed_forward(
        "reference", plan_of=lambda p: reference.plan(replace(p, subtree_end=hide(p)))
    )
    assert "logits at every target" in violated(samples, forward=forward)


def test_per_token_weights_lost_in_a_fused_loss(samples):
    trees = [
        replace(tree, loss_weights=np.ones_like(tree.loss_weights)) for tree in trees_of(samples)
    ]
    weighted = [
        type(s)(tuple(replace(p, coefficient=2.0) for p in s.paths), s.frames) for s in samples
    ]
    assert {"loss", "gradients", "sum of weights"} <= violated(weighted, trees=trees)


def test_padding_rows_never_turn_into_nan():
    trees = trees_of([layout_sample("full", "hidden", num_steps=3)])
    packed = pack(trees, pad_to=trees[0].num_tokens + 9)
    shape = (1, len(packed.token_ids), 2, 8)
    q, k, v = (torch.randn(shape, requires_grad=True) for _ in range(3))
    out = sdpa.attend(q, k, v, sdpa.plan(packed))
    gradients = torch.autograd.grad(out.square().sum(), (q, k, v))
    assert all(x.isfinite().all() for x in (out, *gradients))
