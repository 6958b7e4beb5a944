"""One table row from many episode records: means with bootstrap intervals clustered by scene.

Episodes of one house resemble each other, so a resample draws whole scenes with replacement:

    scenes      A A A   B B   C          a resample: A A C -> mean over the episodes of A, A and C
    interval    the 2.5 % and 97.5 % quantiles of the resampled means

Flagged episodes (no finite geodesic) are excluded and counted (`exclude`), or count as failures
with SR, OSR, SPL, nDTW and SDTW of 0 and no NE (`failure`); the table says which. Under `public`
stands what public code makes of the same episodes, none excluded (`conventions.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vla_nav.errors import unknown_name
from vla_nav.evaluation.conventions import public_aggregate
from vla_nav.seeding import generator

FLAG_POLICIES = ("exclude", "failure")
NUM_RESAMPLES = 2000
_SCORES = ("osr", "osr_public", "spl", "ndtw", "ndtw_public", "sdtw")
_PLAIN = ("ne_m", "geodesic_m", "path_m", "steps", "num_decisions", "collisions")


def aggregate(
    name: str,
    records: Sequence[Mapping[str, Any]],
    *,
    num_expected: int,
    flag_policy: str,
    seed: int,
) -> dict[str, Any]:
    """The row `name`: n, sr, sr_low, sr_high, spl, ne_m, ndtw and the rest; None where empty.

    n counts the scored episodes, num_flagged the others, num_expected what should be there.
    """
    if flag_policy not in FLAG_POLICIES:
        raise unknown_name("evaluation.flag_policy", flag_policy, FLAG_POLICIES)
    thresholds = sorted({field for record in records for field in record if _is_success(field)})
    fields = ("sr", *(field for field in thresholds if field != "sr"), *_SCORES)
    flagged = [record for record in records if record["flag"] is not None]
    if flag_policy == "exclude":
        scored = [record for record in records if record["flag"] is None]
    else:
        # A task without a reference path has no nDTW, of failures neither.
        kept = [record for record in records if record["flag"] is None]
        zeros = {
            field: 0.0
            for field in fields
            if not kept or any(record[field] is not None for record in kept)
        }
        scored = [record if record["flag"] is None else {**record, **zeros} for record in records]
    row: dict[str, Any] = {
        "name": name,
        "n": len(scored),
        "num_expected": num_expected,
        "num_flagged": len(flagged),
        "num_scenes": len({record["scene_id"] for record in scored}),
    }
    scenes = [record["scene_id"] for record in scored]
    for field in fields:
        values = [float(record[field]) for record in scored if record[field] is not None]
        row[field] = _mean(values)
        if _is_success(field) or field == "spl":
            low, high = interval(values, scenes, seed=seed)
            row[f"{field}_low"], row[f"{field}_high"] = low, high
    for field in _PLAIN:
        row[field] = _mean([float(record[field]) for record in scored if record[field] is not None])
    row["public"] = public_aggregate(records)
    return row


def interval(
    values: Sequence[float], clusters: Sequence[str], *, seed: int, level: float = 0.95
) -> tuple[float | None, float | None]:
    """The bootstrap interval of the mean of `values`, resampling whole clusters."""
    if not values:
        return None, None
    names, index = np.unique(np.asarray(clusters), return_inverse=True)
    sums = np.bincount(index, weights=np.asarray(values, dtype=np.float64))  # (clusters,)
    counts = np.bincount(index)
    rng = generator(seed, "bootstrap")
    draws = rng.integers(0, len(names), size=(NUM_RESAMPLES, len(names)))
    means = sums[draws].sum(axis=1) / counts[draws].sum(axis=1)  # (resamples,)
    tail = (1 - level) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)


def _is_success(field: str) -> bool:
    return field == "sr" or (field.startswith("sr_") and field.endswith("m"))


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
