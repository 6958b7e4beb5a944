"""Ranks with different work take the same passes: shards are gathered by all or by none.

    rank 0   pack of 3 partitions    first first part part part
    rank 1   pack of 1 partition     (f)   (f)   part (p)  (p)     in brackets: without weight
    rank 2   no pack                 (f)   (f)   (p)  (p)  (p)

Before a step the ranks tell each other how many passes of each kind their packs need (numbers of
the CPU, over gloo: nobody waits for a device), and each fills up to the largest number, kind by
kind. A pass without weight runs a sequence of two tokens through every layer; its loss counts zero
times. Rules: design of tree training, section 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import distributed

from vla_nav.attention.registry import backend
from vla_nav.models.vla import VLA
from vla_nav.training.batch import Pack
from vla_nav.tree.packing import pack
from vla_nav.tree.prefix_tree import PrefixTree
from vla_nav.tree.types import Path, text_segment


class Passes(NamedTuple):
    """Passes of a pack by kind, in the order in which they run. encode: chunks of frames, once
    without gradients before, once with gradients behind the others."""

    encode: int
    first: int
    parts: int


class Agreement:
    """What all ranks know before they go on, told over the CPU: no device is waited for."""

    def __init__(self) -> None:
        self._group: Any = distributed.new_group(backend="gloo")

    def largest(self, numbers: Sequence[int]) -> list[int]:
        """The largest of every rank's numbers, place by place; as many on every rank."""
        found = torch.tensor(list(numbers), dtype=torch.int64)
        distributed.all_reduce(found, distributed.ReduceOp.MAX, group=self._group)
        return [int(number) for number in found.tolist()]

    def of_first(self, number: float) -> float:
        """Rank 0's number, on every rank."""
        found = torch.tensor([number], dtype=torch.float64)
        distributed.broadcast(found, 0, group=self._group)
        return float(found)

    def texts(self, own: str | None) -> list[str]:
        """What the ranks have to say, by rank; those that have nothing are left out."""
        found: list[Any] = [None] * distributed.get_world_size()
        distributed.all_gather_object(found, own, group=self._group)
        return [text for text in found if text is not None]

    def passes(self, own: Sequence[Passes]) -> list[Passes]:
        """The passes of every pack's place: as many places as the rank with most packs has."""
        num_packs, is_cut = self.largest([len(own), int(any(p != WHOLE for p in own))])
        if not is_cut:
            return [WHOLE] * num_packs
        padded = [*own, *[Passes(0, 0, 0)] * (num_packs - len(own))]
        numbers = self.largest([number for passes in padded for number in passes])
        return [Passes(*numbers[at : at + 3]) for at in range(0, len(numbers), 3)]


WHOLE = Passes(0, 0, 1)


def weightless_pack(model: VLA, device: torch.device) -> Pack:
    """A pack of two tokens for passes that only keep other ranks company."""
    prompt, taught = text_segment([model.vocabulary.num_own]), text_segment([0], is_supervised=True)
    attention = backend(model.attention_name)
    tree = PrefixTree.from_paths([Path((prompt, taught))], num_frames=0)
    packed = pack([tree], pad_to=attention.padded_length(tree.num_tokens))
    width = model.patch_embedding.embedding_dim
    rows = torch.zeros(0, model.patch_embedding.num_embeddings, width)
    return Pack(packed, rows, attention.plan(packed)).to(device)
