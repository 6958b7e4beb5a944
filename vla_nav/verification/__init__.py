"""Proof that packed training equals per-path training, on any model and data."""

from vla_nav.verification.equivalence import (
    FLOAT32,
    FLOAT64_NORMS,
    STOCK,
    Bounds,
    check_equivalence,
)
from vla_nav.verification.leakage import check_leakage
from vla_nav.verification.oracle import Sample
from vla_nav.verification.report import Finding, as_values, render

__all__ = [
    "FLOAT32",
    "FLOAT64_NORMS",
    "STOCK",
    "Bounds",
    "Finding",
    "Sample",
    "as_values",
    "check_equivalence",
    "check_leakage",
    "render",
]
