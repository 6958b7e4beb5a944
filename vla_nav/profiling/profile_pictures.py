"""Pictures of a profile, PNG and SVG.

step      one bar: the whole step, parts in the order of `REGIONS`, passes in shades
groups    vision, backbone and the rest: forward, backward, recompute; predicted beside measured
memory    classes at the peak, and the course of the traced step
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from matplotlib import colormaps, rc_context
from matplotlib.figure import Figure

from vla_nav.profiling.profile_table import region_rows
from vla_nav.profiling.regions import BACKWARD, FORWARD, PHASES, RECOMPUTE, REGIONS, STEP

_COLOURS = dict(zip(REGIONS, colormaps["tab20"].colors, strict=False))  # type: ignore[attr-defined]
_ALPHA = {FORWARD: 0.65, BACKWARD: 1.0, RECOMPUTE: 0.4, STEP: 1.0}
_PHASE_COLOURS = {FORWARD: "#7fa6dd", BACKWARD: "#3b6fb6", RECOMPUTE: "#c9d8ef", STEP: "#8a8f98"}
_ORANGE = "#e0802b"


def pictures(result: Mapping[str, Any]) -> dict[str, Figure]:
    """Every picture by name."""
    found = {"step": step_figure(result), "groups": groups_figure(result)}
    found["memory"] = memory_figure(result)
    return found


def step_figure(result: Mapping[str, Any]) -> Figure:
    """The step as one bar."""
    figure = Figure(figsize=(11, 2.6), layout="constrained")
    axes = figure.subplots()
    left, named = 0.0, set()
    for part in result["parts"]:
        region = part["region"]
        axes.barh(
            0,
            part["ms"],
            left=left,
            color=_COLOURS[region],
            alpha=_ALPHA[part["phase"]],
            edgecolor="white",
            linewidth=0.5,
            label=None if region in named else region,
        )
        named.add(region)
        left += part["ms"]
    axes.axvline(result["steps"]["profiled_ms"], color="black", linewidth=1)
    axes.set(xlabel="ms of one step; the line is the wall time", yticks=[], xlim=(0, None))
    axes.legend(ncols=6, fontsize="small", frameon=False, loc="lower left", bbox_to_anchor=(0, 1))
    axes.spines[["top", "right", "left"]].set_visible(False)
    return figure


def groups_figure(result: Mapping[str, Any]) -> Figure:
    """Groups by pass on the left; regions measured against predicted on the right."""
    figure = Figure(figsize=(11, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    rows = result["groups"][::-1]
    starts = [0.0] * len(rows)
    names = [row["name"] for row in rows]
    for phase in PHASES:
        values = [row[f"{phase}_ms"] for row in rows]
        if any(values):
            left.barh(names, values, left=starts, color=_PHASE_COLOURS[phase], label=phase)
            starts = [start + value for start, value in zip(starts, values, strict=True)]
    left.set(xlabel="ms of one step")
    left.legend(frameon=False)
    known = {k: row for k, row in region_rows(result).items() if row["predicted_ms"] is not None}
    place = range(len(known))
    right.barh(
        [k + 0.2 for k in place],
        [row["ms"] for row in known.values()],
        0.38,
        color=_PHASE_COLOURS[BACKWARD],
        label="measured",
    )
    right.barh(
        [k - 0.2 for k in place],
        [row["predicted_ms"] for row in known.values()],
        0.38,
        color=_ORANGE,
        label="predicted",
    )
    right.set(xlabel="ms of one step", yticks=list(place), yticklabels=list(known))
    right.invert_yaxis()
    right.legend(frameon=False)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def memory_figure(result: Mapping[str, Any]) -> Figure:
    """Classes at the peak as a bar, and the level over the traced step."""
    memory = result["memory"]
    figure = Figure(figsize=(11, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 2))
    values = {name: count / 2**20 for name, count in memory["classes_bytes"].items() if count}
    left.barh(list(values), list(values.values()), color=_PHASE_COLOURS[BACKWARD])
    left.invert_yaxis()
    left.set(xlabel="MiB at the peak")
    if "course" in memory:
        course = memory["course"]
        right.fill_between(
            course["time_ms"],
            [count / 2**20 for count in course["bytes"]],
            step="post",
            color=_PHASE_COLOURS[FORWARD],
        )
        right.set(xlabel="ms of the traced steps", ylabel="MiB", ylim=(0, None))
    else:
        right.set_axis_off()
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def as_bytes(figure: Figure, ending: str) -> bytes:
    """The picture as a file's bytes, equal for equal pictures."""
    out = io.BytesIO()
    with rc_context({"svg.hashsalt": "vla_nav", "svg.fonttype": "none"}):
        metadata: dict[str, Any] = {"Date": None} if ending == "svg" else {"Software": None}
        figure.savefig(out, format=ending, dpi=130, metadata=metadata)
    return out.getvalue()
