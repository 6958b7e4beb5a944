"""Packed tree against flat paths: logits, loss, every gradient, one optimiser step, weight sums.

    flat     oracle.py: every path by itself, plain causal attention
    packed   pack(trees) -> one forward -> logits at predictors -> weighted loss
    both start from the same weights (two copies of one model) and are compared by norm

A forward is a callable, so that any model can be checked; `models.py` has those of the VLA.

Axis legend: T packed tokens, M targets, V logits.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vla_nav.losses import Normalisation, weighted_cross_entropy
from vla_nav.tree.flatten import path_supervision, path_token_index
from vla_nav.tree.packing import PackedTree, pack
from vla_nav.tree.prefix_tree import PrefixTree
from vla_nav.verification.oracle import FlatForward, Sample, flat_run, num_supervised
from vla_nav.verification.report import Finding, compare
from vla_nav.verification.updates import MakeOptimizer, adamw, compare_updates, take_step

# (model, packed, frames of all trees) -> logits (M, V) at the pack's predictors.
PackedForward = Callable[[Any, PackedTree, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Largest relative differences by norm. The defaults are `STOCK`, below."""

    logits: float = 1e-6
    loss: float = 1e-7
    gradients: float = 1e-6
    parameters: float = 1e-4


# One AdamW step divides by the gradient's own size, which turns rounding at near-zero gradients
# into parts of the learning rate; a bias that starts at zero is nothing but its step.
#
# float64 everywhere (`float64_norms`): only the order of sums is left.
FLOAT64_NORMS = Bounds(logits=1e-12, loss=1e-12, gradients=1e-12, parameters=1e-9)
# float64 and unmodified transformers backbones: their norms round to float32 (6e-8), and sums in
# another order flip some of these roundings, which leaves about 1e-7 in logits and gradients, and
# up to 8e-6 was seen after a step.
STOCK = Bounds()
# Recurrences of unmodified hybrids compute in float32 as well, and a parameter that is one number
# for a whole head (decay, skip) sums gradients of both signs: 3e-7 in logits, up to 2e-6 there.
# In float64 they are left with 2e-12 where their terms cancel.
FLOAT64_HYBRID = Bounds(logits=1e-12, loss=1e-12, gradients=1e-9, parameters=1e-8)
STOCK_HYBRID = Bounds(logits=5e-6, loss=1e-6, gradients=1e-5)
# float32 weights: the same with roundings of 6e-8 in every operation.
FLOAT32 = Bounds(logits=1e-5, loss=1e-5, gradients=1e-5, parameters=1e-3)


def trees_of(samples: Sequence[Sample]) -> list[PrefixTree]:
    """One prefix tree per sample, over the sample's own frame table."""
    return [
        PrefixTree.from_paths(sample.paths, num_frames=len(sample.frames)) for sample in samples
    ]


def check_equivalence(
    model: nn.Module,
    samples: Sequence[Sample],
    *,
    packed_forward: PackedForward,
    flat_forward: FlatForward,
    flat_model: nn.Module | None = None,
    normalisation: Normalisation = "path_mean",
    first_id: int = 0,
    bounds: Bounds | None = None,
    make_optimizer: MakeOptimizer = adamw,
    trees: Sequence[PrefixTree] | None = None,
) -> list[Finding]:
    """Compare one training step of both sides. The given model is left as it was.

    flat_model: the same weights under other attention (default: a copy of `model`). trees: what
    the packed side computes (default: the samples' own; tests put mistakes in here).
    """
    bounds = bounds or STOCK
    packed_model = copy.deepcopy(model)
    flat_model = copy.deepcopy(model) if flat_model is None else flat_model
    trees = trees_of(samples) if trees is None else trees
    packed = pack(trees)
    frames = torch.cat([sample.frames for sample in samples])

    logits = packed_forward(packed_model, packed, frames)  # (M, V)
    loss = weighted_cross_entropy(logits, packed, normalisation=normalisation, first_id=first_id)
    torch.autograd.backward(loss.value)
    flat = flat_run(
        flat_model, samples, flat_forward, normalisation=normalisation, first_id=first_id
    )
    torch.autograd.backward(flat.loss)

    found, expected = _matched_logits(trees, packed, logits.detach(), flat.logits)
    weight_sum = float(packed.loss_weights.double().sum())
    taught = num_supervised(samples)
    findings = [
        compare("logits at every target", found, expected, bounds.logits),
        compare("loss", loss.value, flat.loss, bounds.loss),
        *compare_updates(
            take_step(packed_model, make_optimizer),
            take_step(flat_model, make_optimizer),
            gradients=bounds.gradients,
            parameters=bounds.parameters,
        ),
        # Sums of float32 weights: exact for the usual small integers, rounded for advantages.
        Finding("sum of weights", abs(weight_sum - taught), None, 1e-6 * max(1.0, abs(taught))),
    ]
    return findings


def _matched_logits(
    trees: Sequence[PrefixTree],
    packed: PackedTree,
    logits: Tensor,
    flat: list[list[Tensor]],
) -> tuple[Tensor, Tensor]:
    """(X, V) packed and flat logits that predict each supervised token of each path."""
    row_of = {int(token): row for row, token in enumerate(packed.target_index)}
    found, expected = [], []
    for number, tree in enumerate(trees):
        offset = int(packed.tree_start[number])
        for k in range(tree.num_paths):
            index = path_token_index(tree, k)
            source = int(tree.path_source[k])
            taught = index[path_supervision(tree, k)].tolist()
            found += [logits[row_of[offset + i]] for i in taught]
            expected.append(flat[number][source])
    return torch.stack(found), torch.cat(expected)
