"""The pack as one row of tokens, and under it, on the same axis, what the model and loss are told.

    predictor arcs      .---------.          the parent's last token predicts a branch's first
    pack              r a b x y | padding
    partitions        0 0 0 1 1          where it is computed in several
    position_ids      0 1 2 3 1              depth on the path: falls back where a branch begins
    subtree_end       5 4 4 4 5              where the last token stands that sees this one
    weight            . . 1 1 2              w of every target

Short packs show the numbers, long ones curves.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path as Curve

from vla_nav.tree import PrefixTree
from vla_nav.tree.partition_types import Partitioned
from vla_nav.tree.types import BoolArray
from vla_nav.verification.drawing_tokens import (
    COLOURS,
    INK,
    LABEL,
    TYPE_PT,
    Run,
    box_text,
    run_colour,
)

_NUMBER_PX = 15  # tokens at least so wide carry their numbers
_SEPARATED_PX = 6  # nodes at least so wide get a white line before them
_ARCS = 400  # more branches than that would be a blot
_LINE = "#5c6470"
_POSITION, _END = "#20639b", "#9b5de5"
_BARS = ("#33404d", "#7b8794")  # of partitions, in turns


def has_numbers(tree: PrefixTree, width_px: float) -> bool:
    """Whether the pack is short enough for a number at every token."""
    return width_px / tree.num_tokens >= _NUMBER_PX


def has_arcs(tree: PrefixTree) -> bool:
    """Whether there are predictors to draw arcs from, and few enough of them."""
    return 0 < int(far_targets(tree).sum()) <= _ARCS


def far_targets(tree: PrefixTree) -> BoolArray:
    """(M,) whether the token that predicts a target stands elsewhere than right before it."""
    return tree.predictor_index != tree.target_index - 1


def paint_pack(
    axes: Axes, tree: PrefixTree, runs: list[Run], texts: Mapping[int, str], *, width_px: float
) -> None:
    """The row of tokens, and an arc from predictor to target wherever a node opens with one."""
    per_token = width_px / tree.num_tokens
    for run in runs:
        box = Rectangle((run.start, 0), run.stop - run.start, 1, facecolor=run_colour(run))
        box.set(gid=f"pack-{run.node}-{run.start}", linewidth=0)
        axes.add_patch(box)
        length = run.stop - run.start
        if words := box_text(run, texts[run.start], length * per_token):
            axes.text(
                run.start + length / 2, 0.5, words, fontsize=TYPE_PT, color=INK[run.kind],
                ha="center", va="center", clip_on=True,
            )  # fmt: skip
    wide = np.diff(tree.node_start) * per_token >= _SEPARATED_PX
    axes.vlines(tree.node_start[:-1][wide], 0, 1, colors="white", linewidths=0.8)
    is_far = far_targets(tree)
    ends = (tree.predictor_index[is_far] + 0.5, tree.target_index[is_far] + 0.5)
    arcs = list(zip(*(end.tolist() for end in ends), strict=True))
    longest = max((stop - start for start, stop in arcs), default=1)
    for start, stop in arcs if has_arcs(tree) else []:
        top = 1 + 2.4 * float(np.sqrt((stop - start) / longest))
        curve = Curve(
            [(start, 1), (start, top), (stop, top), (stop, 1)],
            [Curve.MOVETO, Curve.CURVE4, Curve.CURVE4, Curve.CURVE4],
        )
        axes.add_patch(
            PathPatch(curve, facecolor="none", edgecolor=COLOURS[LABEL], linewidth=0.6, alpha=0.7)
        )
    axes.set_ylim(0, 3.2 if has_arcs(tree) else 1)
    _frame(axes, tree, "pack")


def paint_partitions(axes: Axes, cut: Partitioned) -> None:
    """A numbered bar under the own tokens of every partition; call it after `paint_pack`."""
    for part in cut.parts:
        own = part.own.numpy()
        starts = own[np.diff(own, prepend=-2) != 1]
        stops = own[np.diff(own, append=own[-1] + 2) != 1] + 1
        colour = _BARS[part.number % len(_BARS)]
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            bar = Rectangle((start, -0.5), stop - start, 0.4, facecolor=colour, linewidth=0)
            bar.set(gid=f"partition-{part.number}-{start}")
            axes.add_patch(bar)
            axes.text(
                (start + stop) / 2, -0.3, str(part.number), fontsize=6, color="white",
                ha="center", va="center", clip_on=True,
            )  # fmt: skip
    axes.set_ylim(-0.55, axes.get_ylim()[1])


def paint_numbers(axes: Axes, tree: PrefixTree, *, width_px: float) -> None:
    """position_ids and subtree_end of every token: numbers where they fit, else curves."""
    index = np.arange(tree.num_tokens)
    if has_numbers(tree, width_px):
        for row, values, colour in (
            (1, tree.position_ids, _POSITION),
            (0, tree.subtree_end, _END),
        ):
            for place, value in zip(index.tolist(), values.tolist(), strict=True):
                axes.text(
                    place + 0.5, row + 0.5, str(value), fontsize=5.5, color=colour, rotation=90,
                    ha="center", va="center",
                )  # fmt: skip
        axes.set_ylim(0, 2)
        _frame(axes, tree, "")
        axes.set_yticks([0.5, 1.5], ["subtree_end", "position_ids"], fontsize=7)
        axes.vlines(tree.node_start, 0, 2, colors="#e3e6ea", linewidths=0.6)
        return
    axes.plot(index, tree.position_ids, color=_POSITION, linewidth=1, drawstyle="steps-post")
    axes.plot(index, tree.subtree_end, color=_END, linewidth=1, drawstyle="steps-post")
    _frame(axes, tree, "")
    axes.set_ylim(0, tree.num_tokens * 1.02)
    axes.tick_params(axis="y", labelsize=6)
    for height, name, colour in ((0.97, "subtree_end", _END), (0.03, "position_ids", _POSITION)):
        axes.text(
            -0.003, height, name, color=colour, fontsize=7, ha="right",
            va="top" if height > 0.5 else "bottom", transform=axes.transAxes,
        )  # fmt: skip


def paint_weights(axes: Axes, tree: PrefixTree, *, width_px: float) -> None:
    """The loss weight of every target, at its place in the pack; signed sums of advantages too."""
    width = max(1.0, 2.5 * tree.num_tokens / width_px)
    places = tree.target_index + 0.5
    policy = tree.policy
    if policy is None:
        edges = "white" if width_px / tree.num_tokens > 4 else "none"
        axes.bar(
            places, tree.loss_weights, width=width, color=COLOURS[LABEL], edgecolor=edges,
            linewidth=0.5,
        )  # fmt: skip
        low, high = min(0.0, *tree.loss_weights), max(0.0, *tree.loss_weights)
    else:
        axes.bar(places, policy.positive, width=width, color="#2a9d8f")
        axes.bar(places, policy.negative, width=width, color=COLOURS[LABEL])
        low, high = float(policy.negative.min()), float(policy.positive.max())
    axes.axhline(0, color=_LINE, linewidth=0.6)
    span = (high - low) or 1.0
    axes.set_ylim(low - 0.05 * span * (low < 0), high + 0.15 * span)
    _frame(axes, tree, "")
    ticks = sorted({low, 0.0, high})
    axes.set_yticks(ticks, [f"{tick:.3g}" for tick in ticks], fontsize=7)
    axes.set_ylabel("weight" if policy is None else "c · A", fontsize=7)


def _frame(axes: Axes, tree: PrefixTree, name: str) -> None:
    """The common x axis, without decoration."""
    axes.set_xlim(0, tree.num_tokens)
    axes.set_xticks([])
    axes.set_yticks([0.5] if name else [], [name] if name else [], fontsize=7)
    axes.tick_params(length=0)
    for side in ("top", "right", "bottom", "left"):
        axes.spines[side].set_visible(False)
