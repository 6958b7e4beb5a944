"""The policy's memory: keys and values of every slot's context, and attention over them.

    row (one per slot)   keys and values (after RoPE)
                         0 .................. length[row]-1 | length[row] ...
                         what the row holds                 | the next tokens are written here

    keep(row, 5)         0 1 2 3 4 | forgotten                a rewritten context: drop its end

    one call, ragged:    row 0:  3 new tokens                 queries are right-padded to one count;
                         row 1: 41 new tokens                 a query sees keys at places <= its own

Forgetting is setting the length: what is written later overwrites the places. Query heads of one
key head are folded into the query axis, so keys are never repeated.

Axes: B rows of a call, N queries of a row, S places, H query heads, K key heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vla_nav.models.backbone import Attend

_FIRST_CAPACITY = 128


class SlotCache:
    """Keys and values by layer, (rows, K, capacity, D), made at the first call and grown by
    doubling. `length` (rows,) int64 counts the tokens that each row holds."""

    def __init__(self, num_layers: int) -> None:
        self.length = np.zeros(0, dtype=np.int64)
        self._keys: list[Tensor | None] = [None] * num_layers
        self._values: list[Tensor | None] = [None] * num_layers

    def clear(self, row: int) -> None:
        """Forget all that `row` holds; a row of any number may be new."""
        if row >= len(self.length):
            self.length = np.append(self.length, np.zeros(row + 1 - len(self.length), np.int64))
        self.length[row] = 0

    def keep(self, row: int, num_tokens: int) -> None:
        """Forget what `row` holds behind its first `num_tokens` tokens."""
        assert 0 <= num_tokens <= self.length[row], (num_tokens, self.length[row])
        self.length[row] = num_tokens

    def commit(self, rows: Sequence[int], counts: np.ndarray) -> None:
        """Hold the counts[b] tokens that the last call wrote behind each row."""
        self.length[np.asarray(rows)] += counts

    def attend(self, rows: Sequence[int], counts: np.ndarray) -> Attend:
        """Attention of one call: row b has counts[b] new tokens behind what it holds.

        rows (B,) distinct, ascending; counts (B,) int64, may be 0 but not all.
        """
        starts = self.length[np.asarray(rows)]
        num_places = int((starts + counts).max())
        width = int(counts.max())
        offsets = np.arange(width)
        # A padded query sees what the row's last token sees; its output is not used.
        last = np.minimum(starts[:, None] + offsets, np.maximum(starts + counts - 1, 0)[:, None])
        is_visible = np.arange(num_places) <= last[:, :, None]  # (B, N, S)
        batch, query = np.nonzero(offsets < counts[:, None])
        place = starts[batch] + query
        written = torch.from_numpy(np.asarray(rows)[batch]), torch.from_numpy(place)
        source = torch.from_numpy(batch), torch.from_numpy(query)
        mask = torch.from_numpy(is_visible)[:, None]  # (B, 1, N, S)
        rows_are_one_run = rows[-1] - rows[0] + 1 == len(rows)
        selected: slice | Tensor = (
            slice(rows[0], rows[-1] + 1) if rows_are_one_run else torch.tensor(rows)
        )
        masks: dict[int, Tensor] = {}

        def attend(q: Tensor, k: Tensor, v: Tensor, layer: int, scale: float) -> Tensor:
            self._reserve(layer, num_places, k)
            keys, values = self._keys[layer], self._values[layer]
            assert keys is not None
            assert values is not None
            device = q.device
            into = tuple(index.to(device) for index in written)
            new = tuple(index.to(device) for index in source)
            keys[into[0], :, into[1]] = k[new]
            values[into[0], :, into[1]] = v[new]
            seen_k, seen_v = keys[selected, :, :num_places], values[selected, :, :num_places]
            num_rows, num_queries, num_heads, size = q.shape
            groups = num_heads // k.shape[2]
            if groups not in masks:  # additive, made once for all layers: (B, 1, groups*N, S)
                hidden = ~mask.to(device).repeat(1, 1, groups, 1)
                masks[groups] = q.new_zeros(hidden.shape).masked_fill_(hidden, -torch.inf)
            folded = q.transpose(1, 2).reshape(num_rows, k.shape[2], groups * num_queries, size)
            out = F.scaled_dot_product_attention(
                folded, seen_k, seen_v, attn_mask=masks[groups], scale=scale
            )
            return out.reshape(num_rows, num_heads, num_queries, size).transpose(1, 2)

        return attend

    def _reserve(self, layer: int, num_places: int, like: Tensor) -> None:
        """Room for every row and `num_places` places; what was written stays."""
        held = self._keys[layer]
        num_rows, capacity = (0, 0) if held is None else (held.shape[0], held.shape[2])
        if num_rows >= len(self.length) and capacity >= num_places:
            return
        wanted = max(capacity, _FIRST_CAPACITY)
        while wanted < num_places:
            wanted *= 2
        shape = (len(self.length), like.shape[2], wanted, like.shape[3])
        for store in (self._keys, self._values):
            grown = torch.zeros(shape, dtype=like.dtype, device=like.device)
            old = store[layer]
            if old is not None:
                grown[:num_rows, :, :capacity] = old
            store[layer] = grown
