"""How much a layout's tree holds at most, from the number of steps alone.

What step t adds to the tree of the steps before it (F frames at full count, P pooled, X executed,
all of one episode; a context that is rewritten is added whole from where it differs):

    full            F                      X
    pooled          F  P                   X
    window W        t < W: F               X           t >= W: W F     (W - 1) X
    uniform n       t < n: F               X           t >= n: its frames behind the longest
                                                       beginning that an earlier step had
    summary of s    F                      X           where s is new: (t - s + 1) F  (t - s) X
                                                       and the summary itself

Exact for one instruction and distinct frames; equal frames only make the tree smaller.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from vla_nav.tree.contexts import seen_steps, summary_step
from vla_nav.tree.layout import Layout
from vla_nav.tree.types import IntArray, Segment


class LayoutCounts(NamedTuple):
    """Segments in the tree of an episode's first S steps, each (num_steps + 1,) int64, by S.

    full, pooled: frames at that token count. executed: past actions. summary_tokens: tokens, all
    summaries together.
    """

    full: IntArray
    pooled: IntArray
    executed: IntArray
    summary_tokens: IntArray


def layout_counts(
    layout: Layout, num_steps: int, summaries: Mapping[int, Segment] | None = None
) -> LayoutCounts:
    """What the tree of S = 0 .. num_steps steps holds besides root, instructions and labels."""
    added = np.zeros((4, num_steps + 1), dtype=np.int64)
    full, pooled, executed, summary_tokens = added
    steps = np.arange(num_steps)
    full[1:] = 1
    executed[1:] = steps > 0
    if layout.history == "pooled":
        pooled[1:] = steps > 0
    elif layout.history == "window":
        is_moving = steps >= layout.window
        full[1:][is_moving] = layout.window
        executed[1:][is_moving] = layout.window - 1
    elif layout.history == "uniform":
        full[1:], executed[1:] = _uniform(layout, num_steps)
    elif layout.history == "summary":
        known = summaries or {}
        last = None
        for t in range(num_steps):
            start = summary_step(layout, t, known)
            if start is not None and start != last:
                full[t + 1], executed[t + 1] = t - start + 1, t - start
                summary_tokens[t + 1] = len(known[start])
            last = start
    if layout.actions == "hidden":
        executed[:] = 0
    return LayoutCounts(*np.cumsum(added, axis=1))


def _uniform(layout: Layout, num_steps: int) -> tuple[list[int], list[int]]:
    """New frames and new executed actions of every step, by walking the frames as a trie.

    n = 3:  t = 2: 0 1 2     t = 3: 0 2 3     t = 4: 0 2 4     new frames: ., 2, 1
    """
    root: dict[int, Any] = {}
    full, executed = [], []
    for t in range(num_steps):
        node, num_new, num_left = root, 0, 0
        for i in seen_steps(layout, t):
            if i not in node:
                node[i] = {}
                num_new += 1
            if i < t:
                was_left = -1 in node[i]
                node[i].setdefault(-1, {})  # the action executed there
                num_left += not was_left
                node = node[i][-1]
        full.append(num_new)
        executed.append(num_left)
    return full, executed
