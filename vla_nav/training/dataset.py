"""Recorded episodes as trees with their frames, and optimiser steps as packs of them.

    tree i  its episodes --prompt builder--> paths --> prefix tree   once per worker, remembered
                         --frame cache-----> row numbers of its frames
    step s  --PackOrder--> packs of trees --> pack(trees) + frames + attention plan

A tree takes about 10 kB, so a worker keeps all trees of a set of some ten thousand episodes;
`remember` bounds how many.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from torch.utils.data import Dataset, Sampler

from vla_nav.episodes.lerobot_reader import LeRobotDataset
from vla_nav.errors import UserError
from vla_nav.models.prompt import PromptBuilder
from vla_nav.training.batch import Batch, Pack, PackMaker
from vla_nav.training.grouping import grouped
from vla_nav.training.lengths import episode_bounds, recorded_summaries
from vla_nav.training.packing import PackOrder, sequential_packs
from vla_nav.tree import PrefixTree
from vla_nav.vision.cache import FeatureCache


class EpisodeTree(NamedTuple):
    """A tree and the cache rows (F,) int64 of its frame table."""

    tree: PrefixTree
    rows: np.ndarray


class RecordedTrees:
    """The trees of a recorded data set under one prompt and layout, built when asked for.

    supervise: own | all, see `vla_nav.tree.history`. group: episode | trajectory | rollouts, which
    episodes make one tree (`vla_nav.training.grouping`). frames: a feature or pixel cache.
    members: tree -> its episodes.
    """

    def __init__(
        self,
        episodes: LeRobotDataset,
        builder: PromptBuilder,
        frames: FeatureCache,
        *,
        supervise: str = "own",
        group: str = "episode",
        remember: int = 100_000,
    ) -> None:
        self.episodes, self.builder, self.frames = episodes, builder, frames
        self.members = grouped(episodes, group)
        self._supervise, self._group, self._remember = supervise, group, remember
        self._known: OrderedDict[int, EpisodeTree] = OrderedDict()

    def __len__(self) -> int:
        return len(self.members)

    def __getitem__(self, index: int) -> EpisodeTree:
        """Tree `index`. Raises `UserError` naming an episode that has no label."""
        known = self._known.get(index)
        if known is None:
            episodes = [self.episodes[number] for number in self.members[index]]
            for episode in episodes:
                if not any(step.labels for step in episode.steps):
                    raise UserError(
                        f"{self.episodes.root}: episode {'/'.join(episode.key)} has no step with "
                        "an expert label; record it again"
                    )
            paths, keys = self.builder.paths(*episodes, supervise=self._supervise)
            tree = PrefixTree.from_paths(paths, num_frames=len(keys))
            known = EpisodeTree(tree, self.frames.rows(keys))
            self._known[index] = known
            if len(self._known) > self._remember:
                self._known.popitem(last=False)
        return known

    def names(self) -> list[str]:
        """`dataset/split/role/id` of every tree's first episode."""
        keys = self.episodes.keys()
        return ["/".join(keys[numbers[0]]) for numbers in self.members]

    def scene_ids(self) -> list[str]:
        """The scene of every tree."""
        scenes = self.episodes.scene_ids()
        return [scenes[numbers[0]] for numbers in self.members]

    def lengths(self) -> np.ndarray:
        """(trees,) int64 upper bounds of the trees' tokens.

        Exact but for action tokens that a shorter action (STOP) does not have or that merge, and
        for equal frames. Trees of several episodes that can share their frames (walks of one
        episode, or instruction last) are built to be measured.
        """
        bounds = episode_bounds(self.episodes, self.builder)
        root = len(self.builder.root())
        can_share = self._group == "rollouts" or self.builder.layout.instruction == "last"
        return np.array(
            [
                self[index].tree.num_tokens
                if can_share and len(numbers) > 1
                else int(bounds[list(numbers)].sum()) - root * (len(numbers) - 1)
                for index, numbers in enumerate(self.members)
            ],
            dtype=np.int64,
        )

    def work(self) -> tuple[np.ndarray, np.ndarray]:
        """(trees,) int64 steps and (trees,) int64 labels of every tree's episodes."""
        steps = np.asarray(self.episodes.num_steps, dtype=np.int64)
        labels = np.array([sum(counts) for counts in self.episodes.num_labels()], dtype=np.int64)
        places = [list(numbers) for numbers in self.members]
        return (
            np.array([steps[some].sum() for some in places], dtype=np.int64),
            np.array([labels[some].sum() for some in places], dtype=np.int64),
        )

    def fingerprint(self) -> str:
        """Of the episodes that the trees are made of."""
        return self.episodes.fingerprint()

    def text_ids(self, indices: Sequence[int]) -> set[int]:
        """Rows of the text table that some trees use."""
        builder = self.builder
        texts = self.episodes.instructions()
        numbers = [number for index in indices for number in self.members[index]]
        segments = [builder.root(), *map(builder.instruction, {texts[k] for k in numbers})]
        if builder.layout.history == "summary":
            found = recorded_summaries(self.episodes, builder)
            segments += [part for number in numbers for part in found[number].values()]
        num_own = builder.vocabulary.num_own
        used = {token for segment in segments for token in segment.token_ids.tolist()}
        # Own tokens look up row 0 as well, and then do not show it (see models/vla.py).
        return {0, *(token - num_own for token in used if token >= num_own)}

    def pack(self, indices: Sequence[int], make_pack: PackMaker) -> Pack:
        """The pack of some trees, with frames and attention plan."""
        parts = [self[index] for index in indices]
        frames = self.frames.read(np.concatenate([part.rows for part in parts]))
        return make_pack([part.tree for part in parts], frames)


