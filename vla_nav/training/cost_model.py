"""What a pack costs, before it is computed: a sum over what it holds.

    cost = c1 tokens + c2 pairs + c3 predictors + c4 frames                    of its trees
         + c5 + c6 partitions + c7 recomputed tokens                           of the pack

Coefficients are FLOPs of forward and backward (`from_flops`, the default: no constant, nothing for
a cut) or seconds fitted to measured steps (`vla_nav.training.cost_fit`). Only ratios of costs
matter to whoever balances.

Axis legend: E trees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from vla_nav.training.settings import PartitionSettings
from vla_nav.tree import FlopModel, TreeStats

Array = np.ndarray
_UNITS = 1e9  # of a mean tree: a token of it is still many


class TreeCounts(NamedTuple):
    """What trees hold, each (E,): tokens, attended pairs, supervised predictors, unique frames."""

    tokens: Array
    pairs: Array
    predictors: Array
    frames: Array

    @classmethod
    def of(cls, stats: Sequence[TreeStats]) -> TreeCounts:
        """Of trees that are built and counted."""
        names = ("tokens", "pairs", "predictors", "frames")
        rows = [[getattr(one, f"num_tree_{name}") for name in names] for one in stats]
        return cls(*np.array(rows, dtype=np.float64).reshape(-1, len(names)).T)

    def take(self, places: Array) -> TreeCounts:
        """Of some of the trees."""
        return TreeCounts(*(column[places] for column in self))


class PackCounts(NamedTuple):
    """What packs hold, numbers or arrays of one shape; the terms of a cost in their order."""

    tokens: Array
    pairs: Array
    predictors: Array
    frames: Array
    packs: Array
    partitions: Array
    recomputed_tokens: Array


@dataclass(frozen=True, slots=True)
class CostModel:
    """Coefficients, each at least 0. source: where they are from, for people."""

    per_token: float = 1.0
    per_pair: float = 0.0
    per_predictor: float = 0.0
    per_frame: float = 0.0
    per_pack: float = 0.0
    per_partition: float = 0.0
    per_recomputed_token: float = 0.0
    source: str = "tokens"

    @classmethod
    def from_flops(cls, flops: FlopModel) -> CostModel:
        """FLOPs of a step; a token that is computed again costs one more forward."""
        return cls(
            per_token=6.0 * flops.linear_parameters + flops.recurrent_flops,
            per_pair=12.0 * flops.num_layers * flops.num_heads * flops.head_dim,
            per_predictor=6.0 * flops.head_parameters,
            per_frame=flops.frame_flops,
            per_recomputed_token=2.0 * flops.linear_parameters + flops.recurrent_flops / 3,
            source="FLOPs",
        )

    @property
    def coefficients(self) -> Array:
        """(7,) in the order of `PackCounts`."""
        return np.array(
            [
                *(self.per_token, self.per_pair, self.per_predictor, self.per_frame),
                *(self.per_pack, self.per_partition, self.per_recomputed_token),
            ]
        )

    def of_trees(self, counts: TreeCounts) -> Array:
        """(E,) what every tree adds to the cost of its pack."""
        return sum(c * column for c, column in zip(self.coefficients[:4], counts, strict=True))


class PackCosts:
    """Costs of packs of given trees under a model, in whole numbers of one unit.

    Every rank decides by itself who computes what and must decide alike on whatever processor, so
    costs are integers and sums of them exact. trees, tokens: (E,) int64 what every tree adds to
    its pack, and to the tokens of its budget. bounds: (E,) of the latter, where `counts` are
    estimates that may be less.
    """

    def __init__(
        self,
        model: CostModel,
        counts: TreeCounts,
        partition: PartitionSettings | None = None,
        *,
        bounds: Array | None = None,
    ) -> None:
        costs = model.of_trees(counts)
        unit = float(f"{max(costs.mean(), 1e-300) / _UNITS:.6g}")
        self.unit = unit
        self.trees: Array = np.rint(costs / unit).astype(np.int64)
        self.tokens: Array = np.rint(counts.tokens if bounds is None else bounds).astype(np.int64)
        self._own = np.rint(model.coefficients[4:] / unit).astype(np.int64)
        self._partition = partition or PartitionSettings()

    def pack(self, trees: Array, tokens: Array) -> Array:
        """The cost of packs from the sums over their trees, of any one shape."""
        parts, again = passes(tokens, self._partition)
        return trees + self._own[0] + self._own[1] * parts + self._own[2] * again

    def of(self, packs: Sequence[Sequence[int]]) -> Array:
        """(P,) the cost of packs given as tree numbers."""
        trees, tokens = (
            np.array([column[list(pack)].sum() for pack in packs])
            for column in (self.trees, self.tokens)
        )
        return self.pack(trees, tokens)


def passes(tokens: Array, partition: PartitionSettings) -> tuple[Array, Array]:
    """Partitions of packs with so many tokens, 0 where they are computed whole, and how many
    tokens are computed twice: at most all but the last partition's."""
    tokens = np.asarray(tokens)
    if partition.tokens is None:
        return np.zeros_like(tokens), np.zeros_like(tokens)
    is_cut = tokens > partition.tokens
    parts = np.where(is_cut, -(-tokens // partition.tokens), 0)
    again = tokens - partition.tokens if partition.mode == "recompute" else 0
    return parts, np.where(is_cut, again, 0)
