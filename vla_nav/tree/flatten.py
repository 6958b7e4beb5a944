"""Tree -> flat paths with their supervision: the arbiter of weights and the oracle's input.

    r - a - b - x         path_token_index  of x:  r a b x
    |                                       of y:  r y
    y                     flatten           the same paths, in pack order of their ends

`PrefixTree.from_paths(flatten(tree))` is `tree`; the multiset of flat paths is the one given.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from vla_nav.tree.prefix_tree import PrefixTree
from vla_nav.tree.types import BoolArray, IntArray, Path, Segment


def flatten(tree: PrefixTree) -> tuple[Path, ...]:
    """The K flat paths of `tree`; every path has its own segments, cut where supervision changes.

    Costs O(sum of path lengths): for tests, checks and flat baselines, not for training.
    """
    return tuple(_flat_path(tree, number) for number in range(tree.num_paths))


def path_token_index(tree: PrefixTree, path: int) -> IntArray:
    """Pack indices (n,) of the tokens of path number `path`, root to leaf."""
    runs = []
    node = int(tree.path_node[path])
    while node >= 0:
        runs.append(np.arange(tree.node_start[node], tree.node_start[node + 1]))
        node = int(tree.node_parent[node])
    return np.concatenate(runs[::-1])


def path_supervision(tree: PrefixTree, path: int) -> BoolArray:
    """(n,) which tokens of path number `path` that path supervises."""
    index = path_token_index(tree, path)
    is_supervised = np.zeros(len(index), dtype=np.bool_)
    span = int(tree.path_span[path])
    while span >= 0:
        stop = int(tree.position_ids[tree.span_stop[span] - 1]) + 1
        is_supervised[stop - int(tree.span_length[span]) : stop] = True
        span = int(tree.span_previous[span])
    return is_supervised


def _flat_path(tree: PrefixTree, number: int) -> Path:
    index = path_token_index(tree, number)
    is_supervised = path_supervision(tree, number)
    log_probs = None if tree.log_probs is None else tree.log_probs[index]
    advantage = None if tree.path_advantage is None else float(tree.path_advantage[number])
    cuts = [0, *(np.flatnonzero(is_supervised[1:] != is_supervised[:-1]) + 1).tolist(), len(index)]
    segments = []
    for start, stop in pairwise(cuts):
        run = index[start:stop]
        segments.append(
            Segment(
                tree.token_ids[run],
                tree.frame_index[run],
                tree.patch_index[run],
                bool(is_supervised[start]),
                None if log_probs is None else log_probs[start:stop],
            )
        )
    return Path(tuple(segments), float(tree.path_coefficient[number]), advantage=advantage)
