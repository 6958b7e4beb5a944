"""Packed random trees and forests equal their flat paths: logits, loss, gradients, one step."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from hypothesis import given, settings

from tests.verification.random_samples import KINDS, NUM_PATHS, in_dtype, sample, samples
from tests.verification.steps import Bound, assert_equal_steps, flat_step, tree_step, trees_of
from tests.verification.tiny_models import FAMILIES, TinyVLA, with_float64_norms
from vla_nav.losses import Normalisation

# Float64 everywhere: only the order of sums differs. AdamW's first step moves a gradient of noise,
# 1e-17, by up to lr / eps = 1e5 times as much.
EXACT = Bound(logits=1e-12, loss=1e-12, gradients=1e-12, parameters=1e-10)
# Stock norms and rotary angles are float32 (6e-8) whatever the weights: sums in another order flip
# some of these roundings. Near-zero gradients turn that noise into parts of AdamW's step (1e-3).
STOCK = Bound(logits=1e-6, loss=1e-6, gradients=1e-6, parameters=1e-5)
FLOAT32 = Bound(logits=1e-5, loss=1e-5, gradients=1e-5, parameters=1e-4)


@cache
def model_of(family: str, kind: str) -> TinyVLA:
    """A model that nobody changes: two layers, four heads on two."""
    model = TinyVLA(family)
    if kind == "exact":
        return with_float64_norms(model)
    return model.float() if kind == "float32" else model


@pytest.mark.parametrize("normalisation", Normalisation.__args__)
@given(samples(max_trees=3))
@settings(max_examples=9, deadline=None, derandomize=True)
def test_forests_are_exact_with_float64_norms(normalisation, forest):
    model = model_of("qwen3", "exact")
    assert_equal_steps(
        tree_step(model, forest, normalisation), flat_step(model, forest, normalisation), EXACT
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("depth", range(7))
def test_every_kind_and_depth_is_exact(kind, depth):
    forest = [sample(kind, depth, seed=depth)]
    model = model_of("qwen3", "exact")
    ours = tree_step(model, forest, "path_mean", attention=("sdpa", "reference")[depth % 2])
    assert_equal_steps(ours, flat_step(model, forest, "path_mean"), EXACT)


@given(samples(is_signed=True))
@settings(max_examples=8, deadline=None, derandomize=True)
def test_paths_that_push_against_each_other_are_exact(forest):
    # Coefficients of both signs: a shared token's weight may vanish though its paths teach it.
    model = model_of("mistral", "exact")
    assert_equal_steps(
        tree_step(model, forest, "step_sum"),
        flat_step(model, forest, "step_sum"),
        EXACT,
        is_signed=True,
    )


@pytest.mark.parametrize("family", FAMILIES)
@given(samples())
@settings(max_examples=6, deadline=None, derandomize=True)
def test_forests_through_unmodified_backbones(family, forest):
    model = model_of(family, "stock")
    assert_equal_steps(
        tree_step(model, forest, "path_mean"), flat_step(model, forest, "path_mean"), STOCK
    )


@given(samples())
@settings(max_examples=8, deadline=None, derandomize=True)
def test_forests_in_float32(forest):
    model, forest = model_of("qwen3", "float32"), in_dtype(forest, torch.float32)
    assert_equal_steps(
        tree_step(model, forest, "path_mean"), flat_step(model, forest, "path_mean"), FLOAT32
    )


def test_the_kinds_are_what_their_names_say():
    trees = {
        (kind, depth): [trees_of([sample(kind, depth, seed)])[0] for seed in range(8)]
        for kind in KINDS
        for depth in range(7)
    }
    for (kind, depth), made in trees.items():
        assert all(0 < tree.num_paths <= NUM_PATHS for tree in made)
        assert all(len(tree.target_index) for tree in made)
        if kind == "one path":
            assert all(tree.num_paths == 1 for tree in made)
        if kind in ("bushy", "unary", "single tokens", "one path"):
            assert all((tree.node_parent == -1).sum() == 1 for tree in made)
            assert all(int(tree.position_ids.max()) >= depth for tree in made)
    deep = [tree for depth in range(3, 7) for tree in trees["single tokens", depth]]
    assert any((tree.node_start[1:] - tree.node_start[:-1] == 1).sum() > 3 for tree in deep)
    assert any((tree.node_parent == -1).sum() > 1 for tree in trees["no history", 0])
    chains = [tree for depth in range(3, 7) for tree in trees["unary", depth]]
    assert any(tree.num_nodes > 3 for tree in chains)
    assert any(len(set(tree.path_node.tolist())) < tree.num_paths for tree in chains)  # equal paths
    assert any(len(set(tree.node_parent.tolist())) < tree.num_nodes for tree in deep)  # branches
