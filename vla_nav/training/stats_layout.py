"""The counts of one layout of a data set: trees built one by one, counted and dropped.

episodes of a tree -> paths -> PrefixTree -> TreeStats, length, longest path, cuts
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from vla_nav.errors import UserError
from vla_nav.models.prompt import PromptBuilder
from vla_nav.training.cost_model import TreeCounts
from vla_nav.training.grouping import grouped
from vla_nav.training.made_summaries import MadeSummaries, episode_paths
from vla_nav.training.settings import PartitionSettings
from vla_nav.training.stats_partitions import PartitionCounts
from vla_nav.tree import (
    FlopModel,
    Layout,
    PrefixTree,
    TreeStats,
    flop_bound,
    total_stats,
    tree_stats,
)


class Counted(NamedTuple):
    """The counts of one layout: all trees added up, the tokens of each, and those of the longest
    path of each, added up; how the long ones are cut; what each tree holds."""

    layout: Layout
    group: str
    total: TreeStats
    lengths: Sequence[int]
    num_chain: int
    partitions: PartitionCounts
    trees: TreeCounts


def chosen_trees(episodes: Any, group: str, most: int | None) -> list[tuple[int, ...]]:
    """Episode numbers, one tuple per tree, evenly spread over the split."""
    groups = grouped(episodes, group)
    if most is None or most >= len(episodes):
        return groups
    num_trees = max(1, most * len(groups) // len(episodes))
    return [groups[int(place)] for place in np.linspace(0, len(groups) - 1, num_trees)]


def count_layout(
    builder: PromptBuilder,
    episodes: Any,
    chosen: list[tuple[int, ...]],
    layout: Layout,
    group: str,
    supervise: str,
    summaries: MadeSummaries,
    partition: PartitionSettings | None = None,
) -> Counted:
    """Build and count the trees of some episodes. chosen: their numbers, a tuple a tree. summaries:
    for episodes that give none. Raises `UserError` for one without a label."""
    parts, lengths, num_chain = [], [], 0
    cuts = PartitionCounts(partition or PartitionSettings())
    for members in chosen:
        paths, num_frames = episode_paths(
            builder,
            [episodes[index] for index in members],
            supervise=supervise,
            summaries=summaries,
        )
        if not paths:
            name = "/".join(episodes[members[0]].key)
            raise UserError(f"{episodes.root}: episode {name} has no step with an expert label")
        tree = PrefixTree.from_paths(paths, num_frames=num_frames)
        parts.append(tree_stats(tree))
        lengths.append(parts[-1].num_tree_tokens)
        num_chain += int(tree.position_ids.max()) + 1
        cuts.add(tree)
    return Counted(
        layout, group, total_stats(parts), lengths, num_chain, cuts, TreeCounts.of(parts)
    )


def layout_row(counted: Counted, flops: FlopModel) -> dict[str, Any]:
    """The numbers of one layout."""
    total, lengths = counted.total, counted.lengths
    return {
        "trees": total.num_trees,
        "tokens_per_tree": {
            "mean": float(np.mean(lengths)),
            "p95": float(np.percentile(lengths, 95)),
            "max": int(np.max(lengths)),
        },
        "n_flat": total.num_flat_tokens,
        "n_tree": total.num_tree_tokens,
        "por": total.potential_overlap,
        "token_bound": total.token_bound,
        "pairs_flat": total.num_flat_pairs,
        "pairs_tree": total.num_tree_pairs,
        "pair_bound": total.num_flat_pairs / total.num_tree_pairs,
        "frames_flat": total.num_flat_frames,
        "frames_tree": total.num_tree_frames,
        "flop_bound": flop_bound(total, replace(flops, frame_flops=0.0)),
        "flop_bound_with_vision": flop_bound(total, flops),
    }
