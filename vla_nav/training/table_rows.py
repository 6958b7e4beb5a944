"""The text table trained by its used rows alone: the same update for a small part of its cost.

    table (V, E), V = 32,768     instructions use a few hundred ids
       ^ lookup                  gradient: sparse, one row per token   -> rows.grad (U, E)
       `-- rows (U, E) <---------------- AdamW acts on these ---------- clip, step

A row whose gradient is always zero never moves under AdamW without weight decay (its moments stay
zero), and tables have none. So leaving those rows out changes nothing but the time: a dense
gradient, its sum, norm and update touch every row at every step.

Axes: V table rows, U used rows, E embedding size, L looked-up tokens.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class TableRows:
    """Stands in for an embedding table in the optimiser. `rows` is the parameter to optimise.

    ids: the table rows that lookups use in training. The embedding gives sparse gradients from
    now on.
    """

    def __init__(self, embedding: nn.Embedding, ids: Iterable[int]) -> None:
        embedding.sparse = True
        self.table = embedding.weight
        self.ids = torch.tensor(sorted(set(ids)), dtype=torch.int64)
        self._place = torch.full((len(self.table),), -1, dtype=torch.int64)
        self._place[self.ids] = torch.arange(len(self.ids))
        self.rows = nn.Parameter(self.table.detach()[self.ids])

    @torch.no_grad()
    def read(self) -> None:
        """Take the rows from the table (after a checkpoint was loaded into it)."""
        self.rows.copy_(self.table[self.ids])

    def take_gradient(self) -> None:
        """Move the table's sparse gradient to `rows.grad` (U, E), dense."""
        gradient: Tensor | None = self.table.grad
        self.rows.grad = torch.zeros_like(self.rows)
        if gradient is not None:
            places = self._place[gradient._indices()[0]]  # (L,)
            assert int(places.min()) >= 0, "a token that is in no training episode"
            self.rows.grad.index_add_(0, places, gradient._values())
        self.table.grad = None

    @torch.no_grad()
    def write(self) -> None:
        """Put the updated rows into the table."""
        self.table.index_copy_(0, self.ids, self.rows)
