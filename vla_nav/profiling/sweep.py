"""The trees of the sweep: how the gain follows depth, branching factor and overlap.

    depth       a caterpillar of few to many frames: bounds grow with it
    branching   about as many frames, the more to choose from the shallower: bounds fall
    overlap     leaves that grow from a quarter of a frame to sixteen of them: POR falls

POR = 1 - tree tokens / flat tokens (tree/stats.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

SWEEP = {
    "depth": ("4x128+12", "8x128+12", "16x128+12", "32x128+12", "64x128+12"),
    "branching": ("1^30x128+12", "2^4x128+12", "5^2x128+12", "30^1x128+12"),
    "overlap": ("16x64+16", "16x64+64", "16x64+256", "16x64+1024"),
}
_AXES = {"depth": "depth", "branching": "factor", "overlap": "por"}  # column on the x axis
_LINES = {"token_bound": ":", "flop_bound": "--", "measured": "o-"}


def sweep_cases() -> tuple[str, ...]:
    """All of them, axis by axis."""
    return tuple(case for cases in SWEEP.values() for case in cases)


def draw_sweep(rows: Sequence[Mapping[str, Any]], title: str, targets: Sequence[str]) -> None:
    """A panel for each axis, from the rows that are there: bounds and what was measured, flat time
    over tree time. One file per target."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, len(SWEEP), figsize=(12, 3.6), layout="constrained")
    for panel, (name, cases) in zip(panels, SWEEP.items(), strict=True):
        column = _AXES[name]
        found = sorted((row for row in rows if row["tree"] in cases), key=lambda row: row[column])
        for key, style in _LINES.items():
            label = key.replace("_", " ").replace("flop", "FLOP")
            panel.plot([r[column] for r in found], [r[key] for r in found], style, label=label)
        panel.set_yscale("log", base=2)
        panel.yaxis.set_major_formatter("{x:g}x")
        if name != "overlap":
            panel.set_xscale("log", base=2)
            panel.xaxis.set_major_formatter("{x:g}")
        panel.set_xlabel({"por": "POR", "factor": "branching factor"}.get(column, column))
    panels[0].set_ylabel("flat time / tree time")
    panels[0].legend()
    figure.suptitle(title)
    for target in targets:
        figure.savefig(target, dpi=120)
    plt.close(figure)
