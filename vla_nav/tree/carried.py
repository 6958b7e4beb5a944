"""What recurrent layers carry from one partition to another: states, and inputs of the conv.

    partition 0   a b c d e             run f g hangs from c: it starts from the state after c, and
    partition 1   f g       | h         the conv of f sees a b c; run h hangs from d

    carried       states c d            rows a b c | b c d  =  a b c d

Only what is read is kept: a state takes as much memory as the keys of hundreds of tokens. Tables
are by token of the whole pack, since several partitions may read one token.

Axis legend: T packed tokens, P gateway tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from vla_nav.tree.heavy_paths import Runs, windows
from vla_nav.tree.types import IntArray


class Needs(NamedTuple):
    """Ascending gateway tokens (0 .. P-1) whose states, and whose rows, a partition reads."""

    states: IntArray
    rows: IntArray


class Exports(NamedTuple):
    """For every partition, ascending own rows that others read; where each is among these, by token
    of the whole pack (T,)."""

    own: list[IntArray]
    place: IntArray


def needs_of(runs: Runs, num_prefix: int) -> Needs:
    """What `runs` read of their gateway."""
    _, seen = windows(runs, num_prefix=num_prefix)
    parents, rows = np.unique(runs.parent), np.unique(seen)
    return Needs(
        parents[(parents >= 0) & (parents < num_prefix)], rows[(rows >= 0) & (rows < num_prefix)]
    )


def exports_of(read: Sequence[IntArray], owns: Sequence[IntArray], num_tokens: int) -> Exports:
    """What partitions leave for others. read: tokens of the whole pack that partitions read; owns:
    the ascending tokens of each partition."""
    is_read = np.zeros(num_tokens, dtype=np.bool_)
    for tokens in read:
        is_read[tokens] = True
    rows = [np.flatnonzero(is_read[own]) for own in owns]
    place = np.full(num_tokens, -1, dtype=np.int64)
    for own, exported in zip(owns, rows, strict=True):
        place[own[exported]] = np.arange(len(exported))
    return Exports(rows, place)
