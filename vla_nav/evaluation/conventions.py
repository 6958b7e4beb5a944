"""Scores as public code counts them, so that published numbers can be compared with.

Our own aggregate excludes an episode without a finite geodesic and counts it, or calls it a
failure. Public code does neither; what it does, applied to the same episodes:

    convention   SR, OSR, nDTW       SPL                     NE                     n
    vlnce        mean over all       mean over all: one NaN  mean over all: one     all
                                     makes it NaN            inf makes it inf
    internnav    mean over all       NaN counts as 0         mean over finite ones  all

`vlnce` is VLN-CE vlnce_baselines/common/base_il_trainer.py (a sum over all episodes, divided by
their number) on habitat-lab tasks/nav/nav.py (Success, SPL) and VLN-CE
habitat_extensions/measures.py (OSR and the path of nDTW begin after the first action);
habitat-baselines averages the same way. `internnav` is InternNav
habitat_extensions/vln/habitat_vln_evaluator.py (calc_metrics). With L = inf their SPL of a failure
is 0 * (inf / inf), which is NaN, not 0. Their distances are strict (NE < threshold) whatever
`is_strict` says here; VLN-CE's nDTW is approximate (fastdtw), ours exact.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

CONVENTIONS = ("vlnce", "internnav")
SCORES = ("sr", "osr", "spl", "ne_m", "ndtw")
DEFINITIONS = {
    "vlnce": "every measure a plain mean over all episodes, inf and NaN included, as VLN-CE",
    "internnav": "as VLN-CE, but a NaN of SPL counts as 0 and NE is over finite ones, as InternNav",
}


def public_scores(
    distances_m: np.ndarray,
    path_m: float,
    ndtw: float | None,
    *,
    has_stopped: bool,
    success_m: float,
) -> dict[str, float | None]:
    """One episode's scores; NE may be inf and SPL NaN.

    distances_m: (N,) geodesic distances of the visited positions, the start first. ndtw: of the
    path after the first action; None in tasks without a reference path.
    """
    start_m, end_m = float(distances_m[0]), float(distances_m[-1])
    # After the first action the agent stands at position 1; a first STOP leaves it at the start.
    visited = distances_m[1:] if len(distances_m) > 1 else distances_m
    sr = float(has_stopped and end_m < success_m)
    return {
        "sr": sr,
        "osr": float(bool(np.any(visited < success_m))),
        "spl": sr * _quotient(start_m, path_m),
        "ne_m": end_m,
        "ndtw": ndtw,
    }


def public_aggregate(records: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]] | None:
    """`{"vlnce": {"n", "sr", "spl", ...}, "internnav": ...}` over all records, flagged or not.

    Non-finite means are the texts "inf" and "nan", which JSON can hold. None where the records
    are of a version that kept no public scores, or there are none.
    """
    scores = [record.get("public") for record in records]
    if not scores or any(score is None for score in scores):
        return None
    plain = {name: _mean([score[name] for score in scores]) for name in SCORES}
    spl = [float(score["spl"]) for score in scores]
    ne_m = [float(score["ne_m"]) for score in scores]
    lenient = {
        **plain,
        "spl": _mean([0.0 if math.isnan(value) else value for value in spl]),
        "ne_m": _mean([value for value in ne_m if math.isfinite(value)]),
    }
    return {
        "vlnce": {"n": len(scores), **to_json(plain)},
        "internnav": {"n": len(scores), **to_json(lenient)},
    }


def to_json(scores: Mapping[str, float | None]) -> dict[str, float | str | None]:
    """Scores as JSON can hold them: "inf" and "nan" as text; `float(...)` reads both."""
    return {
        name: value if value is None or math.isfinite(value) else str(value)
        for name, value in scores.items()
    }


def _mean(values: Sequence[float | str | None]) -> float | None:
    """The plain mean, inf and NaN included; None of nothing, or where a task has no such score."""
    if not values or any(value is None for value in values):
        return None
    return float(np.mean([float(value) for value in values]))


def _quotient(start_m: float, path_m: float) -> float:
    """L / max(L, P) as Python computes it: NaN for inf / inf; 1 where there is nothing to walk."""
    longest = max(start_m, path_m)
    return start_m / longest if longest != 0 else 1.0
