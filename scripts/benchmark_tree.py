"""Time the building of packs: tree, pack, block lists and the attention plan, on one core.

    taskset -c 0 python scripts/benchmark_tree.py [--check]   writes docs/benchmarks/tree_build.*

Episodes of 204 tokens a frame (68 once it is history, where the layout pools), one action of 3
tokens a step, segments cached as in the data loader. A pack holds episodes of about 16k tokens,
so 128k tokens are 8 and 1M tokens 61 of them; 1k tokens are the first steps of one. "One tree" is
one episode grown to that size, without block lists where they would be very long: a trunk of T
tokens has (T/128)^2 / 2 live blocks. Medians of this process's CPU time. `--check` exits with 1
where an episode of 16k tokens costs 5 ms or more (tree, pack and block lists), or its block lists
1 ms or more.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import sys
import time
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from vla_nav.attention import flex
from vla_nav.attention.blocks import block_lists
from vla_nav.tree import (
    EpisodeTokens,
    Label,
    Layout,
    PrefixTree,
    StepTokens,
    every_layout,
    frame_segment,
    pack,
    paths_of,
    text_segment,
)

FULL, POOLED = 204, 68  # tokens of a frame: as it is seen, and as history
BLOCK = 128
LIMIT_MS, BLOCKS_LIMIT_MS = 5.0, 1.0  # for 16k tokens
OUT = Path(__file__).parents[1] / "docs" / "benchmarks"
SIZES = {"1k": (1024, 1), "16k": (16384, 1), "128k": (16384, 8), "1M": (16384, 61)}
ONE_TREE = {"128k, one tree": (2**17, 1), "1M, one tree": (10**6, 1)}  # tokens and episodes
MOST_BLOCKS = 2**21  # live blocks; more are not listed here
COLUMNS = ("paths", "tree", "pack", "blocks", "plan")


class Row(NamedTuple):
    """One measurement; times in ms for the whole pack. per_token_ns: tree, pack and blocks."""

    layout: str
    size: str
    num_tokens: int
    num_paths: int
    paths_ms: float
    tree_ms: float
    pack_ms: float
    blocks_ms: float
    plan_ms: float
    per_token_ns: float


def episode(num_steps: int, seed: int) -> EpisodeTokens:
    """An episode whose expert is followed; a summary of what came before at every eighth step."""
    rng = np.random.default_rng(seed)
    steps = []
    for t in range(num_steps):
        action = rng.integers(2000, 2004, 3)
        steps.append(
            StepTokens(
                full=frame_segment(1999, t, FULL),
                pooled=frame_segment(1999, t, POOLED, first=FULL),
                executed=text_segment(action),
                labels=(Label(text_segment(action, is_supervised=True)),),
            )
        )
    summaries = {t: text_segment(rng.integers(0, 1000, 40)) for t in range(8, num_steps, 8)}
    return EpisodeTokens(
        root=text_segment(rng.integers(0, 1000, 20)),
        instructions=(text_segment(rng.integers(0, 1000, 40)),),
        steps=tuple(steps),
        summaries=summaries,
    )


def steps_for(num_tokens: int, layout: Layout) -> int:
    """The most steps whose tree has at most `num_tokens` tokens (at least one step)."""
    longest = num_tokens // FULL + 2
    steps = range(1, longest)
    size = lambda n: tree_of(episode(n, 0), layout).num_tokens  # noqa: E731
    return max(1, bisect_right(steps, num_tokens, key=size))


def tree_of(tokens: EpisodeTokens, layout: Layout) -> PrefixTree:
    """The tree of an episode."""
    return PrefixTree.from_paths(paths_of(tokens, layout), num_frames=len(tokens.steps))


def median_ms(call: Callable[[], object], *, least_s: float = 0.2) -> float:
    """Median CPU time of a call, over at least 5 calls and `least_s` seconds."""
    call()
    times: list[float] = []
    while len(times) < 5 or sum(times) < least_s:
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return statistics.median(times) * 1e3


def measure(layout: Layout, size: str) -> Row:
    """One pack of `size`."""
    tokens_each, num_episodes = (SIZES | ONE_TREE)[size]
    num_steps = steps_for(tokens_each, layout)
    episodes = [episode(num_steps, seed) for seed in range(num_episodes)]
    all_paths = [paths_of(tokens, layout) for tokens in episodes]
    trees = [PrefixTree.from_paths(paths) for paths in all_paths]
    num_tokens = sum(tree.num_tokens for tree in trees)
    pad_to = -(-num_tokens // BLOCK) * BLOCK
    packed = pack(trees, pad_to=pad_to)
    subtree_end = packed.subtree_end.numpy()
    paths_ms = median_ms(lambda: [paths_of(tokens, layout) for tokens in episodes])
    tree_ms = median_ms(lambda: [PrefixTree.from_paths(paths) for paths in all_paths])
    pack_ms = median_ms(lambda: pack(trees, pad_to=pad_to))
    blocks_ms = plan_ms = math.nan
    ends = subtree_end.reshape(-1, BLOCK).max(1) // BLOCK
    if (ends - np.arange(len(ends))).sum() < MOST_BLOCKS:
        blocks_ms = median_ms(lambda: block_lists(subtree_end, block_size=BLOCK))
        plan_ms = median_ms(lambda: flex.plan(packed))
    build_ms = tree_ms + pack_ms + (0.0 if math.isnan(blocks_ms) else blocks_ms)
    return Row(
        layout.name,
        size,
        num_tokens,
        sum(map(len, all_paths)),
        paths_ms,
        tree_ms,
        pack_ms,
        blocks_ms,
        plan_ms,
        build_ms * 1e6 / num_tokens,
    )


def table(rows: list[Row]) -> str:
    """Rows as a Markdown table."""
    lines = [
        "| layout | size | tokens | paths | paths_of ms | tree ms | pack ms | block lists ms "
        "| flex plan ms | ns per token |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        values = [getattr(row, f"{name}_ms") for name in COLUMNS]
        times = " | ".join("-" if math.isnan(value) else f"{value:.2f}" for value in values)
        lines.append(
            f"| {row.layout} | {row.size} | {row.num_tokens:,} | {row.num_paths:,} | {times} "
            f"| {row.per_token_ns:.0f} |"
        )
    return "\n".join(lines)


def write(sizes: list[Row], layouts: list[Row], machine: dict[str, str]) -> None:
    """docs/benchmarks/tree_build.md and .json."""
    OUT.mkdir(parents=True, exist_ok=True)
    command = "taskset -c 0 python scripts/benchmark_tree.py"
    facts = ", ".join(f"{key} {value}" for key, value in machine.items())
    facts += " (CPU time is counted; caches are shared with whatever else runs)"
    text = f"""# What a pack costs to build

    {command}

