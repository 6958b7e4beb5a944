"""What the packs of a profile look like: shared tokens, live blocks, and how full these are.

    POR               1 - N_tree / N_flat
    live-block ratio  blocks of the mask that hold anything, over those of a causal mask
    density           visible pairs over the cells of the live blocks (partial ones are half empty)

Blocks are 128 x 128, as in the block-sparse backends, whatever backend is profiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
import torch

from vla_nav.attention.blocks import block_lists
from vla_nav.training.batch import Batch
from vla_nav.tree import PrefixTree, TreeStats, total_stats, tree_stats
from vla_nav.tree.packing import PackedTree

BLOCK = 128


class Structure(NamedTuple):
    """Of some steps: tree counts, blocks, and bytes that move to the device."""

    trees: TreeStats
    num_steps: int
    num_packs: int
    num_padded_tokens: int
    num_vision_tokens: int
    num_live_blocks: int
    num_causal_blocks: int
    num_partial_blocks: int
    num_partitions: int
    num_passes: int  # forward passes of the layers: one a pack, or one a partition
    num_recomputed_tokens: int
    batch_bytes: int
    frame_bytes: int  # of that, cached features or pixels

    @property
    def live_block_ratio(self) -> float:
        """Live blocks over those of a causal mask."""
        return self.num_live_blocks / self.num_causal_blocks

    @property
    def density(self) -> float:
        """Visible pairs over the cells of live blocks."""
        return self.trees.num_tree_pairs / (self.num_live_blocks * BLOCK**2)

    def as_json(self) -> dict[str, Any]:
        """Plain values, with the ratios."""
        return {
            **asdict(self.trees),
            "por": self.trees.potential_overlap,
            "token_bound": self.trees.token_bound,
            "live_block_ratio": self.live_block_ratio,
            "density": self.density,
            "partial_share": self.num_partial_blocks / self.num_live_blocks,
            **{name: value for name, value in self._asdict().items() if name != "trees"},
        }


def total_structure(parts: Sequence[Structure]) -> Structure:
    """Of several blocks of steps."""
    trees = total_stats(part.trees for part in parts)
    return Structure(trees, *(sum(column) for column in list(zip(*parts, strict=True))[1:]))


def structure(steps: Sequence[tuple[Batch, Sequence[PrefixTree]]]) -> Structure:
    """Of steps, each as its batch (on the CPU) and its trees."""
    packs = [pack for batch, _ in steps for pack in batch.packs]
    blocks = np.array([_blocks(pack.packed) for pack in packs]).sum(axis=0)
    cuts = [pack.partitions.cut for pack in packs if pack.partitions is not None]
    whole = len(packs) - len(cuts)
    return Structure(
        total_stats(tree_stats(tree) for _, trees in steps for tree in trees),
        num_steps=len(steps),
        num_packs=len(packs),
        num_padded_tokens=sum(len(pack.packed.token_ids) for pack in packs),
        num_vision_tokens=sum(len(pack.packed.vision_index) for pack in packs),
        num_live_blocks=int(blocks[0]),
        num_causal_blocks=int(blocks[1]),
        num_partial_blocks=int(blocks[2]),
        num_partitions=sum(len(cut.parts) for cut in cuts),
        num_passes=whole + sum(len(cut.parts) for cut in cuts),
        num_recomputed_tokens=sum(cut.recomputed_tokens for cut in cuts),
        batch_bytes=sum(nbytes(batch.packs) for batch, _ in steps),
        frame_bytes=sum(pack.frames.nbytes for pack in packs),
    )


def nbytes(value: Any) -> int:
    """Bytes of all tensors in dataclasses, tuples, lists and dicts."""
    if isinstance(value, torch.Tensor):
        return value.nbytes
    if isinstance(value, dict):
        return sum(nbytes(item) for item in value.values())
    if isinstance(value, tuple | list):
        return sum(nbytes(item) for item in value)
    names = getattr(value, "__dataclass_fields__", None)
    return 0 if names is None else sum(nbytes(getattr(value, name)) for name in names)


def _blocks(packed: PackedTree) -> tuple[int, int, int]:
    """Live, causal and partial blocks of a pack."""
    end = packed.subtree_end.numpy()[: packed.num_tokens]
    size = -(-len(end) // BLOCK) * BLOCK
    padded = np.concatenate([end, np.arange(len(end) + 1, size + 1, dtype=end.dtype)])
    lists = block_lists(padded, block_size=BLOCK)
    partial = len(lists.kv_partial.indices)
    rows = size // BLOCK
    return partial + len(lists.kv_full.indices), rows * (rows + 1) // 2, partial
