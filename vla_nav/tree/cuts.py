"""Where to cut a pack: cheapest consecutive runs, or subtrees around heavy paths.

    pack in pre-order     [ trunk ........ ][leaf_9][leaf_8] ... [leaf_0]      heaviest child first

    consecutive runs      [ run 0  ][ run 1     ][ run 2      ][ run 3  ]      fewest runs, then the
                                                                               least sum of costs
    heavy path + hanging  [ trunk ........ ] then groups of leaves             a partition of what
                          [leaf_9 .. leaf_5][leaf_4 .. leaf_0]                 hangs from one chain

In pre-order with the heaviest child first, a heavy path is contiguous, and what hangs from it
follows, the deepest first; so every partition is an ascending list of pack indices, and the
ancestors that it lacks are one chain: those of its first token.

Axis legend: T packed tokens, C cut points.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from vla_nav.tree.prefix_tree import PrefixTree
from vla_nav.tree.types import IntArray


def cut_points(trees: Sequence[PrefixTree], *, stride: int) -> IntArray:
    """(C,) ascending pack indices: the starts of all nodes, and every `stride` tokens of a longer
    one."""
    points: list[IntArray] = []
    offset = 0
    for tree in trees:
        starts = tree.node_start[:-1]
        pieces = -(-np.diff(tree.node_start) // stride)  # cut points of each node
        first = np.repeat(np.cumsum(pieces) - pieces, pieces)
        within = np.arange(int(pieces.sum())) - first
        points.append(np.repeat(starts, pieces) + within * stride + offset)
        offset += tree.num_tokens
    return np.concatenate(points)


def cheapest_cuts(starts: IntArray, stop: int, capacity: int, *, cost: IntArray) -> list[int]:
    """Where runs begin, so that no run is longer than `capacity`: the fewest runs, and of these
    the least sum of cost[i] over the starts[i] chosen. O(C), by a sliding window minimum.

    starts (C,) ascending, starts[0] the first run's; no gap between neighbours (or to `stop`) may
    exceed `capacity`. cost (C,) >= 0.
    """
    ends = [*starts.tolist(), stop]
    costs = cost.tolist()
    best: list[tuple[int, int]] = [(0, 0)]  # (runs, cost) of the cheapest cover of ends[0]..ends[i]
    came_from = [0]
    window: deque[tuple[tuple[int, int], int]] = deque()
    for i in range(1, len(ends)):
        runs, paid = best[i - 1]
        entry = (runs + 1, paid + costs[i - 1])
        while window and window[-1][0] > entry:
            window.pop()
        window.append((entry, i - 1))
        while ends[i] - ends[window[0][1]] > capacity:
            window.popleft()
        best.append(window[0][0])
        came_from.append(window[0][1])
    chosen = []
    i = len(ends) - 1
    while i > 0:
        i = came_from[i]
        chosen.append(ends[i])
    return chosen[::-1]


def subtree_partitions(
    trees: Sequence[PrefixTree], subtree_end: IntArray, depth: IntArray, capacity: int
) -> list[IntArray]:
    """Partitions as ascending pack indices, parents before children, each child chain directly
    behind its parent (depth-first).

    subtree_end, depth: (T,) of the pack of `trees`. A subtree that fits is kept whole, several of
    them share a partition where they hang from one heavy path; a larger one gives its heavy path.
    """
    points = cut_points(trees, stride=max(1, capacity // 256))
    stops = [*points[1:].tolist(), len(subtree_end)]
    stop_of = dict(zip(points.tolist(), stops, strict=True))  # node start -> end of its own tokens
    partitions: list[IntArray] = []
    roots = _siblings(0, len(subtree_end), subtree_end)
    stack = _grouped(roots, subtree_end, depth, capacity)[::-1]
    while stack:
        group = stack.pop()
        start = group[0]
        if len(group) > 1 or subtree_end[start] - start <= capacity:
            runs = [np.arange(root, subtree_end[root], dtype=np.int64) for root in group]
            partitions.append(np.concatenate(runs))
            continue
        end = int(subtree_end[start])
        stop = stop_of[start]
        # The next node in pre-order is the heaviest child where the walk has not come to a leaf.
        while stop < subtree_end[stop - 1] and stop_of[stop] - start <= capacity:
            stop = stop_of[stop]
        partitions.append(np.arange(start, stop, dtype=np.int64))
        hanging = _siblings(stop, end, subtree_end)
        stack.extend(_grouped(hanging, subtree_end, depth, capacity)[::-1])
    return partitions


def _siblings(start: int, stop: int, subtree_end: IntArray) -> list[int]:
    """The subtrees that fill start .. stop - 1, one behind the other."""
    roots = []
    while start < stop:
        roots.append(start)
        start = int(subtree_end[start])
    return roots


def _grouped(
    roots: list[int], subtree_end: IntArray, depth: IntArray, capacity: int
) -> list[list[int]]:
    """Subtrees at `roots` (in pack order) that share a partition: large ones alone, the others in
    the fewest groups with the shortest gateways."""
    small = [root for root in roots if subtree_end[root] - root <= capacity]
    groups = [[root] for root in roots if subtree_end[root] - root > capacity]
    if small:
        sizes = np.array([subtree_end[root] - root for root in small], dtype=np.int64)
        starts = np.cumsum(sizes) - sizes
        bounds = cheapest_cuts(starts, int(sizes.sum()), capacity, cost=depth[small])
        first = [*np.searchsorted(starts, bounds).tolist(), len(small)]
        groups += [small[low:high] for low, high in pairwise(first)]
    return groups
