"""The trees of several recorded data sets as one collection: what a mixture trains on.

set a   trees 0 1 2        frame cache of a
set b   trees 3 4          frame cache of b        a pack [1 4 3]: frames of a, then of b
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
import torch
import xxhash

from vla_nav.training.batch import Pack, PackMaker
from vla_nav.training.dataset import EpisodeTree, RecordedTrees


class MixedTrees:
    """The trees of several recorded sets, counted through set by set, as one collection.

    They share the prompt, layout and encoder, so that trees of several sets make one pack.
    """

    def __init__(self, parts: Sequence[RecordedTrees]) -> None:
        self.parts = tuple(parts)
        self.members = [numbers for part in parts for numbers in part.members]
        self._starts = np.cumsum([0, *(len(part) for part in parts)])

    def __len__(self) -> int:
        return len(self.members)

    def __getitem__(self, index: int) -> EpisodeTree:
        """Tree `index`; its rows are those of its own set's frame cache."""
        number, place = self._locate(index)
        return self.parts[number][place]

    @property
    def sizes(self) -> list[int]:
        """Trees of every set."""
        return [len(part) for part in self.parts]

    def names(self) -> list[str]:
        """`dataset/split/role/id` of every tree's first episode."""
        return [name for part in self.parts for name in part.names()]

    def scene_ids(self) -> list[str]:
        """The scene of every tree."""
        return [scene for part in self.parts for scene in part.scene_ids()]

    def lengths(self) -> np.ndarray:
        """(trees,) int64 upper bounds of the trees' tokens."""
        return np.concatenate([part.lengths() for part in self.parts])

    def work(self) -> tuple[np.ndarray, np.ndarray]:
        """(trees,) int64 steps and (trees,) int64 labels of every tree's episodes."""
        steps, labels = zip(*(part.work() for part in self.parts), strict=True)
        return np.concatenate(steps), np.concatenate(labels)

    def fingerprint(self) -> str:
        """That of the only set, or one of all fingerprints in their order."""
        found = [part.fingerprint() for part in self.parts]
        return found[0] if len(found) == 1 else xxhash.xxh3_128_hexdigest("\n".join(found).encode())

    def text_ids(self, indices: Sequence[int]) -> set[int]:
        """Rows of the text table that some trees use."""
        places: list[list[int]] = [[] for _ in self.parts]
        for number, place in map(self._locate, indices):
            places[number].append(place)
        used = zip(self.parts, places, strict=True)
        return set().union(*(part.text_ids(some) for part, some in used if some))

    def pack(self, indices: Sequence[int], make_pack: PackMaker) -> Pack:
        """The pack of some trees, with frames and attention plan."""
        where = [self._locate(index) for index in indices]
        found = [self.parts[number][place] for number, place in where]
        frames = [
            self.parts[number].frames.read(np.concatenate([found[k].rows for k, _ in some]))
            for number, some in groupby(enumerate(where), key=lambda item: item[1][0])
            for some in [list(some)]
        ]
        return make_pack(
            [part.tree for part in found], frames[0] if len(frames) == 1 else torch.cat(frames)
        )

    def _locate(self, index: int) -> tuple[int, int]:
        number = int(np.searchsorted(self._starts, index, side="right")) - 1
        return number, index - int(self._starts[number])
