"""Losses at the predictors of a packed tree."""

from vla_nav.losses.cross_entropy import (
    Loss,
    Normalisation,
    loss_denominator,
    total_denominator,
    weighted_cross_entropy,
)

__all__ = [
    "Loss",
    "Normalisation",
    "loss_denominator",
    "total_denominator",
    "weighted_cross_entropy",
]
