"""The tree to scale: depth from left to right, every heavy path straight in its own lane.

    lane 0   root--frame 0--frame 1--frame 2-[label]       the heaviest child goes straight on,
    lane 1           |        |                            every other child hangs below the point
                  [label]  [label]                         where it branches off

A lane is free for a branch when the branch ends before the first thing that stands in it further
right; connectors are things as well, so that nothing crosses. Branches are placed from the deepest
branch point to the shallowest, each subtree as one rigid shape (lanes with their extents).

Axis legend: N nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.patches import Rectangle

from vla_nav.tree import PrefixTree
from vla_nav.tree.types import FloatArray, IntArray
from vla_nav.verification.drawing_tokens import INK, LABEL, TYPE_PT, Run, box_text, run_colour

_BOX = 0.66  # height of a box, in lanes
_LINE = "#5c6470"
_MIN_PX = 5  # a label is drawn at least so wide


class TreeShape(NamedTuple):
    """Where the nodes (N,) stand: from `left` to `right` in tokens of depth, in lane `lane`."""

    left: IntArray
    right: FloatArray
    lane: IntArray

    @property
    def num_lanes(self) -> int:
        """Lanes in use."""
        return int(self.lane.max()) + 1


def tree_shape(tree: PrefixTree, *, min_width: float = 1.0, gap: float = 0.0) -> TreeShape:
    """Lanes without crossings. min_width, gap: in tokens; the narrowest box, space between two."""
    left = tree.position_ids[tree.node_start[:-1]]
    right = left + np.maximum(np.diff(tree.node_start), min_width)
    children: list[list[int]] = [[] for _ in range(tree.num_nodes)]
    roots = []
    for node, parent in enumerate(tree.node_parent.tolist()):
        (roots if parent < 0 else children[parent]).append(node)
    lane = np.zeros(tree.num_nodes, dtype=np.int64)
    first_free = 0
    for root in roots:  # trees of a forest below each other
        placed = _placed(root, children, left.tolist(), right.tolist(), gap)
        for node, own in placed.lanes:
            lane[node] = first_free + own
        first_free += len(placed.first)
    return TreeShape(left, right, lane)


class _Placed(NamedTuple):
    """A subtree: its nodes' lanes, and the extent [first, last] of what stands in every lane."""

    lanes: list[tuple[int, int]]
    first: list[float]
    last: list[float]


def _placed(
    head: int, children: list[list[int]], left: list[int], right: list[float], gap: float
) -> _Placed:
    """The subtree of `head`, whose heavy path takes lane 0. Recursion: one call per heavy path, so
    at most log2(N) + 1 deep."""
    chain = [head]
    while children[chain[-1]]:
        chain.append(children[chain[-1]][0])  # pack order: the heaviest child first
    lanes = [(node, 0) for node in chain]
    first: list[float] = [left[head]]
    last: list[float] = [max(right[node] for node in chain)]
    hanging = [child for node in chain for child in children[node][1:]]
    hanging.sort(key=lambda child: (-left[child], child))
    skyline = [float("inf")]  # per lane: the leftmost thing placed so far; lane 0 is the chain's
    for child in hanging:
        part = _placed(child, children, left, right, gap)
        start = 1
        while not _fits(part, start, skyline, gap):
            start += 1
        for lane in range(1, start):
            skyline[lane] = min(skyline[lane], left[child])
            first[lane] = min(first[lane], left[child])
            last[lane] = max(last[lane], left[child])
        for own, (low, high) in enumerate(zip(part.first, part.last, strict=True)):
            lane = start + own
            if lane == len(first):
                skyline.append(low)
                first.append(low)
                last.append(high)
            else:
                skyline[lane] = min(skyline[lane], low)
                first[lane] = min(first[lane], low)
                last[lane] = max(last[lane], high)
        lanes += [(node, start + own) for node, own in part.lanes]
    return _Placed(lanes, first, last)


def _fits(part: _Placed, start: int, skyline: list[float], gap: float) -> bool:
    """Whether a subtree may stand in lanes start, start + 1, ... left of all that is there."""
    return all(
        start + own >= len(skyline) or high + gap <= skyline[start + own]
        for own, high in enumerate(part.last)
    )


def paint_tree(
    axes: Axes, tree: PrefixTree, runs: list[Run], texts: Mapping[int, str], *, width_px: float
) -> TreeShape:
    """Boxes, connectors and what fits into them.

    texts: by first token of a run. width_px: of the axes, for what is still legible.
    """
    depth = int(tree.position_ids.max()) + 1
    narrowest = depth * _MIN_PX / width_px
    shape = tree_shape(tree, min_width=narrowest, gap=narrowest)
    lane, left = shape.lane.tolist(), shape.left.tolist()
    height_pt = axes.get_window_extent().height / axes.figure.dpi * 72
    size_pt = min(TYPE_PT, 0.8 * _BOX * height_pt / shape.num_lanes)
    connectors = [
        [(left[node], lane[parent]), (left[node], lane[node])]
        for node, parent in enumerate(tree.node_parent.tolist())
        if parent >= 0 and lane[node] != lane[parent]
    ]
    axes.add_collection(
        LineCollection(
            connectors, colors=_LINE, linewidths=0.7 if shape.num_lanes < 40 else 0.35, zorder=1
        )
    )
    for run in runs:
        x = int(tree.position_ids[run.start])
        y, length = lane[run.node] - _BOX / 2, run.stop - run.start
        drawn = max(length, narrowest) if run.kind == LABEL else length
        box = Rectangle((x, y), drawn, _BOX, facecolor=run_colour(run), linewidth=0)
        box.set(gid=f"tree-{run.node}-{run.start}", zorder=3 if run.kind == LABEL else 2)
        axes.add_patch(box)
        if words := box_text(run, texts[run.start], length / depth * width_px, size_pt):
            axes.text(
                x + length / 2, lane[run.node], words, fontsize=size_pt, color=INK[run.kind],
                ha="center", va="center", zorder=4, clip_on=True,
            )  # fmt: skip
    for node in range(tree.num_nodes):
        end = max(shape.right[node], left[node] + narrowest)
        outline = Rectangle((left[node], lane[node] - _BOX / 2), end - left[node], _BOX)
        outline.set(facecolor="none", edgecolor=_LINE, linewidth=0.5, zorder=3)
        axes.add_patch(outline)
    axes.set_xlim(-0.004 * depth, float(np.max(shape.right)) + 0.01 * depth)
    axes.set_ylim(shape.num_lanes - 0.4, -0.6)
    axes.set_yticks([])
    axes.set_xlabel("depth on the path = position_ids (tokens)", fontsize=8)
    return shape
