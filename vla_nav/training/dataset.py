"""Recorded episodes as trees with their frames, and optimiser steps as packs of them.

    episode i --prompt builder--> paths --> prefix tree        once per worker, then remembered
              --frame cache-----> row numbers of its frames
    step s    --PackOrder-------> packs of episodes --> pack(trees) + frames + attention plan

A tree takes about 10 kB, so a worker keeps all trees of a set of some ten thousand episodes;
`remember` bounds how many.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import Dataset, Sampler

from vla_nav.episodes.lerobot_reader import LeRobotDataset
from vla_nav.errors import UserError
from vla_nav.models.prompt import PromptBuilder
from vla_nav.training.batch import Batch, Pack, make_pack
from vla_nav.training.packing import PackOrder, sequential_packs
from vla_nav.tree import PackedTree, PrefixTree
from vla_nav.vision.cache import FeatureCache


class EpisodeTree(NamedTuple):
    """An episode's tree and the cache rows (F,) int64 of its frame table."""

    tree: PrefixTree
    rows: np.ndarray


class RecordedTrees:
    """The trees of a recorded data set under one prompt and layout, built when asked for.

    supervise: own | all, see `vla_nav.tree.history`. frames: a feature or pixel cache.
    """

    def __init__(
        self,
        episodes: LeRobotDataset,
        builder: PromptBuilder,
        frames: FeatureCache,
        *,
        supervise: str = "own",
        remember: int = 100_000,
    ) -> None:
        self.episodes, self.builder, self.frames = episodes, builder, frames
        self._supervise, self._remember = supervise, remember
        self._known: OrderedDict[int, EpisodeTree] = OrderedDict()

    def __len__(self) -> int:
        return len(self.episodes)

    def __getitem__(self, index: int) -> EpisodeTree:
        """The tree of episode `index`. Raises `UserError` naming an episode that has no label."""
        known = self._known.get(index)
        if known is None:
            episode = self.episodes[index]
            paths, keys = self.builder.paths(episode, supervise=self._supervise)
            if not paths:
                raise UserError(
                    f"{self.episodes.root}: episode {'/'.join(episode.key)} has no step with an "
                    "expert label; record it again"
                )
            tree = PrefixTree.from_paths(paths, num_frames=len(keys))
            known = EpisodeTree(tree, self.frames.rows(keys))
            self._known[index] = known
            if len(self._known) > self._remember:
                self._known.popitem(last=False)
        return known

    def names(self) -> list[str]:
        """`dataset/split/role/id` of every episode."""
        return list(map("/".join, self.episodes.keys()))

    def lengths(self) -> np.ndarray:
        """(E,) int64 upper bounds of the trees' tokens, for one label per step.

        Exact but for action tokens that a shorter action (STOP) does not have or that merge.
        """
        builder, space = self.builder, self.builder.action_space
        probe = self.episodes[0].start_pose
        frames = builder.observation(range(len(builder.streams)), probe, probe)
        per_step = len(frames.full) + space.max_length
        if builder.layout.history == "pooled":
            per_step += len(frames.pooled)
        if builder.layout.actions == "visible":
            per_step += space.max_length
        root = len(builder.root())
        roots = [root + len(builder.instruction(text)) for text in self.episodes.instructions()]
        return np.array(roots) + per_step * self.episodes.num_steps

    def text_ids(self, indices: Sequence[int]) -> set[int]:
        """Rows of the text table that the instructions of some episodes use."""
        texts = self.episodes.instructions()
        num_own = self.builder.vocabulary.num_own
        used: set[int] = set(self.builder.root().token_ids.tolist())
        for text in {texts[index] for index in indices}:
            used.update(self.builder.instruction(text).token_ids.tolist())
        # Own tokens look up row 0 as well, and then do not show it (see models/vla.py).
        return {0, *(token - num_own for token in used if token >= num_own)}

    def pack(
        self,
        indices: Sequence[int],
        plan: Callable[[PackedTree], Any],
        padded_length: Callable[[int], int],
    ) -> Pack:
        """The pack of some episodes, with frames and attention plan."""
        parts = [self[index] for index in indices]
        frames = self.frames.read(np.concatenate([part.rows for part in parts]))
        return make_pack([part.tree for part in parts], frames, plan, padded_length=padded_length)


class StepDataset(Dataset[Batch]):
    """Item s is the batch of optimiser step s: any worker can build any of them.

    episodes: which episodes of `trees` take part; `order` counts these.
    """

    def __init__(
        self,
        trees: RecordedTrees,
        episodes: Sequence[int],
        order: PackOrder,
        plan: Callable[[PackedTree], Any],
        padded_length: Callable[[int], int],
    ) -> None:
        self._trees, self._episodes, self._order = trees, list(episodes), order
        self._plan, self._padded_length = plan, padded_length

    def __getitem__(self, step: int) -> Batch:
        packs = tuple(
            self._trees.pack(
                [self._episodes[place] for place in places], self._plan, self._padded_length
            )
            for places in self._order.step(step)
        )
        return Batch(packs, step, self._order.epoch_of(step))


class PackDataset(Dataset[Batch]):
    """Some episodes in their own order, one pack per item: validation.

    Every rank has the same number of items; where packs run out a batch holds none.
    """

    def __init__(
        self,
        trees: RecordedTrees,
        episodes: Sequence[int],
        lengths: np.ndarray,
        *,
        pack_tokens: int,
        plan: Callable[[PackedTree], Any],
        padded_length: Callable[[int], int],
        rank: int = 0,
        num_ranks: int = 1,
    ) -> None:
        self._trees, self._plan, self._padded_length = trees, plan, padded_length
        packs = sequential_packs(lengths[list(episodes)], pack_tokens=pack_tokens)
        self._packs = [[episodes[place] for place in pack] for pack in packs][rank::num_ranks]
        self._length = -(-len(packs) // num_ranks)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Batch:
        if index >= len(self._packs):
            return Batch((), index, 0)
        return Batch(
            (self._trees.pack(self._packs[index], self._plan, self._padded_length),), index, 0
        )


class StepSampler(Sampler[int]):
    """The numbers of the steps from `start` on; endless where `stop` is None."""

    def __init__(self, start: int, stop: int | None) -> None:
        self._start, self._stop = start, stop

    def __iter__(self) -> Iterator[int]:
        step = self._start
        while self._stop is None or step < self._stop:
            yield step
            step += 1
