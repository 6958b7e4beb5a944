"""What a loader worker hands to a training step: packs with their frames and attention plans.

Batch
  packs[0]: packed trees | frames (F, H, W, 3) uint8 or (F, P, D) features | attention plan
  packs[1]: ...            rows of `frames` are what packed.frame_index counts
  packs[2]: packed trees | frames | partitions, each with its own plan, where the pack is too large
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vla_nav.attention.types import Backend
from vla_nav.training.partitioned import PartitionPlans, plan_partitions
from vla_nav.training.settings import PartitionSettings
from vla_nav.tree.packing import PackedTree, pack
from vla_nav.tree.prefix_tree import PrefixTree


@dataclass(frozen=True, eq=False)
class Pack:
    """Several whole trees in one sequence, ready for a model.

    Exactly one of `plan` (the pack is computed whole) and `partitions` is there.
    """

    packed: PackedTree
    frames: Tensor
    plan: Any
    partitions: PartitionPlans | None = None

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Pack:
        """The same pack on `device`."""
        return self._map(lambda item: item.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Pack:
        """The same pack in page-locked memory (called by the data loader)."""
        return self._map(lambda item: item.pin_memory())

    def _map(self, function: Callable[[Any], Any]) -> Pack:
        parts = (self.packed, self.frames, self.plan, self.partitions)
        return Pack(*(None if part is None else function(part) for part in parts))


class Batch:
    """The packs of one optimiser step on one rank. `epoch` is that of its first pack.

    No dataclass: with precision bf16-true or 64-true Lightning would look for tensors inside, and
    refuse frozen ones. What the model needs in its own dtype it casts itself.
    """

    def __init__(self, packs: tuple[Pack, ...], step: int, epoch: int) -> None:
        self.packs, self.step, self.epoch = packs, step, epoch

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


class PackMaker:
    """Trees and their frames -> a `Pack` for one attention backend.

    partition: packs of more tokens than `partition.tokens` are cut; None never cuts.
    """

    def __init__(self, attention: Backend, partition: PartitionSettings | None = None) -> None:
        self._attention, self._partition = attention, partition

    def __call__(self, trees: Sequence[PrefixTree], frames: Tensor) -> Pack:
        """frames: (F, ...) the frames of all trees, in their order."""
        num_tokens = sum(tree.num_tokens for tree in trees)
        limit = None if self._partition is None else self._partition.tokens
        if self._partition is None or limit is None or num_tokens <= limit:
            packed = pack(trees, pad_to=self._attention.padded_length(num_tokens))
            assert packed.num_frames == len(frames), (packed.num_frames, len(frames))
            return Pack(packed, frames, self._attention.plan(packed))
        packed = pack(trees)
        assert packed.num_frames == len(frames), (packed.num_frames, len(frames))
        plans = plan_partitions(
            trees, self._attention, capacity=limit, mode=self._partition.mode, whole=packed
        )
        return Pack(packed, frames, None, plans)
