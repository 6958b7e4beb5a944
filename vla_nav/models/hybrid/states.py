"""The policy's memory of recurrent layers: every slot's state, and copies to go back to.

    row (one per slot)   state after its last token, the conv's last K - 1 inputs
    copies of a row      position ->  the same after so many tokens

    held     root instr frame_0 | act_0           copy at |
    context  root instr frame_0 | exec_0 frame_1  go back to |, read the rest from there

Keys can be cut off anywhere, a state cannot: going back to a position that has no copy returns the
nearest copy before it, and the caller reads the tokens between once more. A row keeps its first
copy and its newest ones, which is where contexts part in every layout.

Axis legend: B rows of a call, N new tokens of a row (right-padded), C channels, H heads.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from vla_nav.models.hybrid.chunks import Rule, pass_states, zero_states
from vla_nav.models.hybrid.conv import PlainConv, causal_conv
from vla_nav.tree.heavy_paths import CHUNK

_COPIES = 4  # of a row


class SlotStates:
    """States and conv tails by layer, (rows, ...), made at the first call."""

    def __init__(self) -> None:
        self._num_rows = 0
        self._states: dict[int, Tensor] = {}
        self._tails: dict[int, Tensor] = {}
        self._copies: dict[int, dict[int, list[Tensor]]] = {}  # row -> position -> by store, layer

    @torch.inference_mode()  # as the calls that made the stores
    def clear(self, row: int) -> None:
        """Forget all that `row` holds; a row of any number may be new."""
        self._num_rows = max(self._num_rows, row + 1)
        self._copies[row] = {}
        for store in (self._states, self._tails):
            for layer, held in store.items():
                if row < len(held):
                    held[row] = 0
                store[layer] = self._grown(held)

    def copy(self, rows: Sequence[int], positions: Sequence[int]) -> None:
        """Remember the states of `rows` as those after so many tokens."""
        index = list(rows)
        taken = [held[index].unbind() for held in self._held()]
        for b, (row, position) in enumerate(zip(rows, positions, strict=True)):
            copies = self._copies[row]
            copies[position] = [tensors[b].clone() for tensors in taken]
            if len(copies) > _COPIES:
                copies.pop(sorted(copies)[1])

    def back_to(self, row: int, position: int) -> int:
        """Take `row` back to its last copy at or before `position`; returns where that is."""
        copies = self._copies[row]
        for later in [place for place in copies if place > position]:
            copies.pop(later)
        if not copies:
            for held in self._held():
                held[row] = 0
            return 0
        nearest = max(copies)
        for held, value in zip(self._held(), copies[nearest], strict=True):
            held[row] = value
        return nearest

    def route(self, rows: Sequence[int], counts: np.ndarray) -> SlotRouting:
        """Recurrence of one call: row b has counts[b] new tokens behind what it holds."""
        return SlotRouting(self, rows, counts)

    def take(self, store: str, layer: int, rows: Sequence[int], like: Tensor) -> Tensor:
        """(B, ...) of `states` or `tails`. like (1, ...): what an empty row holds."""
        by_layer = self._store(store)
        if layer not in by_layer:
            by_layer[layer] = like.expand(self._num_rows, *like.shape[1:]).clone()
        return by_layer[layer][list(rows)]

    def put(self, store: str, layer: int, rows: Sequence[int], value: Tensor) -> None:
        """Hold `value` (B, ...)."""
        self._store(store)[layer][list(rows)] = value.to(self._store(store)[layer].dtype)

    def _store(self, name: str) -> dict[int, Tensor]:
        return self._states if name == "states" else self._tails

    def _held(self) -> list[Tensor]:
        return [*self._states.values(), *self._tails.values()]

    def _grown(self, held: Tensor) -> Tensor:
        missing = self._num_rows - len(held)
        return torch.cat([held, held.new_zeros(missing, *held.shape[1:])]) if missing else held


class SlotRouting:
    """New tokens (B, N) behind the states of their rows; the states then are those after them."""

    def __init__(self, states: SlotStates, rows: Sequence[int], counts: np.ndarray) -> None:
        self._states, self._rows = states, rows
        self._counts = torch.from_numpy(np.asarray(counts, dtype=np.int64))

    def convolve(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        layer: int,
        plain: PlainConv = causal_conv,
    ) -> Tensor:
        """See `Recurrence`."""
        num_before = weight.shape[1] - 1
        if num_before == 0:
            return causal_conv(x, weight, bias)
        empty = x.new_zeros(1, num_before, x.shape[2])
        tails = self._states.take("tails", layer, self._rows, empty)
        joined = torch.cat([tails, x], dim=1)  # (B, K - 1 + N, C)
        place = self._counts.to(x.device)[:, None] + torch.arange(num_before, device=x.device)
        last = joined.gather(1, place[..., None].expand(-1, -1, x.shape[2]))
        self._states.put("tails", layer, self._rows, last)
        return causal_conv(joined, weight, bias)[:, num_before:]

    def scan(self, rule: Rule, inputs: Sequence[Tensor], layer: int) -> Tensor:
        """See `Recurrence`. Padding leaves the states as they are."""
        num_rows, num_new = inputs[0].shape[:2]
        width = min(CHUNK, num_new)
        num_chunks = -(-num_new // width)
        place = torch.arange(num_chunks * width, device=inputs[0].device)
        is_token = place < self._counts.to(place.device)[:, None]  # (B, chunks * c)
        place = place.clamp_max(num_new - 1)

        def cut(x: Tensor) -> Tensor:
            """(B, chunks * c, ...) -> (chunks * B, c, ...), chunks of one step side by side."""
            return x.unflatten(1, (num_chunks, width)).transpose(0, 1).flatten(0, 1)

        initial = self._states.take("states", layer, self._rows, zero_states(rule, inputs, 1))
        chunks = rule.prepare([cut(x[:, place]) for x in inputs], cut(is_token))
        out, ends = pass_states(chunks, initial, [num_rows] * num_chunks)
        self._states.put("states", layer, self._rows, ends[-num_rows:])
        out = out.unflatten(0, (num_chunks, num_rows)).transpose(0, 1)  # (B, chunks, c, H, Dv)
        return out.flatten(1, 2)[:, :num_new]
