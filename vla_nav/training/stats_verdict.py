"""Whether a data set is worth packing under a layout, in one sentence with its numbers.

    FLOP bound below `worth_from`           no: short episodes, or a history that shares nothing
    the trees are chains                    yes, but a plain causal sequence holds the same tokens
    otherwise                               yes

The FLOP bound is the limit on the speed of a step against flat paths; of it a GPU reaches a part.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from vla_nav.training.stats_cost import hours_text

_FEW_STEPS = 4.0
_CHAIN = 0.999  # of a tree's tokens on its longest path
_WHY = {
    "window": "a window moves with every step, so its paths share little but the instruction",
    "uniform": "the frames of a uniform history change with every step",
    "pooled": "the full frames at the leaves are most of a path, and only pooled ones are shared",
    "summary": "behind a summary a path shares nothing with the paths before it",
    "full": "the instruction stands behind the frames of every path",
}


class Verdict(NamedTuple):
    """`kind`: worth, chain or not_worth. text: one sentence."""

    kind: str
    text: str

    @property
    def is_worth_packing(self) -> bool:
        """Whether trees save a step's cost."""
        return self.kind != "not_worth"


def verdict(stats: Mapping[str, Any], *, worth_from: float) -> Verdict:
    """The verdict on the numbers of `data_stats`. worth_from: the least FLOP bound that pays."""
    bound, cost = stats["flop_bound_with_vision"], stats["cost"]
    steps, trees = stats["steps_per_episode"], stats["trees"]
    name, layout = stats["layout_name"], stats["layout"]
    price = (
        f"{hours_text(cost['gpu_hours_per_epoch'])} instead of "
        f"{hours_text(cost['gpu_hours_per_epoch_flat'])} an epoch on one {cost['gpu']['name']} "
        f"at {cost['gpu']['mfu']:g} MFU"
    )
    saves = (
        f"{trees:,} trees of {steps:.1f} steps an episode share {stats['por']:.1%} of the tokens "
        f"of flat paths and need {bound:.1f} x fewer FLOPs ({price})"
    )
    if bound < worth_from:
        why = (
            f"episodes have only {steps:.1f} steps"
            if steps < _FEW_STEPS
            else _WHY[layout["history"]]
        )
        better = _better(stats, worth_from)
        return Verdict(
            "not_worth",
            f"Not worth packing under {name}: trees save {bound:.2f} x in FLOPs, less than "
            f"{worth_from:g} x, because {why}{better}.",
        )
    if stats["chain_share"] >= _CHAIN:
        return Verdict(
            "chain",
            f"Worth sharing under {name}, by one plain causal sequence per tree: {saves}, and "
            f"{stats['chain_share']:.1%} of a tree's tokens lie on one path.",
        )
    return Verdict("worth", f"Worth packing under {name}: {saves}.")


def _better(stats: Mapping[str, Any], worth_from: float) -> str:
    """The best other layout, where all were counted and one pays."""
    rows = stats.get("layouts", ())
    best = max(rows, key=lambda row: row["flop_bound_with_vision"], default=None)
    if best is None or best["flop_bound_with_vision"] < worth_from:
        return ""
    return (
        f"; {best['layout']} with a tree per {best['group']} saves "
        f"{best['flop_bound_with_vision']:.1f} x"
    )
