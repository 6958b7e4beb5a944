"""What one finished episode scored: the field's measures, each exactly as written here.

    NE     geodesic distance from the last position to the nearest goal, metres
    SR     STOP was called and NE < threshold          (strict; `is_strict=False` means <=)
    OSR    some visited position, the start included, has a geodesic distance < threshold
    SPL    SR * L / max(L, P);  L geodesic at reset, P sum of Euclidean step lengths
    nDTW   exp(-DTW(path, reference) / (|reference| * threshold)), exact DTW with 3-D Euclidean
           costs, consecutive duplicates of the agent's path dropped (arXiv:1907.05446); the
           reference is the ground-truth locations, else the reference path with a point per step
    SDTW   SR * nDTW
    steps  primitive actions, STOP included

VLN-CE began its nDTW path and its OSR after the first action until August 2021; those values are
kept beside the ones above as `ndtw_public` and `osr_public`.

A goal that cannot be reached has no finite geodesic. Such an episode gets the flag
`non_finite_geodesic` and no scores; what an aggregate does with it is declared there. What public
code would have made of it, or of any episode, is kept under `public` (`conventions.py`).

Axis legend:  N visited positions (one per primitive action, plus the start), R reference points.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from vla_nav.errors import UserError
from vla_nav.evaluation.conventions import public_scores, to_json

NON_FINITE = "non_finite_geodesic"
DEFINITIONS = {
    "ne_m": "geodesic distance to the nearest goal at the end, metres",
    "sr": "STOP called and NE < threshold",
    "osr": "any visited position (start included) with geodesic distance < threshold",
    "spl": "SR * L / max(L, P), L geodesic at reset, P sum of Euclidean step lengths",
    "ndtw": "exp(-DTW / (|reference| * threshold)), exact DTW, duplicates of the path dropped; "
    "reference: ground-truth locations, else the reference path with a point per step length",
    "sdtw": "SR * nDTW",
    "steps": "primitive actions, STOP included",
}


@dataclass(frozen=True, slots=True)
class SuccessRule:
    """The success distance, the further distances to report, and how a tie is counted."""

    success_m: float = 3.0
    further_m: tuple[float, ...] = (1.0, 2.0)
    is_strict: bool = True

    def __post_init__(self) -> None:
        for distance in (self.success_m, *self.further_m):
            if not (math.isfinite(distance) and distance > 0):
                raise UserError(
                    f"evaluation.success_m, further_m: got {distance}; allowed: metres above 0"
                )

    def is_within(self, distance_m: float, threshold_m: float) -> bool:
        """Whether a distance counts as reached; NaN and infinity never do."""
        return distance_m < threshold_m if self.is_strict else distance_m <= threshold_m

    def further_names(self) -> dict[str, float]:
        """`{"sr_1m": 1.0, "sr_2m": 2.0}` for the further distances."""
        return {f"sr_{distance:g}m": distance for distance in self.further_m}


@dataclass(frozen=True, slots=True)
class EpisodeMetrics:
    """One episode's scores; every score is None where `flag` is set. Lengths in metres.

    public: the scores of public code, flagged or not; non-finite ones as text.
    """

    flag: str | None
    sr: float | None
    further: dict[str, float | None]
    osr: float | None
    osr_public: float | None
    spl: float | None
    ne_m: float | None
    ndtw: float | None
    ndtw_public: float | None
    sdtw: float | None
    geodesic_m: float | None
    path_m: float
    steps: int
    collisions: int
    has_stopped: bool
    public: dict[str, float | str | None]

    def as_dict(self) -> dict[str, Any]:
        """Flat JSON values: the further thresholds stand beside the other scores."""
        values = asdict(self)
        values.update(values.pop("further"))
        return values


def episode_metrics(
    positions: np.ndarray,
    distances_m: Sequence[float] | np.ndarray,
    reference_path: np.ndarray,
    *,
    has_stopped: bool,
    num_collisions: int,
    rule: SuccessRule,
) -> EpisodeMetrics:
    """Score one episode.

    positions: (N, 3) metres, the start and the place after every primitive action except STOP.
    distances_m: (N,) geodesic distance of each to the nearest goal; inf or NaN without a path.
    reference_path: (R, 3) metres; (0, 3) in tasks without one, whose nDTW and SDTW are None.
    """
    positions = np.asarray(positions, dtype=np.float64).reshape(-1, 3)
    distances = np.asarray(distances_m, dtype=np.float64)
    assert len(positions) == len(distances) >= 1, (positions.shape, distances.shape)
    path_m = float(np.linalg.norm(np.diff(positions, axis=0), axis=1).sum())
    steps = len(positions) - 1 + int(has_stopped)
    geodesic_m, ne_m = float(distances[0]), float(distances[-1])
    # After the first action the agent stands at positions[1]; a first STOP leaves it at the start.
    after_first = slice(1, None) if len(positions) > 1 else slice(None)
    has_reference = len(reference_path) > 0

    def ndtw_of(path: np.ndarray) -> float | None:
        if not has_reference:
            return None
        return normalised_dtw(path, reference_path, threshold_m=rule.success_m)

    ndtw, ndtw_public = ndtw_of(positions), ndtw_of(positions[after_first])
    public = to_json(
        public_scores(
            distances, path_m, ndtw, ndtw_public, has_stopped=has_stopped, success_m=rule.success_m
        )
    )
    if not (math.isfinite(geodesic_m) and math.isfinite(ne_m)):
        return EpisodeMetrics(
            flag=NON_FINITE,
            sr=None,
            further=dict.fromkeys(rule.further_names()),
            osr=None,
            osr_public=None,
            spl=None,
            ne_m=None,
            ndtw=None,
            ndtw_public=None,
            sdtw=None,
            geodesic_m=geodesic_m if math.isfinite(geodesic_m) else None,
            path_m=path_m,
            steps=steps,
            collisions=num_collisions,
            has_stopped=has_stopped,
            public=public,
        )

    def success(threshold_m: float) -> float:
        return float(has_stopped and rule.is_within(ne_m, threshold_m))

    sr = success(rule.success_m)
    longest = max(geodesic_m, path_m)
    return EpisodeMetrics(
        flag=None,
        sr=sr,
        further={name: success(distance) for name, distance in rule.further_names().items()},
        osr=float(any(rule.is_within(d, rule.success_m) for d in distances)),
        osr_public=float(any(rule.is_within(d, rule.success_m) for d in distances[after_first])),
        spl=sr * (geodesic_m / longest if longest > 0 else 1.0),
        ne_m=ne_m,
        ndtw=ndtw,
        ndtw_public=ndtw_public,
        sdtw=None if ndtw is None else sr * ndtw,
        geodesic_m=geodesic_m,
        path_m=path_m,
        steps=steps,
        collisions=num_collisions,
        has_stopped=has_stopped,
        public=public,
    )


def normalised_dtw(path: np.ndarray, reference: np.ndarray, *, threshold_m: float) -> float:
    """exp(-DTW / (R * threshold)) of an (N, 3) path and an (R, 3) reference, in (0, 1]."""
    reference = np.asarray(reference, dtype=np.float64).reshape(-1, 3)
    assert len(reference) >= 1, "an episode without a reference path"
    cost = dtw(without_repeats(path), reference)
    return math.exp(-cost / (len(reference) * threshold_m))


def without_repeats(path: np.ndarray) -> np.ndarray:
    """(N, 3) -> (<= N, 3): consecutive equal positions kept once (turns and blocked steps)."""
    path = np.asarray(path, dtype=np.float64).reshape(-1, 3)
    is_moved = np.any(path[1:] != path[:-1], axis=1)
    return path[np.concatenate([[True], is_moved])]


def dtw(path: np.ndarray, reference: np.ndarray) -> float:
    """Exact dynamic time warping cost of (N, 3) and (R, 3) with Euclidean costs.

    total[i, j] = cost[i, j] + min(total[i-1, j], total[i, j-1], total[i-1, j-1])
    """
    costs = np.linalg.norm(path[:, None] - reference[None], axis=2).tolist()  # (N, R)
    above = [0.0, *[math.inf] * len(reference)]
    for row in costs:
        current = [math.inf]
        for j, cost in enumerate(row):
            current.append(cost + min(above[j], above[j + 1], current[j]))
        above = current
    return above[-1]
