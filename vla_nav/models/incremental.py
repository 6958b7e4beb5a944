"""The model on growing sequences: new tokens of many slots in one ragged batch, on a cache.

    held    row 0   a b c d e f      append([0, 1], ...)   row 0   g h . . .
            row 1   a b                                    row 1   c d e f g
                                                                   `--- right-padded, one forward

Token n of a row is at position n, as on a path of the packed training forward. Long additions
(an instruction, a rewritten context) are read in pieces, which bounds memory.

Recurrent layers cannot forget the end of a row: they go back to a copy of their states
(`vla_nav.models.hybrid.states`), and what the row holds behind it is read once more, from the
embeddings that the row keeps for that:

    keep(row, 5)    held  a b c | d e f g      copy at |, keys of a b c stay
    append(...)           a b c . d e          read again, copied; then what is new

Axes: B rows of a call, N new tokens of a row, E hidden size, F frames, P tokens of a frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vla_nav.models.cache import SlotCache
from vla_nav.models.hybrid.states import SlotStates
from vla_nav.models.vla import VLA

_PREFILL_TOKENS = 512  # new tokens of one row per forward call: bounds memory on a long addition


class NewTokens(NamedTuple):
    """What one row appends, (n,) each: frame_index points into the call's `features`, -1 = text."""

    token_ids: np.ndarray
    frame_index: np.ndarray
    patch_index: np.ndarray


class IncrementalModel:
    """A model with a cache row per slot. Rows of a call are distinct and ascending."""

    def __init__(self, model: VLA) -> None:
        self.model = model
        self._cache = SlotCache(model.backbone.num_layers)
        is_hybrid = model.backbone.num_recurrent > 0
        self._states = SlotStates() if is_hybrid else None
        self._embedded: dict[int, list[Tensor]] = {}  # by row, (n, E) each; of hybrids
        self._again: dict[int, Tensor] = {}  # by row, what is to be read once more

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.model.own_embedding.weight.device

    def clear(self, row: int) -> None:
        """Forget all that a row holds; a row of any number may be new."""
        self._cache.clear(row)
        if self._states is not None:
            self._states.clear(row)
            self._embedded[row] = []
            self._again.pop(row, None)

    def keep(self, row: int, num_tokens: int) -> None:
        """Forget what a row holds behind its first `num_tokens` tokens."""
        if self._states is None or num_tokens == self.length(row):
            self._cache.keep(row, num_tokens)
            return
        held = torch.cat(self._embedded[row])
        kept = self._states.back_to(row, num_tokens)
        self._cache.keep(row, kept)
        self._embedded[row] = [held[:kept]]
        self._again[row] = held[kept:num_tokens]

    def length(self, row: int) -> int:
        """Tokens that a row holds."""
        return int(self._cache.length[row]) + len(self._again.get(row, ()))

    def append(self, rows: Sequence[int], new: Sequence[NewTokens], features: Tensor) -> Tensor:
        """Hidden (B, E) after each row's last new token; every row has at least one.

        features (F, P, D_v): what the vision tokens show.
        """
        self._read_again(rows)
        counts = np.array([len(tokens.token_ids) for tokens in new])
        joined = (torch.from_numpy(np.concatenate(arrays)) for arrays in zip(*new, strict=True))
        embedded = self.model.embed(
            *(array.to(self.device) for array in joined), features
        )  # (sum of counts, E)
        first = np.cumsum(counts) - counts
        last = torch.empty(len(rows), embedded.shape[1], dtype=embedded.dtype, device=self.device)
        for begin in range(0, int(counts.max()), _PREFILL_TOKENS):
            now = np.clip(counts - begin, 0, _PREFILL_TOKENS)
            part = np.flatnonzero(now)
            hidden = self._forward(
                [rows[b] for b in part.tolist()], now[part], embedded, first[part] + begin
            )  # (rows with tokens left, N, E)
            ends = np.flatnonzero((counts[part] - begin) <= _PREFILL_TOKENS)
            last[part[ends]] = hidden[ends, now[part][ends] - 1]
        self._copy(rows)
        return last

    def append_own(self, rows: Sequence[int], active: np.ndarray, own_ids: np.ndarray) -> Tensor:
        """Hidden (A, E) after one more own token (an action's) behind rows[active].

        active (A,) int64, ascending places in `rows`; own_ids (A,) int64.
        """
        # Rows that have finished ride along while they are few: leaving them out copies the cache.
        among = np.arange(len(rows)) if 2 * len(active) > len(rows) else active
        counts = np.isin(among, active).astype(np.int64)
        ids = np.zeros(len(among), dtype=np.int64)
        ids[counts > 0] = own_ids
        embedded = self.model.own_embedding(torch.from_numpy(ids).to(self.device))
        hidden = self._forward(
            [rows[b] for b in among.tolist()], counts, embedded, np.arange(len(among))
        )
        return hidden[torch.from_numpy(np.flatnonzero(counts)), 0]

    def _read_again(self, rows: Sequence[int]) -> None:
        """What `rows` kept behind the copies that they went back to, which are then newer."""
        some = [row for row in rows if len(self._again.get(row, ()))]
        if not some:
            return
        embedded = [self._again.pop(row) for row in some]
        counts = np.array([len(tokens) for tokens in embedded])
        joined, first = torch.cat(embedded), np.cumsum(counts) - counts
        for begin in range(0, int(counts.max()), _PREFILL_TOKENS):
            now = np.clip(counts - begin, 0, _PREFILL_TOKENS)
            part = np.flatnonzero(now)
            left = [some[b] for b in part.tolist()]
            self._forward(left, now[part], joined, first[part] + begin)
        self._copy(some)

    def _copy(self, rows: Sequence[int]) -> None:
        if self._states is not None:
            self._states.copy(rows, [int(self._cache.length[row]) for row in rows])

    def _forward(
        self, rows: list[int], counts: np.ndarray, embedded: Tensor, first: np.ndarray
    ) -> Tensor:
        """Hidden (B, N, E) of counts[b] tokens per row, read from `embedded` at first[b]; the
        cache then holds them."""
        starts = self._cache.length[np.asarray(rows)]
        offsets = np.arange(int(counts.max()))
        source = np.minimum(first[:, None] + offsets, len(embedded) - 1)  # padding reads anything
        places = starts[:, None] + np.minimum(offsets, np.maximum(counts[:, None] - 1, 0))
        batch = embedded[torch.from_numpy(source).to(self.device)]  # (B, N, E)
        positions = torch.from_numpy(places).to(self.device)
        recur = None
        if self._states is not None:
            recur = self._states.route(rows, counts)
            for row, begin, count in zip(rows, first.tolist(), counts.tolist(), strict=True):
                self._embedded[row].append(embedded[begin : begin + count])
        attend = self._cache.attend(rows, counts)
        hidden = self.model.decode(batch, positions, attend, recur)
        self._cache.commit(rows, counts)
        return hidden
