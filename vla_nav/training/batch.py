"""What a loader worker hands to a training step: packs with their frames and attention plans.

Batch
  packs[0]: packed trees | frames (F, H, W, 3) uint8 or (F, P, D) features | attention plan
  packs[1]: ...            rows of `frames` are what packed.frame_index counts
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vla_nav.tree.packing import PackedTree, pack
from vla_nav.tree.prefix_tree import PrefixTree


@dataclass(frozen=True, eq=False)
class Pack:
    """Several whole trees in one sequence, ready for a model."""

    packed: PackedTree
    frames: Tensor
    plan: Any

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Pack:
        """The same pack on `device`."""
        return Pack(
            self.packed.to(device, non_blocking=non_blocking),
            self.frames.to(device, non_blocking=non_blocking),
            self.plan.to(device, non_blocking=non_blocking),
        )

    def pin_memory(self) -> Pack:
        """The same pack in page-locked memory (called by the data loader)."""
        return Pack(self.packed.pin_memory(), self.frames.pin_memory(), self.plan.pin_memory())


@dataclass(frozen=True, eq=False)
class Batch:
    """The packs of one optimiser step on one rank. `epoch` is that of its first pack."""

    packs: tuple[Pack, ...]
    step: int
    epoch: int

    @property
    def num_episodes(self) -> int:
        """Trees over all packs."""
        return sum(pack.packed.num_trees for pack in self.packs)

    @property
    def num_tokens(self) -> int:
        """Tokens over all packs, without padding."""
        return sum(pack.packed.num_tokens for pack in self.packs)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        """The same batch on `device`."""
        packs = tuple(pack.to(device, non_blocking) for pack in self.packs)
        return Batch(packs, self.step, self.epoch)

    def pin_memory(self) -> Batch:
        """The same batch in page-locked memory (called by the data loader)."""
        return Batch(tuple(pack.pin_memory() for pack in self.packs), self.step, self.epoch)


def make_pack(
    trees: Sequence[PrefixTree],
    frames: Tensor,
    plan: Callable[[PackedTree], Any],
    *,
    padded_length: Callable[[int], int],
) -> Pack:
    """Pack `trees`, padded to the attention backend's length, and plan its attention.

    frames: (F, ...) the frames of all trees, in their order.
    """
    num_tokens = sum(tree.num_tokens for tree in trees)
    packed = pack(trees, pad_to=padded_length(num_tokens))
    assert packed.num_frames == len(frames), (packed.num_frames, len(frames))
    return Pack(packed, frames, plan(packed))
