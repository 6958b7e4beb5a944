"""Partitions of odd sizes: own tokens behind the keys of a chain of ancestors.

cut(packed, 3)          own tokens are all but the first 3 of the trunk, which become keys
r a b | c x | y z       prefix_end = subtree_end[:3] - 3

random_partition(...)   a forest whose trees hang from an invented chain of any length
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import torch

from tests.attention.packs import LAYOUTS, caterpillar, chain, random_trees
from vla_nav.tree import PackedTree, pack


@cache
def forest(size: int, seed: int) -> PackedTree:
    """Episodes and small random trees filled up to `size` tokens, with padding where none fits."""
    trees = []
    room = size
    for i, num_steps in enumerate((150, 60, 25, 8, 2)):
        history, actions = LAYOUTS[(seed + i) % len(LAYOUTS)]
        tree = caterpillar(num_steps, history, actions, seed=seed)
        while tree.num_tokens <= room - 60:
            trees.append(tree)
            room -= tree.num_tokens
    return pack([*trees, *random_trees(room, seed)] or [chain(1)], pad_to=size)


def trunk_length(packed: PackedTree) -> int:
    """Tokens up to the first leaf."""
    index = torch.arange(1, len(packed.subtree_end) + 1)
    return int((packed.subtree_end == index).nonzero()[0]) + 1


def cut(packed: PackedTree, num_prefix: int, *, padding: int = 0) -> PackedTree:
    """The tokens behind the first `num_prefix` (of the first tree's trunk) as a partition."""
    assert num_prefix <= trunk_length(packed)
    end = packed.subtree_end - num_prefix
    unseen = torch.zeros(padding, dtype=torch.int32)
    return replace(
        packed,
        token_ids=packed.token_ids[num_prefix:],
        subtree_end=end[num_prefix:],
        prefix_end=torch.cat([end[:num_prefix], unseen]),
    )


def random_partition(
    num_tokens: int, num_prefix: int, seed: int, *, padding: int = 0
) -> PackedTree:
    """A forest of `num_tokens` behind a chain whose tokens are seen by the first trees up to
    somewhere (its first quarter by all), and `padding` keys."""
    packed = forest(num_tokens, seed)
    last_rows = packed.tree_start[1:].numpy()  # the row behind each tree
    rng = np.random.default_rng(seed)
    ends = np.sort(rng.choice(last_rows, num_prefix))[::-1].copy()
    ends[: (num_prefix + 3) // 4] = last_rows[-1]
    ends = np.concatenate([ends, np.zeros(padding)]).astype(np.int32)
    return replace(packed, prefix_end=torch.from_numpy(ends))
