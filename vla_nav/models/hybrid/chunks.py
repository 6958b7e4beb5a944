"""Linear recurrences in chunks: work inside all chunks at once, then states from chunk to chunk.

A recurrence with state S (Dk, Dv) that is linear in S has, over a chunk of c tokens with the state
S before it,

    U    = values - reads S                  what is written, corrected by what S already holds
    out  = queries S + scores U              scores (c, c): lower triangular, with decay
    S'   = decay S + keys^T U

`Rule.prepare` makes queries, keys, values, reads, scores and decay of any number of chunks without
a state; `pass_states` is the only part that waits for one. Everything is in float32 at least, under
autocast too. Padding tokens inside a chunk are masked: they write nothing and decay nothing, so
the state after a short chunk is the state after its last token.

Axis legend: N chunks, c tokens of a chunk, H heads, Dk and Dv key and value size, R sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vla_nav.tree.run_table import RunTable


class Chunks(NamedTuple):
    """Chunks without their states: queries, keys (N, H, c, Dk); values (N, H, c, Dv); scores
    (N, H, c, c); decay (N, H, 1, 1); reads (N, H, c, Dk), or None where nothing is corrected."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    scores: Tensor
    decay: Tensor
    reads: Tensor | None


FusedScan = Callable[[Sequence[Tensor], Tensor, RunTable], tuple[Tensor, Tensor]]


class Rule(NamedTuple):
    """One kind of recurrence over inputs of shape (..., tokens, heads, ...).

    by_token(inputs, state) -> (out (B, T, H, Dv), state (B, H, Dk, Dv)): the definition, one token
    after the other. prepare(inputs, is_token (N, c)) -> Chunks of inputs (N, c, ...).
    state_shape(inputs) -> (H, Dk, Dv). fused(inputs (T, ...), initial states (1 + G, H, Dk, Dv),
    table) -> (out (T, H, Dv), branch states): a whole pack by kernels of a GPU, None = without.
    """

    name: str
    by_token: Callable[[Sequence[Tensor], Tensor], tuple[Tensor, Tensor]]
    prepare: Callable[[Sequence[Tensor], Tensor], Chunks]
    state_shape: Callable[[Sequence[Tensor]], tuple[int, int, int]]
    fused: FusedScan | None = None


def wide(x: Tensor) -> Tensor:
    """x in float32, or in float64 where it is."""
    return x if x.dtype == torch.float64 else x.float()


def zero_states(rule: Rule, inputs: Sequence[Tensor], count: int) -> Tensor:
    """(count, H, Dk, Dv) zeros for `inputs`."""
    like = inputs[0]
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    return torch.zeros((count, *rule.state_shape(inputs)), dtype=dtype, device=like.device)


def pass_states(
    chunks: Chunks, initial: Tensor, num_active: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """(out (N, c, H, Dv), the state after every chunk (N, H, Dk, Dv)).

    initial (R, H, Dk, Dv). Chunks are ordered by step; step s continues the first num_active[s]
    sequences.
    """
    steps = [
        [None] * len(num_active) if field is None else field.split(list(num_active))
        for field in chunks
    ]
    state, outs, ends = initial, [], []
    for count, queries, keys, values, scores, decay, reads in zip(num_active, *steps, strict=True):
        state = state[:count]
        written = values if reads is None else values - reads @ state
        outs.append(queries @ state + scores @ written)
        state = decay * state + keys.transpose(-1, -2) @ written
        ends.append(state)
    return torch.cat(outs).transpose(1, 2), torch.cat(ends)


def decays_within(log_decay: Tensor) -> tuple[Tensor, Tensor]:
    """Of log_decay (..., c): its running sum (..., c), and exp of the sum over j+1 .. i at [i, j]
    (..., c, c), zero above the diagonal."""
    running = log_decay.cumsum(-1)
    between = running[..., :, None] - running[..., None, :]
    hidden = torch.ones(between.shape[-2:], dtype=torch.bool, device=between.device).triu(1)
    return running, between.masked_fill(hidden, -torch.inf).exp()