class TreesWithFrames(Protocol):
    """One recorded set, or several as one."""

    def pack(self, indices: Sequence[int], make_pack: PackMaker) -> Pack:
        """The pack of some trees, with frames and attention plan."""
        ...


class StepDataset(Dataset[Batch]):
    """Item s is the batch of optimiser step s: any worker can build any of them.

    episodes: which of `trees` take part; `order` counts these.
    """

    def __init__(
        self,
        trees: TreesWithFrames,
        episodes: Sequence[int],
        order: PackOrder,
        make_pack: PackMaker,
    ) -> None:
        self._trees, self._episodes, self._order = trees, list(episodes), order
        self._make_pack = make_pack

    def __getitem__(self, step: int) -> Batch:
        packs = tuple(
            self._trees.pack([self._episodes[place] for place in places], self._make_pack)
            for places in self._order.step(step)
        )
        return Batch(packs, step, self._order.epoch_of(step))


class PackDataset(Dataset[Batch]):
    """Some episodes in their own order, one pack per item: validation.

    Every rank has the same number of items; where packs run out a batch holds none.
    """

    def __init__(
        self,
        trees: TreesWithFrames,
        episodes: Sequence[int],
        lengths: np.ndarray,
        *,
        pack_tokens: int,
        make_pack: PackMaker,
        rank: int = 0,
        num_ranks: int = 1,
    ) -> None:
        self._trees, self._make_pack = trees, make_pack
        packs = sequential_packs(lengths[list(episodes)], pack_tokens=pack_tokens)
        self._packs = [[episodes[place] for place in pack] for pack in packs][rank::num_ranks]
        self._length = -(-len(packs) // num_ranks)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Batch:
        if index >= len(self._packs):
            return Batch((), index, 0)
        return Batch((self._trees.pack(self._packs[index], self._make_pack),), index, 0)


class StepSampler(Sampler[int]):
    """The numbers of the steps from `start` on; endless where `stop` is None."""

    def __init__(self, start: int, stop: int | None) -> None:
        self._start, self._stop = start, stop

    def __iter__(self) -> Iterator[int]:
        step = self._start
        while self._stop is None or step < self._stop:
            yield step
            step += 1
