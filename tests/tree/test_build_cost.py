"""What building a tree costs, counted and not timed: function calls and peak memory."""

from __future__ import annotations

import sys
import tracemalloc

import pytest

from tests.tree.episodes import token_episode
from vla_nav.tree import Layout, PrefixTree, pack, paths_of, text_segment
from vla_nav.tree.types import Path

LAYOUTS = [
    Layout(history=history, actions=actions)
    for history in ("full", "pooled", "window", "uniform")
    for actions in ("hidden", "visible")
]


def calls_of(function) -> int:
    """Function calls, of Python and of C, that `function` makes."""
    count = 0

    def counted(_frame, event, _argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(counted)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_calls_grow_with_segments_and_not_with_tokens(layout):
    counts = []
    for num_steps, full in ((40, 30), (80, 30), (80, 300)):
        paths = paths_of(token_episode(num_steps, full=full, pooled=full // 3), layout)
        PrefixTree.from_paths(paths)  # segments compute their keys once
        counts.append(calls_of(lambda paths=paths: PrefixTree.from_paths(paths)))
    assert counts[1] < 2.3 * counts[0]  # window and uniform are still short at step 8
    assert counts[2] == pytest.approx(counts[1], rel=0.02)  # sampled action lengths differ


def test_memory_is_linear_in_tokens():
    peaks = []
    for num_tokens in (8_000, 64_000):
        trunk = text_segment(range(num_tokens // 2))
        leaves = [text_segment(range(i, i + num_tokens // 8)) for i in range(4)]
        paths = [Path((trunk, leaf)) for leaf in leaves]
        PrefixTree.from_paths(paths)
        tracemalloc.start()
        tree = PrefixTree.from_paths(paths)
        pack([tree])
        peaks.append(tracemalloc.get_traced_memory()[1] / tree.num_tokens)
        tracemalloc.stop()
        assert tree.num_tokens == num_tokens
    assert max(peaks) < 200  # bytes per token; one row of T x T bits would be 8,000
    assert peaks[1] < 1.2 * peaks[0]
