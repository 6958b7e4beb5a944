"""Which recorded splits a run learns from, and how often each of their trees is seen.

    data.mixture=[{path: demo/a, weight: 1}, {path: demo/b, split: train, weight: 2.5}]

    weight w    every tree of the source is seen w times an epoch
    2.5         twice in every epoch, and a third time in every other one: of a deck that is
                shuffled and dealt to its end before it is shuffled again, half is dealt an epoch

So after n epochs a tree has been seen n * w times, rounded down or up: a fraction leaves nobody
out. Which trees an epoch takes is a function of the seed and the epoch alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from vla_nav.episodes.lerobot_layout import Conventions
from vla_nav.errors import UserError, unknown_name
from vla_nav.seeding import generator

_KEYS = ("path", "split", "weight")
_KEY = "data.mixture"
_MOST_TREES = 10**8  # of an epoch: their numbers are held in memory


@dataclass(frozen=True, slots=True)
class Source:
    """A recorded split of the data set at `path`. weight: how often a tree is seen an epoch."""

    path: str
    split: str
    weight: float = 1.0

    def __str__(self) -> str:
        return str(Path(self.path) / "recorded" / self.split)

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def read_sources(data: Mapping[str, Any]) -> tuple[Source, ...]:
    """The sources that a node `data` names: its mixture, or its path and split alone.

    An entry without path or split takes those of the node. Raises `UserError` for anything that
    is no mixture.
    """
    mixture = data.get("mixture")
    if mixture is None:
        return (Source(data["path"], data["split"]),)
    if not isinstance(mixture, Sequence) or isinstance(mixture, str) or not mixture:
        raise UserError(
            f"{_KEY}={mixture}: needs a list such as [{{path: demo/data, split: train, weight: 1}}]"
            ", or null for data.path and data.split alone"
        )
    sources = tuple(_source(place, entry, data) for place, entry in enumerate(mixture))
    for place, source in enumerate(sources):
        for earlier in sources[:place]:
            if Path(str(earlier)).resolve() == Path(str(source)).resolve():
                raise UserError(
                    f"{_KEY}: {source} is there twice; give it once, with the sum of both weights"
                )
    return sources


def require_same_body(stated: Sequence[tuple[Source, Conventions]]) -> None:
    """Raise `UserError` unless all sources were recorded by the same body.

    Turn, step and decision are held to the action space for each (`require_conventions`); here
    the cameras, size and sliding of one policy must be those of all that it learns from.
    """
    first, expected = stated[0]
    for source, found in stated[1:]:
        mine, theirs = asdict(found.embodiment), asdict(expected.embodiment)
        for key, value in mine.items():
            if value != theirs[key]:
                raise UserError(
                    f"{_KEY}: {source} was recorded with {key}={_shown(value)} and {first} with "
                    f"{_shown(theirs[key])}; one policy has one body: record or convert one of "
                    "them again, or train on one alone"
                )


class EpochDraws:
    """Which trees an epoch takes. Trees of all sources are counted through, source by source.

    sizes, weights: of every source. members: trees (places in that count) that take part, such as
    those that are not held out; None for all.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        weights: Sequence[float],
        *,
        seed: int,
        members: np.ndarray | None = None,
    ) -> None:
        bounds = np.cumsum([0, *sizes])
        taken = np.arange(bounds[-1]) if members is None else np.asarray(members)
        edges = np.searchsorted(taken, bounds)
        self._trees = [np.arange(a, b) for a, b in pairwise(edges.tolist())]
        self._weights, self._seed = tuple(weights), seed
        expected = sum(w * len(trees) for w, trees in zip(weights, self._trees, strict=True))
        if len(taken) and expected < 1:
            raise UserError(
                f"{_KEY}: these weights take {expected:.3g} trees an epoch; give weights that "
                "take at least one"
            )
        if expected > _MOST_TREES:
            raise UserError(
                f"{_KEY}: these weights take {expected:.3g} trees an epoch, allowed are "
                f"{_MOST_TREES:.3g}; give smaller weights in the same proportion"
            )

    def __call__(self, epoch: int) -> np.ndarray:
        """(D,) int64 the trees of `epoch` by place among `members`, those of a tree that comes
        several times together."""
        drawn = []
        for number, (trees, weight) in enumerate(zip(self._trees, self._weights, strict=True)):
            whole = math.floor(weight)
            share = (weight - whole) * len(trees)
            first, last = round(epoch * share), round((epoch + 1) * share)
            drawn += [np.repeat(trees, whole), self._dealt(number, trees, first, last)]
        return np.sort(np.concatenate(drawn))

    def _dealt(self, number: int, trees: np.ndarray, first: int, last: int) -> np.ndarray:
        """Cards first .. last - 1 of the endless row of shuffled decks."""
        if first == last:
            return trees[:0]
        decks = range(first // len(trees), (last - 1) // len(trees) + 1)
        row = np.concatenate(
            [trees[generator(self._seed, "mixture", number, k).permutation(len(trees))]
             for k in decks]
        )  # fmt: skip
        start = first - decks[0] * len(trees)
        return row[start : start + last - first]


def _source(place: int, entry: Any, data: Mapping[str, Any]) -> Source:
    if not isinstance(entry, Mapping):
        raise UserError(f"{_KEY}[{place}]={entry}: needs keys: {', '.join(_KEYS)}")
    for key in entry:
        if key not in _KEYS:
            raise unknown_name(f"key of '{_KEY}[{place}]':", str(key), _KEYS)
    path, split = (data[key] if entry.get(key) is None else entry[key] for key in ("path", "split"))
    for key, text in (("path", path), ("split", split)):
        if not isinstance(text, str) or not text:
            raise UserError(f"{_KEY}[{place}].{key}={text}: needs text")
    weight = entry.get("weight", 1.0)
    is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
    if not is_number or not 0 < weight < math.inf:
        raise UserError(
            f"{_KEY}[{place}].weight={weight}: needs a number above 0: how often each tree of "
            "the source is seen in an epoch"
        )
    return Source(path, split, float(weight))


def _shown(value: Any) -> str:
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_shown(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_shown(item)}" for key, item in value.items()) + "}"
    return str(value)
