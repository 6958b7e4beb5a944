"""Episodes as trees: history policies -> paths -> prefix tree -> one packed sequence."""

from vla_nav.tree.flatten import flatten, path_supervision, path_token_index
from vla_nav.tree.history import EpisodeTokens, StepTokens, paths_of
from vla_nav.tree.packing import PackedPolicy, PackedTree, pack
from vla_nav.tree.prefix_tree import PolicyTargets, PrefixTree
from vla_nav.tree.stats import FlopModel, TreeStats, flop_bound, total_stats, tree_stats
from vla_nav.tree.types import (
    Path,
    PathTokens,
    Segment,
    Trunk,
    concatenate,
    frame_segment,
    text_segment,
)

__all__ = [
    "EpisodeTokens",
    "FlopModel",
    "PackedPolicy",
    "PackedTree",
    "Path",
    "PathTokens",
    "PolicyTargets",
    "PrefixTree",
    "Segment",
    "StepTokens",
    "TreeStats",
    "Trunk",
    "concatenate",
    "flatten",
    "flop_bound",
    "frame_segment",
    "pack",
    "path_supervision",
    "path_token_index",
    "paths_of",
    "text_segment",
    "total_stats",
    "tree_stats",
]
