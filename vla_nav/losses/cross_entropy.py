"""Weighted cross-entropy at predictors: l_m = -log softmax(logits[m])[target m].

The logits of target m come from its predictor, the token before it on its path, so nothing is ever
shifted; `vla_nav/losses/normalisation.py` says how the targets' losses become one number.

Axis legend: M targets of a pack, V logits.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.nn.functional import cross_entropy

from vla_nav.losses.normalisation import Normalisation, divided, numerator_weights
from vla_nav.losses.predictions import Predictions, summed
from vla_nav.tree.packing import PackedTree


class Loss(NamedTuple):
    """value = numerator / denominator (the given one, else this pack's own); all scalars.

    token_loss: (M,) unweighted l_m, detached, for metrics.
    """

    value: torch.Tensor
    numerator: torch.Tensor
    denominator: torch.Tensor
    token_loss: torch.Tensor


def weighted_cross_entropy(
    logits: torch.Tensor | Predictions,
    packed: PackedTree,
    *,
    normalisation: Normalisation = "path_mean",
    denominator: torch.Tensor | float | None = None,
    first_id: int = 0,
) -> Loss:
    """The loss of a pack from logits (M, V) at its predictors, in target order.

    logits: a tensor, or `Predictions`, whose logits are computed in chunks where they are many.
    first_id: the vocabulary id of logit column 0 (a head over action tokens only).
    denominator: the global one; default this pack's. Computed in float32, or float64 where the
    logits are. Raises `ValueError` for a target outside the logits' columns (on the CPU; a CUDA
    device asserts) and a shape that is not (M, V).
    """
    targets = target_columns(logits, packed, first_id)
    weights = numerator_weights(packed.loss_weights, packed, normalisation)

    def numerator_of(
        logits: torch.Tensor, rows: slice
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        token_loss = cross_entropy(logits, targets[rows], reduction="none")  # (m,)
        if not len(token_loss):  # the sum over no logits: connected, zero gradients everywhere
            return logits.sum(), (token_loss.detach(),)
        numerator = (weights[rows].to(token_loss.dtype) * token_loss).sum()
        return numerator, (token_loss.detach(),)

    numerator, (token_loss,) = summed(logits, numerator_of)
    value, total = divided(numerator, packed, normalisation, denominator)
    return Loss(value, numerator, total, token_loss)


def target_columns(
    logits: torch.Tensor | Predictions, packed: PackedTree, first_id: int
) -> torch.Tensor:
    """(M,) logit columns of the targets. Raises `ValueError` unless logits are (M, V) and, on the
    CPU, every target is one of the columns."""
    num_targets, shape = len(packed.target_ids), tuple(logits.shape)
    if len(shape) != 2 or shape[0] != num_targets:
        raise ValueError(f"logits must be ({num_targets}, V), got {shape}")
    targets = packed.target_ids - first_id
    if targets.device.type == "cpu" and num_targets > 0:
        low, high = int(targets.min()), int(targets.max())
        if low < 0 or high >= shape[1]:
            raise ValueError(
                f"target ids {low + first_id} .. {high + first_id} are outside the logits' "
                f"{first_id} .. {first_id + shape[1] - 1}"
            )
    return targets
