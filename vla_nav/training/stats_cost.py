"""What an epoch costs: FLOPs of the step, and hours on a stated GPU at a stated utilisation.

    hours = FLOPs per epoch / (peak FLOP/s * MFU) / 3600

Forward and backward of the backbone and head (and of an encoder that trains in the step); without
recomputed activations, the optimiser, and encoding every frame once where the encoder is frozen.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from vla_nav.errors import UserError


@dataclass(frozen=True, slots=True)
class GpuSettings:
    """peak_tflops: dense, of the dtype that is trained in. mfu: share of it that a step reaches,
    counted in the FLOPs of the model (`vla-nav train` on your GPU tells)."""

    name: str = "H200"
    peak_tflops: float = 989.0
    mfu: float = 0.4

    def __post_init__(self) -> None:
        if not (math.isfinite(self.peak_tflops) and self.peak_tflops > 0):
            raise UserError(f"stats.gpu.peak_tflops={self.peak_tflops}: allowed: above 0")
        if not 0 < self.mfu <= 1:
            raise UserError(f"stats.gpu.mfu={self.mfu}: allowed: above 0, up to 1")

    def __str__(self) -> str:
        return f"{self.name} ({self.peak_tflops:g} TFLOP/s) at {self.mfu:g} MFU"

    def hours(self, flops: float) -> float:
        """Hours of one such GPU."""
        return flops / (self.peak_tflops * 1e12 * self.mfu) / 3600


def epoch_cost(flops_tree: float, flops_flat: float, gpu: GpuSettings) -> dict[str, Any]:
    """Of one epoch, as trees and as flat paths."""
    return {
        "gpu": asdict(gpu),
        "flops_per_epoch": flops_tree,
        "flops_per_epoch_flat": flops_flat,
        "gpu_hours_per_epoch": gpu.hours(flops_tree),
        "gpu_hours_per_epoch_flat": gpu.hours(flops_flat),
    }


def hours_text(hours: float) -> str:
    """`12 s`, `3.4 min` or `120 h`."""
    if hours < 1 / 60:
        return f"{hours * 3600:.2g} s"
    if hours < 1:
        return f"{hours * 60:.2g} min"
    return f"{hours:,.1f} h" if hours < 10 else f"{hours:,.0f} h"
