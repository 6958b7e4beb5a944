"""Packs of a step that cost the same, and ranks that have the same to do.

    the trees of a step       those of its packs as the order fills them: balancing changes who
                              computes a tree, never which trees a step learns from
    trees over packs          largest first into the cheapest pack with room; then, as long as it
                              helps, the costliest pack gives a tree away or exchanges one
    packs over ranks          the same number each; costliest first to the rank with least to do

    costs   9 | 5 | 4 | 2     two ranks, two packs each     9 2 | 5 4

The packs depend on their number, not on how it is divided: four packs on one rank, two on each of
two and one on each of four are the same. A rank takes its costliest pack first, so that ranks
that wait for each other in every pass (FSDP) have like beside like.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from vla_nav.training.cost_model import PackCosts

Packs = tuple[tuple[int, ...], ...]
_ENOUGH = 1.005  # largest over mean: below, what a step takes varies more by itself
_ROUNDS = 64
_PARTNERS = 8  # cheapest packs that the costliest one looks at


def balanced_packs(packs: Packs, costs: PackCosts, *, pack_tokens: int) -> Packs:
    """The same trees in as many packs of nearly equal cost, each within `pack_tokens`.

    Never worse than `packs`: the costliest pack costs at most what it costs there.
    """
    if len(packs) == 1:
        return packs
    starts = [[list(pack) for pack in packs]]
    greedy = _largest_first(packs, costs, pack_tokens)
    if greedy is not None:
        starts.insert(0, greedy)
    levelled = [
        level(start, costs.trees, costs.tokens, capacity=pack_tokens, cost_of=costs.pack)
        for start in starts
    ]
    best = min(levelled, key=lambda made: _spread(costs.of(made)))
    return tuple(tuple(sorted(pack)) for pack in best)


def shared_out(packs: Packs, costs: np.ndarray, num_ranks: int) -> tuple[Packs, ...]:
    """The packs of every rank, the same number each. costs: (P,) of the packs."""
    per_rank = len(packs) // num_ranks
    ranks: list[list[int]] = [[] for _ in range(num_ranks)]
    loads = np.zeros(num_ranks)
    order = np.argsort(-costs, kind="stable").tolist()
    for pack in order:
        open_ranks = [r for r in range(num_ranks) if len(ranks[r]) < per_rank]
        rank = min(open_ranks, key=lambda r: (loads[r], r))
        ranks[rank].append(pack)
        loads[rank] += costs[pack]
    if per_rank > 1 and num_ranks > 1:
        sizes = np.zeros(len(packs), dtype=np.int64)
        ranks = level(ranks, costs, sizes, capacity=0, cost_of=lambda c, _: c, only_swaps=True)
    place = {pack: number for number, pack in enumerate(order)}
    return tuple(tuple(packs[k] for k in sorted(rank, key=place.__getitem__)) for rank in ranks)


def level(
    groups: Sequence[Sequence[int]],
    costs: np.ndarray,
    sizes: np.ndarray,
    *,
    capacity: int,
    cost_of: Callable[[np.ndarray, np.ndarray], np.ndarray],
    only_swaps: bool = False,
) -> list[list[int]]:
    """Groups of items with less to do in the costliest one, by moving and exchanging single items.

    costs, sizes: of the items. capacity: most that the sizes of a group add up to. cost_of(sum of
    costs, sum of sizes) -> cost of a group. A group never becomes empty. Deterministic.
    """
    made = [list(group) for group in groups]
    cost = np.array([costs[group].sum() for group in made])
    size = np.array([sizes[group].sum() for group in made])
    for _ in range(_ROUNDS):
        total = cost_of(cost, size)
        high = int(total.argmax())
        if total[high] <= _ENOUGH * total.mean():
            break
        found = None
        for low in np.argsort(total, kind="stable")[:_PARTNERS].tolist():
            if low == high:
                continue
            given = np.array(made[high])
            taken = np.array([*([] if only_swaps else [-1]), *made[low]])
            has_item = taken >= 0
            # (given, taken): what the costliest group loses to its partner
            moved_cost = costs[given][:, None] - np.where(has_item, costs[taken], 0)[None]
            moved_size = sizes[given][:, None] - np.where(has_item, sizes[taken], 0)[None]
            new_high = cost_of(cost[high] - moved_cost, size[high] - moved_size)
            new_low = cost_of(cost[low] + moved_cost, size[low] + moved_size)
            worse = np.maximum(new_high, new_low)
            fits = (size[low] + moved_size <= capacity) & (size[high] - moved_size <= capacity)
            if len(given) == 1:
                fits &= has_item[None]
            worse = np.where(fits, worse, np.inf)
            place = int(worse.argmin())
            value = float(worse.flat[place])
            if value < (1 - 1e-9) * total[high] and (found is None or value < found[0]):
                row, column = divmod(place, len(taken))
                found = value, low, int(given[row]), int(taken[column])
        if found is None:
            break
        _, low, mine, yours = found
        made[high].remove(mine)
        made[low].append(mine)
        if yours >= 0:
            made[low].remove(yours)
            made[high].append(yours)
        for group in (high, low):
            cost[group], size[group] = costs[made[group]].sum(), sizes[made[group]].sum()
    return made


def imbalance(loads: np.ndarray) -> float:
    """How much longer steps take than with equal ranks. loads: (S, R) costs of steps and ranks."""
    return float(loads.max(axis=1).sum() / loads.mean(axis=1).sum())


def _largest_first(packs: Packs, costs: PackCosts, pack_tokens: int) -> list[list[int]] | None:
    """Every tree, the costliest first, into the cheapest pack with room; None where one has none.

    The first trees go into empty packs, so that none stays empty.
    """
    trees = np.array([tree for pack in packs for tree in pack])
    trees = trees[np.lexsort((trees, -costs.trees[trees]))]
    made: list[list[int]] = [[] for _ in packs]
    cost, size = np.zeros(len(packs)), np.zeros(len(packs), dtype=np.int64)
    for tree in trees.tolist():
        has_room = size + costs.tokens[tree] <= pack_tokens
        if not has_room.any():
            return None
        total = np.where(size == 0, -1.0, costs.pack(cost, size))
        place = int(np.where(has_room, total, np.inf).argmin())
        made[place].append(tree)
        cost[place] += costs.trees[tree]
        size[place] += costs.tokens[tree]
    return made


def _spread(costs: np.ndarray) -> tuple[float, float]:
    """Smaller is better: the costliest pack, then the sum of squares."""
    return float(costs.max()), float(np.square(costs).sum())
