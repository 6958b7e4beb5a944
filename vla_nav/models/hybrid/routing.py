"""Where recurrent layers take their states from: along the paths of a packed tree, or a sequence.

    mixer --> convolve(x)       every token sees the last tokens of its path
          --> scan(rule, ...)   every run starts from the state after its parent token

A mixer (mixers.py) is given one such object per forward, the keyword `recur`, as attention is given
`attend`; what stands behind it decides who sees whom:

    TreeRouting       the heavy paths of a pack, round by round; partitions through `Carry`
    SequenceRouting   every row is a path of its own: the definition, token by token
    SlotRouting       new tokens of the policy's slots behind the states they hold (states.py)

    round 0   run 0 ========o======o======   chunks end at branch points (o), where states are kept
    round 1                 |      '=====    all runs of a round together, from those states
                            '====

Axis legend: B rows, T tokens (of a pack, with padding), C channels, H heads, S states.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from vla_nav.models.hybrid.carry import Carry
from vla_nav.models.hybrid.chunks import FusedScan, Rule, pass_states, zero_states
from vla_nav.models.hybrid.conv import PlainConv, causal_conv, path_conv
from vla_nav.tree.heavy_paths import HeavyPaths, Round


class Recurrence(Protocol):
    """What a mixer asks of a routing. layer: the layer's number."""

    def convolve(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        layer: int,
        plain: PlainConv = causal_conv,
    ) -> Tensor:
        """x (B, T, C), weight (C, K), bias (C,) -> (B, T, C), in float32 at least, or as `plain`,
        the conv of a whole pack, gives it."""
        ...

    def scan(self, rule: Rule, inputs: Sequence[Tensor], layer: int) -> Tensor:
        """The rule's inputs (B, T, ...) -> out (B, T, H, Dv), in float32 at least; fused kernels
        give it in the dtype of the first input."""
        ...


class TreeRouting:
    """A pack, B = 1. carry: where it is a partition."""

    def __init__(self, paths: HeavyPaths, carry: Carry | None = None) -> None:
        self._paths, self._carry = paths, carry

    def convolve(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        layer: int,
        plain: PlainConv = causal_conv,
    ) -> Tensor:
        """See `Recurrence`."""
        joined = x[0] if self._carry is None else self._carry.rows(x[0], layer)
        own = joined[len(joined) - x.shape[1] :]
        paths = self._paths
        return path_conv(
            own,
            weight,
            bias,
            joined=joined,
            window_row=paths.window_row,
            window=paths.window,
            plain=plain,
        )[None]

    def scan(self, rule: Rule, inputs: Sequence[Tensor], layer: int) -> Tensor:
        """See `Recurrence`. Padding gets zeros."""
        flat = [x[0] for x in inputs]
        states = zero_states(rule, inputs, 1)
        if self._carry is not None:
            states = self._carry.states_before(states, layer)
        num_rows = len(flat[0])
        if rule.fused is not None:
            return self._fused(rule.fused, flat, states, layer)[None]
        outs, places, branches = [], [], []
        for item in self._paths.rounds:
            index, is_token = chunk_rows(item, num_rows)
            chunks = rule.prepare([x[index] for x in flat], is_token)
            out, ends = pass_states(chunks, states[item.initial], item.num_active)
            states = ends[item.branch]
            outs.append(out.flatten(0, 1))
            places.append(torch.where(is_token, index, num_rows).flatten())
            branches.append(states)
        out = torch.cat(outs)
        whole = out.new_zeros(num_rows + 1, *out.shape[1:])  # the last row takes what is no token
        whole = whole.index_copy(0, torch.cat(places), out)[:num_rows]
        if self._carry is not None:
            whole = self._carry.export(whole, torch.cat(branches)[self._paths.exported], layer)
        return whole[None]

    def _fused(self, scan: FusedScan, flat: Sequence[Tensor], states: Tensor, layer: int) -> Tensor:
        """(T, H, Dv) by kernels, in their dtype; zeros for padding."""
        num_tokens, table = self._paths.num_tokens, self._paths.table
        out, branches = scan([x[:num_tokens] for x in flat], states, table)
        padding = len(flat[0]) - num_tokens
        out = F.pad(out, (0, 0, 0, 0, 0, padding)) if padding else out
        if self._carry is not None:
            out = self._carry.export(out, branches[table.exported], layer)
        return out


class SequenceRouting:
    """Plain sequences, each from a zero state: the definition, one token after the other."""

    def convolve(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        layer: int,
        plain: PlainConv = causal_conv,
    ) -> Tensor:
        """See `Recurrence`."""
        return causal_conv(x, weight, bias)

    def scan(self, rule: Rule, inputs: Sequence[Tensor], layer: int) -> Tensor:
        """See `Recurrence`."""
        out, _ = rule.by_token(inputs, zero_states(rule, inputs, len(inputs[0])))
        return out


def chunk_rows(item: Round, num_rows: int) -> tuple[Tensor, Tensor]:
    """(C, width) own rows of a round's chunks, and which are tokens of them."""
    offsets = torch.arange(item.width, device=item.chunk_start.device)
    is_token = offsets < item.chunk_length[:, None]
    return (item.chunk_start[:, None] + offsets).clamp_max(num_rows - 1), is_token
