"""Hybrid backbones on trees: recurrent layers whose states follow the paths of a packed tree."""

from vla_nav.models.hybrid.fused import KERNELS
from vla_nav.models.hybrid.mixers import adopt_mixers, check_recurrence, mixers_of, recurrent_flops
from vla_nav.models.hybrid.routing import Recurrence, SequenceRouting, TreeRouting

__all__ = [
    "KERNELS",
    "Recurrence",
    "SequenceRouting",
    "TreeRouting",
    "adopt_mixers",
    "check_recurrence",
    "mixers_of",
    "recurrent_flops",
]
