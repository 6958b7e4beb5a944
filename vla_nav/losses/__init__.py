"""Losses at the predictors of a packed tree."""

from vla_nav.losses.cross_entropy import Loss, weighted_cross_entropy
from vla_nav.losses.normalisation import Normalisation, loss_denominator, total_denominator
from vla_nav.losses.policy_gradient import (
    Cispo,
    Clip,
    Objective,
    Penalties,
    PolicyLoss,
    Reinforce,
    SequenceClip,
    policy_gradient,
    sequence_gradient,
)
from vla_nav.losses.predictions import Predictions

__all__ = [
    "Cispo",
    "Clip",
    "Loss",
    "Normalisation",
    "Objective",
    "Penalties",
    "PolicyLoss",
    "Predictions",
    "Reinforce",
    "SequenceClip",
    "loss_denominator",
    "policy_gradient",
    "sequence_gradient",
    "total_denominator",
    "weighted_cross_entropy",
]
