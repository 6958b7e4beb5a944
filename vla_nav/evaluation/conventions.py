"""Scores as public code counts them, so that published numbers can be compared with.

Our own aggregate excludes an episode without a finite geodesic and counts it, or calls it a
failure. Public code does neither; what it does, applied to the same episodes:

    convention   SR, OSR, nDTW, SDTW      SPL                     NE
    vlnce        mean over all            mean over all: one NaN  mean over all: one
                                          makes it NaN            inf makes it inf
    vlnce_2020   the same, OSR and the    as vlnce                as vlnce
                 path of nDTW without
                 the start
    internnav    mean over all            NaN counts as 0         mean over finite ones

`vlnce` is VLN-CE vlnce_baselines/common/base_il_trainer.py (a sum over all episodes, divided by
their number) on habitat-lab tasks/nav/nav.py (Success, SPL) and VLN-CE
habitat_extensions/measures.py; StreamVLN, JanusVLN and NaVILA carry copies of it, habitat-baselines
averages the same way. `vlnce_2020` is that measures.py before commit af4fd50 (August 2021): its OSR
and the path of its nDTW begin after the first action. `internnav` is InternNav
habitat_extensions/vln/habitat_vln_evaluator.py (calc_metrics). With L = inf their SPL of a failure
is 0 * (inf / inf), which is NaN, not 0. Their distances are strict (NE < threshold) whatever
`is_strict` says here; their nDTW is approximate (fastdtw), ours exact.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

CONVENTIONS = ("vlnce", "vlnce_2020", "internnav")
SCORES = ("sr", "osr", "spl", "ne_m", "ndtw", "sdtw")
DEFINITIONS = {
    "vlnce": "every measure a plain mean over all episodes, inf and NaN included, as VLN-CE",
    "vlnce_2020": "as VLN-CE before August 2021: OSR and the path of nDTW without the start",
    "internnav": "as VLN-CE, but a NaN of SPL counts as 0 and NE is over finite ones, as InternNav",
}


def public_scores(
    distances_m: np.ndarray,
    path_m: float,
    ndtw: float | None,
    ndtw_2020: float | None,
    *,
    has_stopped: bool,
    success_m: float,
) -> dict[str, float | None]:
    """One episode's scores; NE may be inf and SPL NaN.

    distances_m: (N,) geodesic distances of the visited positions, the start first. ndtw: None in
    tasks without a reference path. *_2020: without the start.
    """
    start_m, end_m = float(distances_m[0]), float(distances_m[-1])
    # After the first action the agent stands at position 1; a first STOP leaves it at the start.
    later_m = distances_m[1:] if len(distances_m) > 1 else distances_m
    sr = float(has_stopped and end_m < success_m)
    return {
        "sr": sr,
        "osr": float(bool(np.any(distances_m < success_m))),
        "osr_2020": float(bool(np.any(later_m < success_m))),
        "spl": sr * _quotient(start_m, path_m),
        "ne_m": end_m,
        "ndtw": ndtw,
        "ndtw_2020": ndtw_2020,
    }


def public_score(public: Mapping[str, Any], name: str, convention: str) -> float | None:
    """One score of a record's `public` under a convention; None where it leaves it out."""
    suffix = "_2020" if convention == "vlnce_2020" else ""
    if name == "sdtw":
        ndtw = public.get(f"ndtw{suffix}")
        return None if ndtw is None else float(public["sr"]) * float(ndtw)
    value = public.get(f"{name}{suffix}" if name in ("osr", "ndtw") else name)
    if value is None:
        return None
    value = float(value)
    if convention == "internnav" and not math.isfinite(value):
        return 0.0 if name == "spl" else None
    return value


def public_aggregate(records: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]] | None:
    """`{"vlnce": {"n", "sr", "spl", ...}, "internnav": ...}` over all records, flagged or not.

    Non-finite means are the texts "inf" and "nan", which JSON can hold. None where the records
    are of a version that kept no public scores, or there are none.
    """
    scores = [record.get("public") for record in records]
    if not scores or any(score is None for score in scores):
        return None
    return {
        convention: {
            "n": len(scores),
            **to_json(
                {
                    name: _mean([public_score(score, name, convention) for score in scores])
                    for name in SCORES
                }
            ),
        }
        for convention in CONVENTIONS
    }


def to_json(scores: Mapping[str, float | None]) -> dict[str, float | str | None]:
    """Scores as JSON can hold them: "inf" and "nan" as text; `float(...)` reads both."""
    return {
        name: value if value is None or math.isfinite(value) else str(value)
        for name, value in scores.items()
    }


def _mean(values: Sequence[float | None]) -> float | None:
    """The plain mean of what there is, inf and NaN included."""
    found = [value for value in values if value is not None]
    return float(np.mean(found)) if found else None


def _quotient(start_m: float, path_m: float) -> float:
    """L / max(L, P) as Python computes it: NaN for inf / inf; 1 where there is nothing to walk."""
    longest = max(start_m, path_m)
    return start_m / longest if longest != 0 else 1.0
