"""The flat side of the proof: paths run one by one, losses by plain loops.

    for every path:   logits of the whole path from plain causal attention
                      loss   -= coefficient * log softmax(logits[i-1])[token i]   at supervised i

This file shares no code with the packer: it reads a path's own tokens and nothing of a tree.

Axis legend: n tokens of a path, V logits, P patches, D features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vla_nav.tree.types import Path, PathTokens


@dataclass(frozen=True, eq=False)
class Sample:
    """One tree's worth of input: its flat paths and its own frame table, pixels (F, H, W, 3) uint8
    or features (F, P, D)."""

    paths: tuple[Path, ...]
    frames: Tensor


# (model, path, frames) -> logits (n, V) at every token of the path.
FlatForward = Callable[[Any, PathTokens, Tensor], Tensor]


class FlatResult(NamedTuple):
    """loss: scalar with graph. logits[s][k]: (taught, V) detached, in order: what predicts the
    supervised tokens of path k of sample s."""

    loss: Tensor
    logits: list[list[Tensor]]


def flat_run(
    model: nn.Module,
    samples: Sequence[Sample],
    forward: FlatForward,
    *,
    normalisation: str,
    first_id: int = 0,
) -> FlatResult:
    """Every path by itself; the loss is the definition of design section 3."""
    total: Tensor = torch.zeros((), dtype=torch.float64)
    logits: list[list[Tensor]] = []
    for sample in samples:
        logits.append([])
        for path in sample.paths:
            tokens = path.tokens()
            out = forward(model, tokens, sample.frames)  # (n, V)
            rows = [i - 1 for i in range(1, len(tokens.token_ids)) if tokens.is_supervised[i]]
            logits[-1].append(out.detach()[rows])
            for row in rows:
                token = int(tokens.token_ids[row + 1]) - first_id
                share = path.coefficient
                if normalisation == "path_mean":
                    share = share / (len(sample.paths) * len(samples))
                total = total - share * out[row].double().log_softmax(-1)[token]
    if normalisation == "token_mean":
        total = total / num_supervised(samples)
    return FlatResult(total, logits)


def num_supervised(samples: Sequence[Sample]) -> float:
    """Sum over paths of coefficient x supervised tokens: what the tree's weights must add up to."""
    return sum(
        path.coefficient * float(path.tokens().is_supervised.sum())
        for sample in samples
        for path in sample.paths
    )
