"""Losses from logits that never exist at once: chunks of predictors, forward and backward.

    hidden (M, E) --chunk--> logits (m, V) --> numerator of the chunk, d numerator / d logits
                                                 |
                                                 v   at once, while the chunk's logits exist
                                     d hidden (m, E), sums of d weights (V, E)

So memory holds `max_logits` logits and their gradient instead of M x V of both in float32, and no
product is computed twice. The gradient is the whole's: a chunk's numerator may be any function of
its own logits. A loss that couples targets (one ratio per path) takes all log-probabilities first
and then the chunks; see `policy_gradient`. Where all logits fit they are one chunk, by plain
autograd.

Axis legend: M targets of a pack, m of a chunk, V logits, E hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

MAX_LOGITS = 2**26  # 256 MiB in float32: two chunks or more only with a vocabulary of text

# (logits (m, V), which targets they are) -> (numerator, vectors (m,) that come without gradients)
NumeratorOf = Callable[[Tensor, slice], tuple[Tensor, tuple[Tensor, ...]]]


@dataclass(frozen=True, eq=False)
class Predictions:
    """Logits (M, V) that are not computed yet.

    hidden (M, E); weights: the head's rows (V_i, E), one tensor behind the other; project(hidden)
    -> logits, the same head as a function. max_logits: that may exist at once.
    """

    hidden: Tensor
    weights: tuple[Tensor, ...]
    project: Callable[[Tensor], Tensor]
    max_logits: int = MAX_LOGITS

    @property
    def shape(self) -> tuple[int, int]:
        """(M, V)."""
        return len(self.hidden), sum(len(weight) for weight in self.weights)

    def dense(self) -> Tensor:
        """All logits (M, V)."""
        return self.project(self.hidden)

    def argmax(self) -> Tensor:
        """(M,) int64 columns of the largest logits, without gradients."""
        with torch.no_grad():
            found = [self.project(self.hidden[rows]).argmax(-1) for rows in self.chunks()]
        return torch.cat(found)

    def chunks(self) -> Iterator[slice]:
        """Runs of targets with at most `max_logits` logits, at least one target each; one empty run
        where there is no target."""
        num_targets, width = self.shape
        size = max(1, self.max_logits // max(1, width))
        for start in range(0, max(1, num_targets), size):
            yield slice(start, min(num_targets, start + size))


def summed(
    logits: Tensor | Predictions, numerator_of: NumeratorOf
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The sum of the chunks' numerators, and their vectors joined to (M,).

    Logits reach `numerator_of` in float32, or float64 where they are. `Tensor` logits are one
    chunk.
    """
    if isinstance(logits, Tensor):
        return numerator_of(precise(logits), slice(0, len(logits)))
    chunks = list(logits.chunks())
    if len(chunks) == 1:
        return numerator_of(precise(logits.dense()), chunks[0])
    device = logits.hidden.device.type
    dtype = logits.hidden.dtype
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
    hidden, *weights = (x.to(dtype) for x in (logits.hidden, *logits.weights))  # one cast for all
    has_gradient = torch.is_grad_enabled()
    numerator, *vectors = _Chunked.apply(numerator_of, chunks, has_gradient, hidden, *weights)
    return numerator, tuple(vectors)


def precise(logits: Tensor) -> Tensor:
    """In float32, or float64 where they are."""
    return logits if logits.dtype == torch.float64 else logits.float()


class _Chunked(torch.autograd.Function):
    """Numerator and vectors; gradients are ready when the forward pass returns."""

    @staticmethod
    def forward(
        ctx: Any,
        numerator_of: NumeratorOf,
        chunks: list[slice],
        has_gradient: bool,
        hidden: Tensor,
        *weights: Tensor,
    ) -> tuple[Tensor, ...]:
        inputs = (hidden, *weights)
        needed = [i for i, x in enumerate(inputs) if has_gradient and x.requires_grad]
        sums: dict[int, Tensor] = {}
        values, found = [], []
        for rows in chunks:
            leaves = [x.detach() for x in (hidden[rows], *weights)]
            for i in needed:
                leaves[i].requires_grad_()
            with torch.set_grad_enabled(bool(needed)):
                logits = torch.cat([linear(leaves[0], weight) for weight in leaves[1:]], dim=-1)
                value, vectors = numerator_of(precise(logits), rows)
            values.append(value.detach())
            found.append(vectors)
            if needed:
                parts = torch.autograd.grad(value, [leaves[i] for i in needed])
                for i, part in zip(needed, parts, strict=True):
                    _add(sums, i, part, rows, inputs[i])
        ctx.save_for_backward(*(sums.get(i) for i in range(len(inputs))))
        joined = [torch.cat(parts) for parts in zip(*found, strict=True)]
        ctx.mark_non_differentiable(*joined)
        return torch.stack(values).sum(), *joined

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        sums = ctx.saved_tensors
        return None, None, None, *(None if x is None else x * gradient.to(x.dtype) for x in sums)


def _add(sums: dict[int, Tensor], place: int, part: Tensor, rows: slice, whole: Tensor) -> None:
    """Put a chunk's rows of d hidden (place 0) into the whole, or add its d weight, wide."""
    if place == 0:
        sums.setdefault(0, torch.empty_like(whole))[rows] = part
    elif place in sums:
        sums[place] += part
    else:
        sums[place] = precise(part)
