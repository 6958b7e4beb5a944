"""Weighted cross-entropy at predictors.

l_m = -log softmax(logits[m])[target m], w_m the sum of the coefficients of the paths that supervise
target m (without 1/K), K_g the number of paths of tree g:

    path_mean    sum_g (sum_{m in g} w_m l_m) / K_g   /   number of trees
    token_mean   sum_m w_m l_m                        /   sum_m w_m
    step_sum     sum_m w_m l_m                        /   1

Numerators add up over packs; so do the denominators of the means. So a global batch is exact: add
up `loss_denominator` over all ranks and all packs of an optimiser step first (`total_denominator`),
then give the total to every pack's loss and *sum* the gradients. Averaging the means of packs with
unequal counts would be wrong.

Axis legend: M targets of a pack, V logits, G trees.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import torch
from torch.nn.functional import cross_entropy

from vla_nav.errors import unknown_name
from vla_nav.tree.packing import PackedTree

Normalisation = Literal["path_mean", "token_mean", "step_sum"]


class Loss(NamedTuple):
    """value = numerator / denominator (the given one, else this pack's own); all scalars.

    token_loss: (M,) unweighted l_m, detached, for metrics.
    """

    value: torch.Tensor
    numerator: torch.Tensor
    denominator: torch.Tensor
    token_loss: torch.Tensor


def weighted_cross_entropy(
    logits: torch.Tensor,
    packed: PackedTree,
    *,
    normalisation: Normalisation = "path_mean",
    denominator: torch.Tensor | float | None = None,
    first_id: int = 0,
) -> Loss:
    """The loss of a pack from logits (M, V) at its predictors, in target order.

    first_id: the vocabulary id of logit column 0 (a head over action tokens only).
    denominator: the global one; default this pack's. Computed in float32, or float64 where the
    logits are. Raises `ValueError` for a target outside the logits' columns (on the CPU; a CUDA
    device asserts) and a shape that is not (M, V).
    """
    num_targets = len(packed.target_ids)
    if logits.dim() != 2 or len(logits) != num_targets:
        raise ValueError(f"logits must be ({num_targets}, V), got {tuple(logits.shape)}")
    targets = packed.target_ids - first_id
    if targets.device.type == "cpu" and num_targets > 0:
        low, high = int(targets.min()), int(targets.max())
        if low < 0 or high >= logits.shape[1]:
            raise ValueError(
                f"target ids {low + first_id} .. {high + first_id} are outside the logits' "
                f"{first_id} .. {first_id + logits.shape[1] - 1}"
            )
    precise = logits if logits.dtype == torch.float64 else logits.float()
    token_loss = cross_entropy(precise, targets, reduction="none")  # (M,)
    weights = _weights(packed, normalisation).to(token_loss.dtype)
    # With no target the sum over no logits keeps the graph connected (zero gradients everywhere).
    numerator = (weights * token_loss).sum() if num_targets else precise.sum()
    if denominator is None:
        total = loss_denominator(packed, normalisation)
    else:
        total = torch.as_tensor(denominator, dtype=torch.float64, device=numerator.device)
    total = total.to(numerator.dtype)
    is_empty = total == 0  # nothing supervised anywhere: the loss is 0, not NaN
    value = numerator / torch.where(is_empty, torch.ones_like(total), total)
    return Loss(value, numerator, total, token_loss.detach())


def loss_denominator(packed: PackedTree, normalisation: Normalisation) -> torch.Tensor:
    """This pack's part of the denominator: a float64 scalar on the pack's device."""
    _check(normalisation)
    device = packed.num_paths.device
    if normalisation == "path_mean":
        return torch.tensor(float(packed.num_trees), dtype=torch.float64, device=device)
    if normalisation == "token_mean":
        return packed.loss_weights.double().sum()
    return torch.ones((), dtype=torch.float64, device=device)


def total_denominator(parts: torch.Tensor, normalisation: Normalisation) -> torch.Tensor:
    """The global denominator from every pack's part (P,), of all ranks and accumulation steps."""
    _check(normalisation)
    return torch.ones_like(parts[0]) if normalisation == "step_sum" else parts.sum()


def _weights(packed: PackedTree, normalisation: Normalisation) -> torch.Tensor:
    """(M,) float64 weights of the numerator."""
    _check(normalisation)
    weights = packed.loss_weights.double()
    if normalisation == "path_mean":
        return weights / packed.num_paths[packed.target_tree]
    return weights


def _check(normalisation: str) -> None:
    if normalisation not in get_args(Normalisation):
        raise unknown_name("losses.normalisation", normalisation, get_args(Normalisation))
