"""Attention over a pack as dense jobs: a few query rows against the keys that they may see.

The pack is cut into *heavy runs*: in pre-order with the heaviest child first, a root-to-leaf run is
contiguous, and a token is the last of its run exactly when its subtree_end is its own index + 1.

    pack   r a b c d | x | y z | w      the first run of a tree is its trunk; the light runs behind
           trunk       light runs       it hang from it (or from one another)

- A trunk is plain causal attention: no mask at all.
- Light runs are cut into chunks of at most `max_rows` consecutive rows [a, b). Whoever a row of
  the chunk sees is an ancestor of a, or in the chunk itself:
      keys = { k < a : end[k] > a }  +  [a, b)        with a mask of rows x keys
  A chunk holds whole light runs; a run longer than `max_rows` is cut.
- Rows that see gateway keys are all light: the keys before them are their trunk. The gateway's
  first token counts as the root of every tree whose rows see it.

    prefix p p p | own r a b c | x y      chunks of [r .. y], each with the prefix tokens it sees

Nothing is Q x (P+Q): a job is max_rows x keys.

Axis legend: Q own tokens, P prefix tokens, J jobs.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from vla_nav.tree.types import Int32Array, IntArray


class Job(NamedTuple):
    """Own rows start .. stop - 1 against the keys `before` them (joint indices) and themselves."""

    start: int
    stop: int
    before: IntArray

    @property
    def num_rows(self) -> int:
        """Query rows."""
        return self.stop - self.start

    @property
    def num_keys(self) -> int:
        """Keys, the rows' own included."""
        return len(self.before) + self.stop - self.start


class RowJobs(NamedTuple):
    """Own rows that see themselves only (J,), causal jobs and masked jobs: every row once."""

    alone: IntArray
    trunks: list[Job]
    chunks: list[Job]


def row_jobs(subtree_end: Int32Array, prefix_end: Int32Array, max_rows: int) -> RowJobs:
    """The jobs of a pack: subtree_end (Q,), prefix_end (P,)."""
    index = np.arange(len(subtree_end))
    reached = np.concatenate([[0], np.maximum.accumulate(subtree_end)[:-1]])
    # Rows of trees that see the prefix; then every root that no earlier subtree reaches.
    behind = int(prefix_end.max(initial=0))
    behind = int(subtree_end[:behind].max(initial=0))
    roots = np.flatnonzero((reached <= index) & (index >= behind))
    is_alone = subtree_end[roots] == roots + 1
    alone, roots = roots[is_alone], roots[~is_alone]

    leaves = np.flatnonzero(subtree_end == index + 1)
    stops = (leaves + 1).tolist()
    trunks: list[Job] = []
    chunks = _chunks(
        0, [0, *stops[: np.searchsorted(leaves, behind)]], subtree_end, prefix_end, max_rows
    )
    first = np.searchsorted(leaves, roots).tolist()  # each tree's first leaf ends its trunk
    last = np.searchsorted(leaves, subtree_end[roots]).tolist()
    unseen = prefix_end[:0]
    for root, low, high in zip(roots.tolist(), first, last, strict=True):
        trunks.append(Job(root, stops[low], np.empty(0, dtype=np.int64)))
        for job in _chunks(root, stops[low:high], subtree_end, unseen, max_rows):
            chunks.append(job._replace(before=job.before + len(prefix_end)))
    return RowJobs(alone, trunks, chunks)


def _chunks(
    root: int, stops: list[int], subtree_end: Int32Array, prefix_end: Int32Array, max_rows: int
) -> list[Job]:
    """Masked jobs of the rows stops[0] .. stops[-1] - 1 of the tree at `root`."""
    jobs = []
    for start, stop in _row_chunks(stops, max_rows):
        own = np.flatnonzero(subtree_end[root:start] > start) + root
        prefix = np.flatnonzero(prefix_end > start)
        jobs.append(Job(start, stop, np.concatenate([prefix, own + len(prefix_end)])))
    return jobs


def _row_chunks(stops: list[int], max_rows: int) -> Iterator[tuple[int, int]]:
    """Cut the rows stops[0] .. stops[-1] - 1 into chunks of whole runs where they fit; a longer run
    gives equal chunks of its own."""
    start = previous = stops[0]
    for stop in stops[1:]:
        if stop - start > max_rows and previous > start:
            yield start, previous
            start = previous
        if stop - start > max_rows:
            num_cuts = -(-(stop - start) // max_rows)
            bounds = np.linspace(start, stop, num_cuts + 1).astype(np.int64).tolist()
            yield from pairwise(bounds)
            start = stop
        previous = stop
    if previous > start:
        yield start, previous
