"""Costs in seconds, fitted to steps that `vla-nav profile` measured on this machine.

    seconds of a step = c1 tokens + c2 pairs + ... + c7 recomputed tokens       c >= 0

Steps of one data set are much alike, so tokens, pairs and frames rise together and a plain fit
would give all to one of them. So the FLOP model, scaled to the mean step, is the prior: least
squares of the relative errors plus a small weight on the distance from it,

    min over x >= 0   sum over steps (sum_j share_ij x_j - 1)^2 + 0.01 S sum_j (x_j - prior_j)^2

where x_j is what term j adds to the mean step. What the prior does not have (a constant per pack,
a partition) begins at 0.

Axis legend: S steps, 7 terms in the order of `PackCounts`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import nnls

from vla_nav.errors import UserError
from vla_nav.files import read_json
from vla_nav.training.cost_model import CostModel, PackCounts

_KEY = "training.cost_profile"
_PRIOR_WEIGHT = 0.01  # of a step's
_COEFFICIENTS = tuple(field.name for field in fields(CostModel) if field.name != "source")
_SAME = 1e-6  # relative, of coefficients of the same model


class CostFit(NamedTuple):
    """model: in seconds. error, prior_error: mean relative, of the steps that were fitted, of the
    fit and of the FLOPs scaled to them."""

    model: CostModel
    error: float
    prior_error: float
    num_steps: int


def fit_costs(steps: Sequence[Mapping[str, float]], prior: CostModel) -> CostFit:
    """Fit to measured steps, each with the counts of `PackCounts` and `seconds`.

    Raises `ValueError` for no step.
    """
    if not steps:
        raise ValueError("no measured step to fit costs to")
    counts = np.array([[step[name] for name in PackCounts._fields] for step in steps], dtype=float)
    seconds = np.array([step["seconds"] for step in steps], dtype=float)  # (S,)
    flops = counts @ prior.coefficients
    scale = float(np.mean(seconds / flops))
    unit = np.maximum(counts.mean(axis=0), 1e-30) / seconds.mean()  # (7,) x = coefficient * unit
    shares = counts / unit / seconds[:, None]
    expected = scale * prior.coefficients * unit
    weight = math.sqrt(_PRIOR_WEIGHT * len(steps))
    rows = np.concatenate([shares, weight * np.eye(len(unit))])
    found, _ = nnls(rows, np.concatenate([np.ones(len(steps)), weight * expected]))
    coefficients = np.where(counts.any(axis=0), found / unit, scale * prior.coefficients)
    values = dict(zip(_COEFFICIENTS, map(float, coefficients), strict=True))
    model = CostModel(**values, source=f"{len(steps)} measured steps")
    errors = np.abs(counts @ model.coefficients / seconds - 1)
    return CostFit(
        model, float(errors.mean()), float(np.abs(scale * flops / seconds - 1).mean()), len(steps)
    )


def costs_json(steps: Sequence[Mapping[str, float]], prior: CostModel) -> dict[str, Any]:
    """What profile.json keeps under `costs`: the steps, and what is fitted to them."""
    fitted = fit_costs(steps, prior)
    return {
        "flops": asdict(prior),
        "steps": [dict(step) for step in steps],
        "fitted": asdict(fitted.model),
        "error": fitted.error,
        "error_of_flops": fitted.prior_error,
    }


def read_costs(path: str | Path, prior: CostModel, *, attention: str) -> CostModel:
    """The costs of a profile. Raises `UserError` where it is none, or one of another model."""
    path = Path(path)
    path = path / "profile.json" if path.is_dir() else path
    found = read_json(path)
    costs = found.get("costs") if isinstance(found, dict) else None
    try:
        before = CostModel(**costs["flops"])
        fitted = fit_costs(costs["steps"], before)
        profiled = found["what"]["attention"]
    except (TypeError, KeyError, ValueError, ArithmeticError):
        raise UserError(
            f"{_KEY}={path}: no profile with measured steps; write one with `vla-nav profile` and "
            "the keys of this run"
        ) from None
    for name in _COEFFICIENTS:
        mine, theirs = getattr(prior, name), getattr(before, name)
        if not math.isclose(mine, theirs, rel_tol=_SAME):
            raise UserError(
                f"{_KEY}={path}: the profile is of another model ({name} {theirs:.6g} FLOPs, here "
                f"{mine:.6g}); profile this one"
            )
    if profiled != attention:
        raise UserError(
            f"{_KEY}={path}: profiled with attention={profiled}, here it is {attention}; profile "
            "this one"
        )
    return fitted.model
