"""The numbers of `vla-nav stats` as pictures, PNG and SVG.

lengths   how many episodes have how many steps; how many trees have how many tokens,
          with the token budget of a pack
layouts   POR, and the token and FLOP bound (logarithmic) of every layout, best first
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vla_nav.files import atomic_path

_BLUE, _ORANGE, _GREY = "#3b6fb6", "#e0802b", "#8a8f98"
_MOST_BINS = 40


def histogram(values: Sequence[int]) -> dict[str, list[float]]:
    """Edges and counts of at most 40 bins of whole numbers; plain values."""
    least, most = int(min(values)), int(max(values))
    num_bins = min(_MOST_BINS, most - least + 1)
    counts, edges = np.histogram(values, bins=num_bins, range=(least, most + 1))
    return {"edges": edges.tolist(), "counts": counts.tolist()}


def write_pictures(stats: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write the pictures of one split into `folder`; their paths."""
    figures = {"lengths": lengths_figure(stats)}
    if stats.get("layouts"):
        figures["layouts"] = layouts_figure(stats)
    paths = []
    for name, figure in figures.items():
        for ending in ("png", "svg"):
            path = folder / f"{name}.{ending}"
            with atomic_path(path) as temporary:
                temporary.write_bytes(_bytes(figure, ending))
            paths.append(path)
    return paths


def lengths_figure(stats: Mapping[str, Any]) -> Figure:
    """Histograms of steps per episode and tokens per tree."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    steps, tokens = figure.subplots(1, 2)
    figure.suptitle(f"{stats['split']}: {stats['episodes']:,} episodes, {stats['layout_name']}")
    _bars(steps, stats["lengths"]["steps"], _BLUE)
    mean = stats["steps_per_episode"]
    _mark(steps, mean, f"mean {mean:.1f}", _GREY)
    steps.set(xlabel="steps", ylabel="episodes")
    _bars(tokens, stats["lengths"]["tokens"], _ORANGE)
    p95, budget = stats["tokens_per_tree"]["p95"], stats["pack_tokens"]
    _mark(tokens, p95, f"95 % {p95:,.0f}", _GREY)
    if budget is not None:
        _mark(tokens, budget, f"pack {budget:,}", "black")
    tokens.set(xlabel="tokens of a tree", ylabel="trees")
    return figure


def layouts_figure(stats: Mapping[str, Any]) -> Figure:
    """Bars of every layout: POR left, both bounds right."""
    rows = sorted(stats["layouts"], key=lambda row: (row["flop_bound"], row["layout"]))
    names = [f"{row['layout']} / {row['group']}" for row in rows]
    place = np.arange(len(rows))
    figure = Figure(figsize=(10, 1.2 + 0.26 * len(rows)), layout="constrained")
    por, bounds = figure.subplots(1, 2, sharey=True)
    figure.suptitle(f"{stats['split']}: what a tree saves, by layout")
    por.barh(place, [row["por"] for row in rows], color=_BLUE)
    por.set(xlabel="POR", xlim=(0, 1), yticks=place, yticklabels=names)
    bounds.barh(
        place - 0.2, [row["token_bound"] for row in rows], 0.38, color=_ORANGE, label="token bound"
    )
    bounds.barh(
        place + 0.2, [row["flop_bound"] for row in rows], 0.38, color=_BLUE, label="FLOP bound"
    )
    bounds.set(xscale="log", xlabel="flat paths over tree", xlim=(1, None))
    bounds.xaxis.set_major_formatter("{x:g} x")
    bounds.legend(loc="lower right", frameon=False)
    for axes in (por, bounds):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _bars(axes: Axes, values: Mapping[str, Sequence[float]], colour: str) -> None:
    edges = np.asarray(values["edges"])
    axes.bar(edges[:-1], values["counts"], np.diff(edges), align="edge", color=colour)
    axes.set_xlim(left=min(0, edges[0]))
    axes.spines[["top", "right"]].set_visible(False)


def _mark(axes: Axes, at: float, text: str, colour: str) -> None:
    axes.axvline(at, color=colour, linewidth=1, label=text)
    axes.legend(frameon=False)


def _bytes(figure: Figure, ending: str) -> bytes:
    out = io.BytesIO()
    with rc_context({"svg.hashsalt": "vla_nav", "svg.fonttype": "none"}):
        metadata: dict[str, Any] = {"Date": None} if ending == "svg" else {"Software": None}
        figure.savefig(out, format=ending, dpi=130, metadata=metadata)
    return out.getvalue()
