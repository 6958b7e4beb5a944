"""Episodes as trees: history policies -> paths -> prefix tree -> one packed sequence."""

from vla_nav.tree.contexts import context_of, seen_steps, summary_step
from vla_nav.tree.episode import Branch, EpisodeTokens, Label, StepTokens
from vla_nav.tree.flatten import flatten, path_supervision, path_token_index
from vla_nav.tree.history import paths_of
from vla_nav.tree.layout import Layout, every_layout
from vla_nav.tree.node_splitting import split_long_nodes
from vla_nav.tree.packing import PackedPolicy, PackedTree, pack
from vla_nav.tree.partition import partition
from vla_nav.tree.partition_types import Partition, Partitioned
from vla_nav.tree.path_targets import PathTargets, path_targets
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
    "Branch",
    "EpisodeTokens",
    "FlopModel",
    "Label",
    "Layout",
    "PackedPolicy",
    "PackedTree",
    "Partition",
    "Partitioned",
    "Path",
    "PathTargets",
    "PathTokens",
    "PolicyTargets",
    "PrefixTree",
    "Segment",
    "StepTokens",
    "TreeStats",
    "Trunk",
    "concatenate",
    "context_of",
    "every_layout",
    "flatten",
    "flop_bound",
    "frame_segment",
    "pack",
    "partition",
    "path_supervision",
    "path_targets",
    "path_token_index",
    "paths_of",
    "seen_steps",
    "split_long_nodes",
    "summary_step",
    "text_segment",
    "total_stats",
    "tree_stats",
]
