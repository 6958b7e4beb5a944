"""Offline accuracy of a policy under teacher forcing: whole actions, tokens, and STOP.

An action is right when every one of its tokens is the arg max at its predictor. Targets of one
action are chained: the first is predicted by a token that is no target, each later one by the
target before it.

    pack      ... frame | yaw  x  y |          predictor of yaw: the frame's last token (no target)
    target               0   1  2              predictor of x:   the place of yaw (a target)

Axes: M targets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Counts:
    """Sums over a validation set; add them up, then read the rates."""

    tokens: float = 0
    tokens_right: float = 0
    actions: float = 0
    actions_right: float = 0
    stops: float = 0
    stops_predicted: float = 0
    stops_right: float = 0

    def __iter__(self) -> Iterator[float]:
        return (getattr(self, field.name) for field in fields(self))

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(mine + yours for mine, yours in zip(self, other, strict=True)))

    def rates(self) -> dict[str, float]:
        """token_accuracy, action_accuracy, stop_precision, stop_recall (nan without any)."""
        return {
            "token_accuracy": _ratio(self.tokens_right, self.tokens),
            "action_accuracy": _ratio(self.actions_right, self.actions),
            "stop_precision": _ratio(self.stops_right, self.stops_predicted),
            "stop_recall": _ratio(self.stops_right, self.stops),
        }


def count(
    predicted: Tensor,
    target: Tensor,
    *,
    predictor_index: Tensor,
    target_index: Tensor,
    stop_id: int,
) -> Counts:
    """Counts of one pack. All tensors (M,) int64 on one device, in any order.

    predicted, target: token ids. predictor_index, target_index: places in the pack. stop_id: the
    token that alone is the STOP action.
    """
    first = first_of_action(predictor_index, target_index)  # (M,)
    is_right = predicted == target
    is_start = first == torch.arange(len(target), device=target.device)
    num_wrong = torch.zeros_like(first).index_add(0, first, (~is_right).long())
    is_stop, says_stop = is_start & (target == stop_id), is_start & (predicted == stop_id)
    return Counts(
        tokens=len(target),
        tokens_right=int(is_right.sum()),
        actions=int(is_start.sum()),
        actions_right=int((is_start & (num_wrong == 0)).sum()),
        stops=int(is_stop.sum()),
        stops_predicted=int(says_stop.sum()),
        stops_right=int((is_stop & says_stop).sum()),
    )


def first_of_action(predictor_index: Tensor, target_index: Tensor) -> Tensor:
    """For every target, which target begins its action: (M,) int64 indices into the targets."""
    num = len(target_index)
    size = int(torch.maximum(predictor_index.max(), target_index.max())) + 1 if num else 0
    at_place = torch.full((size,), -1, dtype=torch.int64, device=target_index.device)
    own = torch.arange(num, device=target_index.device)
    at_place[target_index] = own
    before = at_place[predictor_index]  # (M,) the target before, -1 at the first of an action
    before = torch.where(before < 0, own, before)
    while not torch.equal(nxt := before[before], before):  # pointer doubling: log2(length) rounds
        before = nxt
    return before


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else float("nan")
