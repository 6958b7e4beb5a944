"""Trees that do not fit: partitions of a pack, each with the gateway of ancestors that it reads.

    pack          r a b c d | x y | z        capacity 4, mode recompute
    partition 0   r a b c                    exports r a b c (the ancestors of d), z needs r
    partition 1           d   x y            gateway r a b c -> own d x y;  x hangs from b, say
    partition 2                     z        gateway r       -> own z

A gateway is *one root-to-leaf chain*: all ancestors of the partition's first token that lie in
earlier partitions. So a partition is itself a small pack (gateway keys, then own tokens) under the
same one-integer mask:

    joint index j = p (prefix), or P + own index      end = prefix_end + P, or subtree_end + P
    visible(q, k)  <=>  k <= q < end[k]               queries are the rows P .. P + Q - 1

Modes (design section 4):

- `recompute`: partitions are consecutive runs of the pack. The gateway of a run that starts at
  token j has depth(j) tokens, so the cheapest cuts are a shortest path over node boundaries:
  fewest partitions first, then the least sum of depth(j). Exported tokens are computed twice.
- `keep`: partitions are subtrees, several in one partition where they hang from one chain of one
  parent partition (a trunk's leaves). A subtree that is too large gives its heavy path; what hangs
  from it is cut off. No token is computed twice; the chain of partitions stays in memory.

A target belongs to the partition of its predictor, so a target at a cut is predicted in the parent.

Axis legend: T packed tokens, Q own tokens, P gateway tokens, E exported tokens, M targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import numpy as np

from vla_nav.errors import unknown_name
from vla_nav.tree.cuts import cheapest_cuts, cut_points, subtree_partitions
from vla_nav.tree.packing import PackedTree, pack
from vla_nav.tree.partition_cutter import Pad, PartitionCutter
from vla_nav.tree.partition_types import Partitioned, PartitionMode
from vla_nav.tree.prefix_tree import PrefixTree

_FIRST_PASS = 8  # capacities at once without gradients: a token then takes far less memory


def partition(
    trees: Sequence[PrefixTree],
    *,
    capacity: int,
    mode: PartitionMode = "recompute",
    whole: PackedTree | None = None,
    padded_length: Pad = int,
    padded_prefix: Pad = int,
) -> Partitioned:
    """Cut the pack of `trees` into partitions of at most `capacity` own tokens.

    whole: `pack(trees)`, where it is there already. padded_length, padded_prefix: lengths that an
    attention backend wants for own tokens and gateway keys. Raises `UserError` for an unknown
    mode, `ValueError` for a capacity below 1 and a padded pack.
    """
    if mode not in get_args(PartitionMode):
        raise unknown_name("training.partition.mode", mode, get_args(PartitionMode))
    if not isinstance(capacity, int) or not 1 <= capacity < 2**31:
        raise ValueError(f"a partition needs a capacity of 1 or more tokens, got {capacity}")
    whole = pack(trees) if whole is None else whole
    if len(whole.token_ids) != whole.num_tokens:
        raise ValueError("partitions are cut from a pack without padding")
    subtree_end, depth = whole.subtree_end.numpy(), whole.position_ids.numpy()
    if mode == "recompute":
        points = cut_points(trees, stride=max(1, capacity // 256))
        bounds = cheapest_cuts(points, whole.num_tokens, capacity, cost=depth[points])
        stops = [*bounds[1:], whole.num_tokens]
        owns = [np.arange(start, stop) for start, stop in zip(bounds, stops, strict=True)]
    else:
        owns = subtree_partitions(trees, subtree_end, depth, capacity)
    cutter = PartitionCutter(whole, owns, padded_length, padded_prefix)
    parts = tuple(cutter.partition(number) for number in range(len(owns)))
    first_pass = tuple(cutter.first_pass(_FIRST_PASS * capacity)) if mode == "recompute" else ()
    return Partitioned(mode, parts, first_pass, whole.num_tokens, len(whole.target_ids))
