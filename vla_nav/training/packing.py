"""Which episodes share a pack, and which pack a step takes: a pure function of the seed.

A pack holds whole trees up to a token budget. Every epoch shuffles the episodes, fills packs
first-fit over a few open ones, and shuffles the packs:

    budget 10, lengths in shuffled order  4 5 3 6 2     open packs
                                          -> [4 5] [3 6] [2]

A step is a number: with A packs on each of R ranks step s takes packs s*A*R .. (s+1)*A*R - 1,
epoch after epoch. So the position in the data is one integer, any worker can build any step, and a
continued run takes exactly the packs that the uninterrupted one would have taken. Where costs are
given, packs are filled to 97 % and the trees of a step then divided anew, up to the whole budget
(`vla_nav.training.balance`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

import numpy as np

from vla_nav.errors import UserError
from vla_nav.seeding import generator
from vla_nav.training.balance import Packs, balanced_packs, shared_out
from vla_nav.training.cost_model import PackCosts

_FILL = 0.97  # of the budget, where packs of a step exchange trees: full ones could not
_OPEN_PACKS = 16  # more open packs fill better and mix long with short episodes less evenly


class PackOrder:
    """The packs of every epoch, for one rank of a training run.

    lengths: (E,) token counts (or upper bounds of them) of the trees. pack_tokens: budget.
    accumulate: packs per optimiser step and rank. Packs that do not fill the last step of an
    epoch move to the front of the next one, so nothing is dropped. draws: epoch -> the trees that
    it takes, (D,) with repeats; None: each once. costs: packs and ranks of a step are balanced by
    them; None: packs stay as they were filled, and ranks take them in order.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        *,
        pack_tokens: int,
        accumulate: int = 1,
        seed: int = 0,
        rank: int = 0,
        num_ranks: int = 1,
        draws: Callable[[int], np.ndarray] | None = None,
        costs: PackCosts | None = None,
    ) -> None:
        if not len(lengths):
            raise UserError("training.validation: no episode is left to train on")
        self._lengths = np.asarray(lengths, dtype=np.int64)
        self._pack_tokens, self._draws, self._costs = pack_tokens, draws, costs
        fill = pack_tokens if costs is None else int(_FILL * pack_tokens)
        self._fill_tokens = min(pack_tokens, max(fill, int(self._lengths.max())))
        self._per_step = accumulate * num_ranks
        self._accumulate, self._rank, self._num_ranks = accumulate, rank, num_ranks
        self._seed = seed
        self._starts = [0]  # number of packs before epoch e, over all ranks
        self._epochs: dict[int, list[tuple[int, ...]]] = {}

    def step(self, index: int) -> Packs:
        """The packs (tree numbers) of this rank's optimiser step `index`."""
        return self.ranks(index)[self._rank]

    def ranks(self, index: int) -> tuple[Packs, ...]:
        """The packs of every rank in step `index`."""
        first, size = index * self._per_step, self._accumulate
        packs = tuple(self._pack(first + k) for k in range(self._per_step))
        if self._costs is None:
            return tuple(packs[k : k + size] for k in range(0, self._per_step, size))
        packs = balanced_packs(packs, self._costs, pack_tokens=self._pack_tokens)
        return shared_out(packs, self._costs.of(packs), self._num_ranks)

    def epoch_of(self, index: int) -> int:
        """The epoch that the first pack of step `index` belongs to."""
        return self._locate(index * self._per_step)[0]

    def steps_of_epochs(self, num_epochs: int) -> int:
        """The number of optimiser steps that take `num_epochs` epochs."""
        for epoch in range(num_epochs):
            self._start_after(epoch)
        return -(-self._starts[num_epochs] // self._per_step)

    def _pack(self, index: int) -> tuple[int, ...]:
        epoch, place = self._locate(index)
        return self._epoch(epoch)[place]

    def _locate(self, index: int) -> tuple[int, int]:
        while self._starts[-1] <= index:
            self._start_after(len(self._starts) - 1)
        epoch = bisect_right(self._starts, index) - 1
        return epoch, index - self._starts[epoch]

    def _start_after(self, epoch: int) -> int:
        while len(self._starts) < epoch + 2:
            self._starts.append(self._starts[-1] + len(self._epoch(len(self._starts) - 1)))
        return self._starts[epoch + 1]

    def _epoch(self, epoch: int) -> list[tuple[int, ...]]:
        if epoch not in self._epochs:
            if len(self._epochs) > 2:  # steps move forward: two epochs are enough
                self._epochs.pop(min(self._epochs))
            self._epochs[epoch] = epoch_packs(
                self._lengths,
                pack_tokens=self._fill_tokens,
                seed=self._seed,
                epoch=epoch,
                drawn=None if self._draws is None else self._draws(epoch),
            )
        return self._epochs[epoch]


def epoch_packs(
    lengths: np.ndarray,
    *,
    pack_tokens: int,
    seed: int,
    epoch: int,
    drawn: np.ndarray | None = None,
) -> list[tuple[int, ...]]:
    """All packs of one epoch, none over `pack_tokens`: every episode once, or those `drawn`.

    Raises `UserError` for an episode that is longer than the budget.
    """
    require_fitting(lengths, pack_tokens)
    rng = generator(seed, "packs", epoch)
    packs: list[tuple[int, ...]] = []
    members: list[list[int]] = []
    room: list[int] = []
    for episode in rng.permutation(len(lengths) if drawn is None else drawn).tolist():
        length = int(lengths[episode])
        place = next((k for k, free in enumerate(room) if free >= length), None)
        if place is None:
            if len(members) == _OPEN_PACKS:
                fullest = min(range(_OPEN_PACKS), key=room.__getitem__)
                packs.append(tuple(members.pop(fullest)))
                room.pop(fullest)
            members.append([])
            room.append(pack_tokens)
            place = len(members) - 1
        members[place].append(episode)
        room[place] -= length
    packs += [tuple(member) for member in members]
    return [packs[k] for k in rng.permutation(len(packs)).tolist()]


def sequential_packs(lengths: Sequence[int], *, pack_tokens: int) -> list[tuple[int, ...]]:
    """Packs of the episodes in their own order (validation, statistics)."""
    require_fitting(np.asarray(lengths), pack_tokens)
    packs: list[tuple[int, ...]] = []
    members: list[int] = []
    room = pack_tokens
    for episode, length in enumerate(lengths):
        if length > room:
            packs.append(tuple(members))
            members, room = [], pack_tokens
        members.append(episode)
        room -= int(length)
    return [*packs, tuple(members)] if members else packs


def require_fitting(
    lengths: np.ndarray, pack_tokens: int, names: Sequence[str] | None = None
) -> None:
    """Raise `UserError` naming the first episode that is longer than a pack."""
    too_long = np.flatnonzero(np.asarray(lengths) > pack_tokens)
    if len(too_long):
        first = int(too_long[0])
        name = names[first] if names is not None else f"number {first}"
        raise UserError(
            f"training.pack_tokens={pack_tokens}: episode {name} has {int(lengths[first])} tokens "
            f"({len(too_long)} of {len(lengths)} episodes are too long); give a pack at least "
            f"{int(np.max(lengths))} tokens, or shorten history and frames (tree, vision)"
        )
