"""What every tree of a run will hold, without building them all: what costs are predicted from.

    tokens       c bound, where the bound is that of `RecordedTrees.lengths`
    pairs        a bound^2 + b bound, a and b >= 0: what repeats at every step attends to all
                 that is before it (full, pooled) or to a window
    predictors   d labels        frames   e steps

with a to e fitted to a sample of trees, evenly over the lengths, that is built and counted. The
sample's own error is kept: `vla-nav stats` counts every tree and needs no estimate.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from scipy.optimize import nnls

from vla_nav.training.cost_model import TreeCounts
from vla_nav.tree import PrefixTree, tree_stats

_SAMPLE = 48  # trees; building one takes milliseconds


class Built(NamedTuple):
    """A tree, as collections of trees give it."""

    tree: PrefixTree
    rows: np.ndarray


class Trees(Protocol):
    """A collection that builds trees when asked, and knows cheap facts about all of them."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Built: ...

    def lengths(self) -> np.ndarray:
        """(E,) bounds of tokens."""
        ...

    def work(self) -> tuple[np.ndarray, np.ndarray]:
        """(E,) steps and (E,) labels of every tree's episodes."""
        ...


class Estimate(NamedTuple):
    """counts: of every tree. pair_error: relative, mean over the sample."""

    counts: TreeCounts
    pair_error: float


def estimate_counts(trees: Trees, lengths: np.ndarray) -> Estimate:
    """The counts of all trees from a sample of them. lengths: (E,) what `trees.lengths()` gave."""
    bounds = np.asarray(lengths, dtype=np.float64)
    steps, labels = trees.work()
    by_length = np.argsort(bounds, kind="stable")
    places = np.linspace(0, len(bounds) - 1, min(_SAMPLE, len(bounds))).round().astype(int)
    sample = by_length[np.unique(places)]
    real = TreeCounts.of([tree_stats(trees[int(index)].tree) for index in sample])
    terms = np.stack([bounds**2, bounds], axis=1)
    tokens = bounds * _ratio(bounds[sample], real.tokens)
    pairs = terms @ _fitted(terms[sample], real.pairs)
    predictors = labels * _ratio(labels[sample], real.predictors)
    frames = steps * _ratio(steps[sample], real.frames)
    error = float(np.mean(np.abs(pairs[sample] - real.pairs) / real.pairs))
    return Estimate(TreeCounts(tokens, pairs, predictors, frames), error)


def _fitted(terms: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Coefficients at least 0 with the least relative squared error."""
    scaled = terms / values[:, None]
    unit = scaled.mean(axis=0)
    found = nnls(scaled / unit, np.ones(len(values)))[0] / unit
    return np.array([float(f"{value:.6g}") for value in found])  # alike on every processor


def _ratio(counted: np.ndarray, values: np.ndarray) -> float:
    return float(f"{values.sum() / max(counted.sum(), 1):.6g}")
