"""What is drawn, and how to read it, in words: the same ones on the picture and on the page."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vla_nav.tree import PrefixTree, TreeStats, tree_stats
from vla_nav.tree.partition_types import Partitioned
from vla_nav.tree.types import IntArray
from vla_nav.verification.drawing_mask import Blocks, mask_blocks
from vla_nav.verification.drawing_pack import far_targets
from vla_nav.verification.drawing_tokens import (
    COLOURS,
    FRAME,
    POOLED,
    WORDS,
    Run,
    run_colour,
    token_runs,
)

_SHOWN_PARTITIONS = 12


@dataclass(frozen=True, eq=False)
class Drawing:
    """What is drawn. title: the episode in words; layout: its name; kinds (T,): see
    `drawing_tokens.py`; texts: what the tokens of a node say, for the page. partitions: how
    training computes the tree, None for all at once."""

    title: str
    layout: str
    tree: PrefixTree
    kinds: IntArray
    texts: dict[int, str]
    num_steps: int
    block_size: int | None = None
    partitions: Partitioned | None = None

    @property
    def runs(self) -> list[Run]:
        """The boxes, in pack order."""
        return token_runs(self.tree, self.kinds)

    @property
    def stats(self) -> TreeStats:
        """Counts of the flat paths and of the tree."""
        return tree_stats(self.tree)

    @property
    def blocks(self) -> Blocks:
        """The blocks of the mask."""
        return mask_blocks(self.tree.subtree_end, block_size=self.block_size)

    @property
    def headline(self) -> str:
        """What sharing saves, in one line."""
        stats = self.stats
        return (
            f"{self.layout}: {self.num_steps} steps, {stats.num_paths} paths of together "
            f"{stats.num_flat_tokens:,} tokens become one tree of {stats.num_tree_tokens:,} "
            f"({stats.token_bound:.1f} x fewer); attended pairs {stats.num_flat_pairs:,} -> "
            f"{stats.num_tree_pairs:,} ({stats.num_flat_pairs / stats.num_tree_pairs:.1f} x fewer)"
        )


def tree_words(drawing: Drawing) -> str:
    """How to read the tree."""
    return (
        "Every step is a training sample of its own: a path from the left end to a label. Paths "
        "that begin alike share their beginning, so it is computed once. Lengths are to scale; "
        "the heaviest branch runs straight on top, every other one hangs where it branches off. "
        "A token sees what lies on the way from the left end to it, and nothing else."
    )


def pack_words(drawing: Drawing) -> str:
    """How to read the pack."""
    tree = drawing.tree
    far = int(far_targets(tree).sum())
    predicted = (
        f"Red arcs: the first target of {far} branches is predicted by the parent's last token, "
        "which is not the token before it."
        if far
        else "Here every target is predicted by the token right before it."
    )
    return (
        "The same tokens in one row, parents before children, heaviest child first. position_ids "
        "is the depth in the tree, so branches of one point share positions; subtree_end is the "
        f"place behind a token's last descendant. {predicted} {partition_words(drawing)}"
    ).rstrip()


def partition_words(drawing: Drawing) -> str:
    """How the pack is cut; "" where it is not."""
    cut = drawing.partitions
    if cut is None:
        return ""
    sizes = [len(part.own) for part in cut.parts]
    keys = [part.num_prefix for part in cut.parts]
    shown = slice(_SHOWN_PARTITIONS)
    more = ", ..." if len(sizes) > _SHOWN_PARTITIONS else ""
    return (
        f"Computed in {len(sizes)} partitions ({cut.mode}), the numbered bars under the row: "
        f"{', '.join(f'{size:,}' for size in sizes[shown])}{more} own tokens, beside "
        f"{', '.join(f'{count:,}' for count in keys[shown])}{more} keys of ancestors computed "
        f"before; {cut.recomputed_tokens:,} tokens are computed twice, activations of "
        f"{cut.chain_tokens():,} are alive at once."
    )


def weight_words(drawing: Drawing) -> str:
    """How to read the weights."""
    tree = drawing.tree
    if tree.policy is not None:
        return (
            "Per target, the sum of coefficient x advantage over the paths that teach it: its "
            "positive part (green) and its negative part (red) apart, so clipped losses stay exact."
        )
    return (
        f"{len(tree.target_index)} targets, each weighted by the coefficients of the paths that "
        f"teach it, {tree.loss_weights.sum():g} in all: the sum over the flat paths."
    )


def mask_words(drawing: Drawing) -> tuple[str, str]:
    """How to read the mask and its blocks."""
    blocks, tree = drawing.blocks, drawing.tree
    share = (tree.position_ids + 1).sum() / tree.num_tokens**2
    return (
        "Row q may attend to column k where it is coloured (the colour of k): q's ancestors and "
        f"itself. visible(q, k) <=> k <= q < subtree_end[k]. {share:.0%} of the square is visible.",
        f"Blocks of {blocks.size} x {blocks.size} tokens"
        f"{'' if blocks.size == 128 else ' (kernels use 128)'}: {blocks.num_full:,} full (no mask "
        f"to evaluate), {blocks.num_partial:,} partial, {blocks.num_dead:,} dead (skipped). "
        f"{blocks.live_density:.0%} of the live blocks' pairs are visible.",
    )


def legend_entries(drawing: Drawing) -> list[tuple[str, str]]:
    """(colour, words) of every kind of token that occurs."""
    entries = []
    for kind in np.unique(drawing.kinds).tolist():
        colours = [COLOURS[kind]]
        if kind in (FRAME, POOLED):
            shades = {run_colour(run) for run in drawing.runs if run.kind == kind}
            colours = [COLOURS[kind]] if COLOURS[kind] in shades else sorted(shades)
        entries.append((colours[0], WORDS[kind]))
    return entries
