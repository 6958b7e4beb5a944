"""What `training.partition` makes of a data set: how its long trees are cut, and what that costs.

    tree of T tokens, partition.tokens = Q        T <= Q   whole, not counted here
                                                  T > Q    ceil(T / Q) partitions or some more
    gateway keys       read from earlier partitions, summed over partitions
    computed twice     own tokens that others read (recompute); none (keep)
    alive at once      of the worst tree: own tokens whose activations are kept together

A tree is taken alone; in training a pack of several trees is cut, at the same places or between.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vla_nav.training.settings import PartitionSettings
from vla_nav.tree import PrefixTree
from vla_nav.tree.partition import partition
from vla_nav.tree.partition_types import Partitioned


def cut_tree(tree: PrefixTree, settings: PartitionSettings) -> Partitioned | None:
    """The partitions of a tree alone in its pack; None where it is computed whole."""
    if settings.tokens is None or tree.num_tokens <= settings.tokens:
        return None
    return partition([tree], capacity=settings.tokens, mode=settings.mode)


class PartitionCounts:
    """Adds up the cuts of many trees."""

    def __init__(self, settings: PartitionSettings) -> None:
        self._settings = settings
        self._num_trees = self._num_parts = self._most = 0
        self._tokens = self._gateway = self._twice = self._alive = 0

    def add(self, tree: PrefixTree) -> None:
        """Cut a tree, if it is longer than a partition."""
        cut = cut_tree(tree, self._settings)
        if cut is None:
            return
        self._num_trees += 1
        self._num_parts += len(cut.parts)
        self._most = max(self._most, len(cut.parts))
        self._tokens += cut.num_tokens
        self._gateway += cut.gateway_tokens
        self._twice += cut.recomputed_tokens
        self._alive = max(self._alive, cut.chain_tokens())

    def as_json(self) -> dict[str, Any] | None:
        """Plain values; None where nothing is ever cut."""
        if self._settings.tokens is None:
            return None
        return {
            "tokens": self._settings.tokens,
            "mode": self._settings.mode,
            "trees": self._num_trees,
            "partitions": self._num_parts,
            "most_partitions": self._most,
            "tree_tokens": self._tokens,
            "gateway_tokens": self._gateway,
            "recomputed_tokens": self._twice,
            "live_tokens": self._alive,
        }


def partitions_text(found: Mapping[str, Any]) -> str:
    """The counts in a line of the table."""
    setting = f"training.partition.tokens {found['tokens']:,}, {found['mode']}"
    if not found["trees"]:
        return f"none: no tree is longer ({setting})"
    share = found["recomputed_tokens"] / found["tree_tokens"]
    return (
        f"{found['trees']:,} trees in {found['partitions']:,}, at most {found['most_partitions']}; "
        f"{found['gateway_tokens']:,} gateway keys, {share:.1%} of their tokens computed twice, "
        f"{found['live_tokens']:,} alive at once ({setting})"
    )
