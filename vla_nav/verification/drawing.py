"""An episode's training sample as a picture: the tree, the pack, the loss weights, the mask.

    +-----------------------------------------------+
    | title: episode, layout, what sharing saves    |
    | legend in words                               |
    | 1 tree       depth ->, heavy path on top      |
    | 2 pack       one row, predictors, numbers     |
    | 3 weights    per target, on the pack's axis   |
    | 4 mask (q x k)    | 5 blocks of the mask      |
    +-----------------------------------------------+

One figure serves PNG, SVG and the page (`drawing_page.py`); boxes carry ids `tree-<node>-<token>`
and `pack-<node>-<token>`, so that the page can show what a node sees.
"""

from __future__ import annotations

import textwrap
from io import BytesIO

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure, SubFigure
from matplotlib.patches import Patch

from vla_nav.verification.drawing_mask import (
    DEAD,
    FULL,
    PARTIAL,
    mask_density,
    paint_blocks,
    paint_mask,
)
from vla_nav.verification.drawing_pack import (
    has_arcs,
    has_numbers,
    paint_numbers,
    paint_pack,
    paint_partitions,
    paint_weights,
)
from vla_nav.verification.drawing_tokens import Run, token_colours
from vla_nav.verification.drawing_tree import paint_tree, tree_shape
from vla_nav.verification.drawing_words import (
    Drawing,
    legend_entries,
    mask_words,
    pack_words,
    tree_words,
    weight_words,
)

WIDTH_IN, _DPI = 16.0, 150
_PANEL_PX = 0.95 * WIDTH_IN * _DPI


def figure_of(drawing: Drawing) -> Figure:
    """The whole picture; the size follows from the number of lanes."""
    tree, runs = drawing.tree, drawing.runs
    depth = int(tree.position_ids.max()) + 1
    lanes = tree_shape(tree, min_width=depth * 0.003, gap=depth * 0.003).num_lanes
    tree_in = float(np.clip(0.26 * lanes, 0.36 * min(lanes, 4), 11.0)) + 1.15
    row_in = 1.25 if has_arcs(tree) else 0.42
    row_in += 0 if drawing.partitions is None else 0.25
    pack_in = row_in + (1.5 if has_numbers(tree, _PANEL_PX) else 2.3)
    mask_in = 8.3
    heights = [1.15, tree_in, pack_in, 1.25, mask_in]
    figure = Figure(figsize=(WIDTH_IN, sum(heights)), dpi=_DPI, facecolor="white")
    FigureCanvasAgg(figure)
    top, part, low, weights, bottom = figure.subfigures(5, 1, height_ratios=heights)
    _head(top, drawing, runs)
    _caption(part, tree_in, "1  The tree", tree_words(drawing))
    axes = part.add_axes((0.02, 0.45 / tree_in, 0.96, 1 - 1.15 / tree_in))
    paint_tree(axes, tree, runs, drawing.texts, width_px=_PANEL_PX)
    _tidy(axes)
    _caption(low, pack_in, "2  The pack", pack_words(drawing))
    gap_in = 0.66
    axes = low.add_axes((0.045, 1 - (gap_in + row_in) / pack_in, 0.94, row_in / pack_in))
    paint_pack(axes, tree, runs, drawing.texts, width_px=_PANEL_PX)
    if drawing.partitions is not None:
        paint_partitions(axes, drawing.partitions)
    numbers_in = pack_in - gap_in - row_in - 0.12
    axes = low.add_axes((0.045, 0.06 / pack_in, 0.94, numbers_in / pack_in))
    paint_numbers(axes, tree, width_px=_PANEL_PX)
    _caption(weights, 1.25, "3  The loss weights", weight_words(drawing))
    axes = weights.add_axes((0.045, 0.06, 0.94, 0.56))
    paint_weights(axes, tree, width_px=_PANEL_PX)
    _masks(bottom, drawing, runs, mask_in)
    return figure


def png_bytes(figure: Figure) -> bytes:
    """The figure as PNG."""
    return _saved(figure, "png", {"Software": None})


def svg_bytes(figure: Figure) -> bytes:
    """The figure as SVG; the same figure gives the same bytes."""
    return _saved(figure, "svg", {"Date": None, "Creator": None, "Format": None, "Type": None})


def _head(part: SubFigure, drawing: Drawing, runs: list[Run]) -> None:
    part.text(0.02, 0.90, drawing.title, fontsize=13, weight="bold", va="top")
    part.text(0.02, 0.60, drawing.headline, fontsize=9, va="top", color="#33404d")
    handles = [Patch(facecolor=colour, label=words) for colour, words in legend_entries(drawing)]
    part.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0.015, 0.0), ncols=3, fontsize=7.5,
        frameon=False, borderaxespad=0.0, handlelength=1.2, columnspacing=2.0,
    )  # fmt: skip


def _masks(part: SubFigure, drawing: Drawing, runs: list[Run], height_in: float) -> None:
    tree, colours = drawing.tree, token_colours(runs)
    density, edges = mask_density(tree.subtree_end)
    blocks = drawing.blocks
    side_in = height_in - 1.35
    words = mask_words(drawing)
    for place, title in enumerate(("4  The mask: who sees whom", "5  What a kernel does with it")):
        left = 0.02 + 0.5 * place
        part.text(left, 1 - 0.12 / height_in, title, fontsize=11, weight="bold", va="top")
        text = "\n".join(textwrap.wrap(words[place], 118))
        part.text(left, 1 - 0.38 / height_in, text, fontsize=8, va="top", color="#33404d")
        axes = part.add_axes(
            (left + 0.01, 0.28 / height_in, side_in / WIDTH_IN, side_in / height_in)
        )
        if place == 0:
            paint_mask(axes, density, edges, colours)
        else:
            paint_blocks(axes, density, edges, blocks, colours)
            names = ((FULL, "full"), (PARTIAL, "partial"), (DEAD, "dead"))
            axes.legend(
                handles=[Patch(facecolor=c, edgecolor="#c8ccd2", label=n) for c, n in names],
                loc="upper right", bbox_to_anchor=(0.99, 0.95), fontsize=8, framealpha=1.0,
            )  # fmt: skip


def _caption(part: SubFigure, height_in: float, title: str, words: str) -> None:
    """A panel's number and name, and under it how to read it."""
    part.text(0.02, 1 - 0.1 / height_in, title, fontsize=11, weight="bold", va="top")
    text = "\n".join(textwrap.wrap(words, 250))
    part.text(0.02, 1 - 0.31 / height_in, text, fontsize=8, va="top", color="#33404d")


def _tidy(axes: matplotlib.axes.Axes) -> None:
    axes.tick_params(axis="x", labelsize=7)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _saved(figure: Figure, kind: str, metadata: dict[str, None]) -> bytes:
    target = BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "vla_nav", "svg.fonttype": "path"}):
        figure.savefig(target, format=kind, metadata=metadata, dpi=_DPI)
    return target.getvalue()
