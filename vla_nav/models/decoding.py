"""From logits to action tokens, one by one, for all slots together.

    hidden of every slot's context --logits--> token 0 --follow--> hidden --logits--> token 1 ...
                                                  a slot leaves the batch where its action is
                                                  complete or outside the grammar

Constrained: the best (or sampled) token among `ActionSpace.allowed`. Unconstrained: among all
outputs; a token that is no action, or not allowed, ends the sequence, which then is unparsed.
`temperature` 0 takes the best token; otherwise token k has probability softmax(logits / T)[k], by
inverting the cumulative sum at one uniform number of the slot's own generator.

Axes: B slots, A active slots, E hidden size, V outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vla_nav.actions.types import ActionSpace
from vla_nav.errors import UserError
from vla_nav.models.vocabulary import Vocabulary

Follow = Callable[[np.ndarray, np.ndarray], Tensor]


class Chosen(NamedTuple):
    """One slot's local action ids, -1 = no action, and the logits (n, V) they were chosen from:
    float32, on the CPU."""

    tokens: tuple[int, ...]
    logits: Tensor


class Decoder:
    """See the module's docstring."""

    def __init__(
        self,
        space: ActionSpace,
        vocabulary: Vocabulary,
        *,
        temperature: float = 0.0,
        is_constrained: bool = True,
    ) -> None:
        if not temperature >= 0:
            raise UserError(f"evaluation.temperature: got {temperature}, must be >= 0")
        self.space, self.vocabulary = space, vocabulary
        self.temperature, self.is_constrained = temperature, is_constrained

    def decode(
        self,
        hidden: Tensor,
        generators: Sequence[np.random.Generator],
        forced: Sequence[tuple[int, ...] | None],
        *,
        logits_of: Callable[[Tensor], Tensor],
        follow: Follow,
    ) -> list[Chosen]:
        """One action per slot, from hidden (B, E) at the end of its context.

        forced: local action ids to take instead of choosing, or None. logits_of: (A, E) -> (A, V).
        follow(active (A,), tokens (A,)): hidden (A, E) after those slots' chosen tokens.
        """
        chosen: list[tuple[int, ...]] = [() for _ in generators]
        seen: list[list[Tensor]] = [[] for _ in generators]
        active = np.arange(len(generators))
        while len(active):
            logits = logits_of(hidden).float().cpu()  # (A, V)
            for b, row in zip(active, logits, strict=True):
                seen[b].append(row)
                target = forced[b]
                if target is not None:
                    token = target[len(chosen[b])]
                else:
                    token = self.choose(row.numpy(), chosen[b], generators[b])
                chosen[b] = (*chosen[b], token)
            active = np.array([b for b in active if self._is_open(chosen[b], forced[b])], np.int64)
            if len(active):
                hidden = follow(active, np.array([chosen[b][-1] for b in active]))
        return [
            Chosen(tokens, torch.stack(rows)) for tokens, rows in zip(chosen, seen, strict=True)
        ]

    def choose(self, logits: np.ndarray, prefix: tuple[int, ...], rng: np.random.Generator) -> int:
        """A local action id for logits (V,), or -1 for a token that is no action."""
        if self.is_constrained:
            logits = np.where(self.space.allowed(prefix), logits[: self.space.num_tokens], -np.inf)
        if self.temperature == 0:
            token = int(logits.argmax())
        else:
            scaled = (logits.astype(np.float64) - logits.max()) / self.temperature
            weights = np.exp(scaled)
            token = int(
                np.searchsorted(weights.cumsum(), rng.random() * weights.sum(), side="right")
            )
        return self.vocabulary.action_of(token)

    def _is_open(self, tokens: tuple[int, ...], forced: tuple[int, ...] | None) -> bool:
        """Whether another token follows."""
        if forced is not None:
            return len(tokens) < len(forced)
        if len(tokens) >= self.space.max_length or tokens[-1] < 0:
            return False
        is_inside = bool(self.space.allowed(tokens[:-1])[tokens[-1]])
        return is_inside and bool(self.space.allowed(tokens).any())
