"""How many outcomes batching changes: some episodes of a batched run, once more one by one.

A batch rounds its sums otherwise than a single row does. Where two actions are nearly tied the
policy may then take the other one, and the rest of the episode differs. A run that decides one slot
per forward (`evaluation.deterministic`) is free of that. A batched run plays its first
`evaluation.num_replays` episodes again in that way and states

    share = episodes with other primitives / episodes played twice,  and its exact 95 % bounds
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scipy.stats import beta

from vla_nav.episodes.types import Episode
from vla_nav.evaluation.conditions import Actor, Condition
from vla_nav.evaluation.play import Unit
from vla_nav.evaluation.results import Key

_LEVEL = 0.95
_NUM_NAMED = 20  # differing episodes that the report names


def replayed_units(
    rows: Sequence[Condition], selection: Sequence[Episode], num_replays: int | None
) -> tuple[Unit, ...]:
    """The units that are played twice: of the first row with a network, the first episodes of the
    selection (None: all of them). They do not depend on shards."""
    for row in rows:
        if row.actor is Actor.NETWORK:
            return tuple(Unit(row, episode) for episode in selection[:num_replays])
    return ()


def batching(
    records: Mapping[Key, Mapping[str, Any]],
    replays: Mapping[Key, Mapping[str, Any]],
    *,
    is_deterministic: bool,
    num_expected: int,
) -> dict[str, Any]:
    """What the report says about batching where a network decides: see the module.

    num_expected: how many should have been played twice.
    """
    said: dict[str, Any] = {"is_deterministic": is_deterministic}
    if is_deterministic:
        return said
    twice = sorted(key for key in replays if key in records)
    differing = [key for key in twice if _differs(records[key], replays[key], "primitives")]
    low, high = exact_bounds(len(differing), len(twice))
    return {
        **said,
        "row": twice[0][0] if twice else None,
        "num_expected": num_expected,
        "num_replayed": len(twice),
        "num_differing": len(differing),
        "share": len(differing) / len(twice) if twice else None,
        "share_low": low,
        "share_high": high,
        "num_other_success": sum(_differs(records[key], replays[key], "sr") for key in twice),
        "differing": [key[-1] for key in differing[:_NUM_NAMED]],
    }


def exact_bounds(count: int, total: int) -> tuple[float | None, float | None]:
    """The 95 % bounds of a share by Clopper and Pearson (1934); None without trials.

    >>> exact_bounds(0, 0)
    (None, None)
    """
    if not total:
        return None, None
    tail = (1 - _LEVEL) / 2
    low = float(beta.ppf(tail, count, total - count + 1)) if count else 0.0
    high = float(beta.ppf(1 - tail, count + 1, total - count)) if count < total else 1.0
    return low, high


def sentence(said: Mapping[str, Any]) -> str:
    """One line for the console and the page."""
    if said["is_deterministic"]:
        return "decided one slot per forward: independent of batches, slots, workers and shards"
    if not said["num_replayed"]:
        return "decided in batches; none was replayed one by one (evaluation.num_replays)"
    return (
        f"decided in batches; {said['num_differing']} of {said['num_replayed']} episodes replayed "
        f"one slot per forward differ (share {said['share']:.3f}, 95 % bounds "
        f"{said['share_low']:.3f} to {said['share_high']:.3f}), "
        f"{said['num_other_success']} of them in success"
    )


def _differs(one: Mapping[str, Any], other: Mapping[str, Any], name: str) -> bool:
    return one[name] != other[name]