{facts}.

Episodes of {FULL} tokens a frame ({POOLED} pooled), 3 action tokens a step, segments
cached. Medians of CPU time in ms for the whole pack; `ns per token` is tree (merge, order,
positions, predictors, weights), pack and block lists. 128k and 1M tokens are packs of 8 and 61
episodes, or one episode grown to that size (its block lists are left out where a trunk of T tokens
has more than 2^21 live blocks: their number grows as (T/128)^2 / 2, as the attention does).

## By size

{table(sizes)}

## Every layout at 16k tokens

{table(layouts)}
"""
    (OUT / "tree_build.md").write_text(text)
    rows = [
        {key: None if value != value else value for key, value in row._asdict().items()}
        for row in (*sizes, *layouts)
    ]
    record = {"command": command, "machine": machine, "rows": rows}
    (OUT / "tree_build.json").write_text(json.dumps(record, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit with 1 above the limits")
    is_check = parser.parse_args().check
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    sizes = [
        measure(Layout(history=history, actions="hidden"), size)
        for size in SIZES | ONE_TREE
        for history in ("full", "pooled", "window")
    ]
    layouts = [
        measure(layout, "16k")
        for layout in every_layout(window=8, uniform=8, summary_every=8, summary_keep=8)
    ]
    print(table(sizes), "", table(layouts), sep="\n")
    machine = {
        "machine": f"{platform.machine()} with {os.cpu_count()} cores",
        "load average": f"{load:.1f}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": torch.__version__,
    }
    write(sizes, layouts, machine)
    slow = [
        row
        for row in (*sizes, *layouts)
        if row.size == "16k"
        and (
            row.tree_ms + row.pack_ms + row.blocks_ms >= LIMIT_MS
            or row.blocks_ms >= BLOCKS_LIMIT_MS
        )
    ]
    for row in slow:
        print(f"above the limit: {row.layout}", file=sys.stderr)
    if is_check and slow:
        sys.exit(1)


if __name__ == "__main__":
    main()
