"""How the losses of targets become one number, exactly over ranks and accumulation steps.

l_m the loss at target m, w_m the sum of the coefficients of the paths that supervise it (without
1/K), K_g the number of paths of tree g:

    path_mean    sum_g (sum_{m in g} w_m l_m) / K_g   /   number of trees
    token_mean   sum_m w_m l_m                        /   sum_m w_m
    step_sum     sum_m w_m l_m                        /   1

Numerators add up over packs; so do the denominators of the means. So a global batch is exact: add
up `loss_denominator` over all ranks and all packs of an optimiser step first (`total_denominator`),
then give the total to every pack's loss and *sum* the gradients. Averaging the means of packs with
unequal counts would be wrong.

Axis legend: M targets of a pack, V logits, G trees, P packs.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch

from vla_nav.errors import unknown_name
from vla_nav.tree.packing import PackedTree

Normalisation = Literal["path_mean", "token_mean", "step_sum"]


def loss_denominator(packed: PackedTree, normalisation: Normalisation) -> torch.Tensor:
    """This pack's part of the denominator: a float64 scalar on the pack's device."""
    check_normalisation(normalisation)
    device = packed.num_paths.device
    if normalisation == "path_mean":
        # Filled there: a copy from here would wait for all that the device has to do.
        return torch.full((), float(packed.num_trees), dtype=torch.float64, device=device)
    if normalisation == "token_mean":
        return packed.loss_weights.double().sum()
    return torch.ones((), dtype=torch.float64, device=device)


def total_denominator(parts: torch.Tensor, normalisation: Normalisation) -> torch.Tensor:
    """The global denominator from every pack's part (P,), of all ranks and accumulation steps."""
    check_normalisation(normalisation)
    return torch.ones_like(parts[0]) if normalisation == "step_sum" else parts.sum()


def numerator_weights(
    weights: torch.Tensor, packed: PackedTree, normalisation: Normalisation
) -> torch.Tensor:
    """(M,) float64: any sums over paths (M,), divided by their tree's K under `path_mean`."""
    check_normalisation(normalisation)
    if normalisation == "path_mean":
        return weights.double() / packed.num_paths[packed.target_tree]
    return weights.double()


def divided(
    numerator: torch.Tensor,
    packed: PackedTree,
    normalisation: Normalisation,
    denominator: torch.Tensor | float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(numerator / denominator, denominator): the given denominator, else this pack's own."""
    if denominator is None:
        total = loss_denominator(packed, normalisation)
    else:
        if not isinstance(denominator, torch.Tensor):  # filled there: a copy would wait
            denominator = numerator.new_full((), denominator, dtype=torch.float64)
        total = denominator.to(numerator.device, torch.float64)
    total = total.to(numerator.dtype)
    is_empty = total == 0  # nothing supervised anywhere: the loss is 0, not NaN
    return numerator / torch.where(is_empty, torch.ones_like(total), total), total


def check_normalisation(normalisation: str) -> None:
    """Raise `UserError` for a normalisation that does not exist."""
    if normalisation not in get_args(Normalisation):
        raise unknown_name("losses.normalisation", normalisation, get_args(Normalisation))
