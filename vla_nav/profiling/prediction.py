"""How long a step should take: the FLOP model and bytes over rates measured on the device.

    matrix products   FLOPs / measured rate of a large product in the training dtype
    optimiser         bytes of weights, gradients, moments / measured rate of a device copy
    host to device    bytes of the batch / measured rate of a copy to the device

    FLOPs of a step = 6 * linear * tokens + 12 * pairs * H * D * L + 6 * head * predictors + vision
    a third of them forward, two thirds backward; layers that activation checkpointing computes
    again take another forward, which is in the predicted time and not in the step's FLOPs

MFU is these FLOPs over the wall time and the device's peak: the data sheet's dense rate where the
GPU is in `PEAK_TFLOPS`, the measured rate elsewhere (a CPU, or float32 training).
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from torch import nn

from vla_nav.profiling.regions import (
    ATTENTION,
    BACKWARD,
    FORWARD,
    HEAD,
    OPTIMISER,
    PROJECTOR,
    RECOMPUTE,
    REST,
    STEP,
    TRANSFER,
    VISION,
    Label,
)
from vla_nav.profiling.structure import Structure
from vla_nav.tree import FlopModel

# Dense bfloat16 (V100 and T4: float16) TFLOP/s of the vendor's data sheets, by words of the name
# that torch gives the device; the first whose words are all there.
PEAK_TFLOPS = {
    "B200": 2250.0,
    "GH200": 989.0,
    "H200": 989.0,
    "H100 PCIe": 756.0,
    "H100 NVL": 835.0,
    "H100": 989.0,
    "H800": 989.0,
    "H20": 148.0,
    "A100": 312.0,
    "A800": 312.0,
    "L40S": 362.0,
    "L40": 181.0,
    "A40": 150.0,
    "RTX A6000": 155.0,
    "A10": 125.0,
    "L4": 121.0,
    "RTX 5090": 209.5,
    "RTX 4090": 165.2,
    "RTX 3090": 71.0,
    "V100": 125.0,
    "T4": 65.0,
}

# Of the trained weights, at an update: the norm reads gradients, clipping reads and writes them,
# AdamW reads weight, gradient and two moments and writes weight and two moments.
UPDATE_PASSES = 1 + 2 + 4 + 3


class Rates(NamedTuple):
    """Measured on the device: FLOP/s of a matrix product, bytes/s of a copy on the device (read and
    written) and of a copy to it (0 on a CPU)."""

    matmul: float
    copy: float
    transfer: float


class Peak(NamedTuple):
    """What MFU is counted against, in FLOP/s, and where the figure comes from."""

    flops: float
    source: str


class Predicted(NamedTuple):
    """FLOPs and seconds by label, of all the steps that a `Structure` counts."""

    flops: dict[Label, float]
    seconds: dict[Label, float]

    @property
    def total_flops(self) -> float:
        """Without the projector, as everywhere in this project, and without what is recomputed."""
        return sum(
            value
            for label, value in self.flops.items()
            if label.region != PROJECTOR and label.phase != RECOMPUTE
        )


def measure_rates(device: torch.device, dtype: torch.dtype, *, num_parallel: int = 1) -> Rates:
    """A few tenths of a second. num_parallel: threads that compute at once (CPU)."""
    size = 8192 if device.type == "cuda" else 768
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    source = torch.randn(2**28 if device.type == "cuda" else 2**22, device=device)
    target = torch.empty_like(source)

    def product() -> None:
        torch.mm(a, b)

    matmul = 2.0 * size**3 / _seconds(product, device, num_parallel)
    copy = 2.0 * source.nbytes / _seconds(lambda: target.copy_(source), device, 1)
    transfer = 0.0
    if device.type == "cuda":
        host = torch.empty(2**24, pin_memory=True)
        there = torch.empty(2**24, device=device)
        took = _seconds(lambda: there.copy_(host, non_blocking=True), device, 1)
        transfer = host.nbytes / took
    return Rates(matmul * num_parallel, copy, transfer)


def peak_of(device: torch.device, dtype: torch.dtype, rates: Rates) -> Peak:
    """The data sheet's figure where there is one for this GPU and dtype, else the measured rate."""
    if device.type == "cuda" and dtype in (torch.bfloat16, torch.float16):
        part = known_gpu(torch.cuda.get_device_name(device))
        if part is not None:
            tflops = PEAK_TFLOPS[part]
            return Peak(tflops * 1e12, f"{tflops:g} TFLOP/s, data sheet of {part} (dense)")
    kind = str(dtype).removeprefix("torch.")
    return Peak(rates.matmul, f"{rates.matmul / 1e12:.3g} TFLOP/s, measured {kind} matrix product")


def total_predicted(parts: Sequence[Predicted]) -> Predicted:
    """Of several blocks."""
    flops, seconds = (
        sum((Counter(part[index]) for part in parts), Counter()) for index in range(2)
    )
    return Predicted(dict(flops), dict(seconds))


def known_gpu(name: str) -> str | None:
    """The entry of `PEAK_TFLOPS` for a device's name.

    >>> known_gpu("NVIDIA A100-SXM4-80GB"), known_gpu("NVIDIA H100 PCIe"), known_gpu("RTX A4000")
    ('A100', 'H100 PCIe', None)
    """
    words = set(re.split(r"[^A-Za-z0-9]+", name))
    return next((part for part in PEAK_TFLOPS if words.issuperset(part.split())), None)


def predict(
    found: Structure,
    model: FlopModel,
    rates: Rates,
    *,
    projector_parameters: int,
    optimiser_bytes: int,
    recomputed: Mapping[str, float] | None = None,
) -> Predicted:
    """FLOPs and seconds of the steps in `found`.

    optimiser_bytes: moved at one update. recomputed: the share of a region's layers that are
    computed again in the backward pass (`recomputed_shares`).
    """
    trees = found.trees
    width = model.num_heads * model.head_dim * model.num_layers
    per_region = {
        VISION: model.frame_flops * trees.num_tree_frames,
        PROJECTOR: 6.0 * projector_parameters * found.num_vision_tokens,
        ATTENTION: 12.0 * trees.num_tree_pairs * width,
        REST: (6.0 * model.linear_parameters + model.recurrent_flops) * trees.num_tree_tokens,
        HEAD: 6.0 * model.head_parameters * trees.num_tree_predictors,
    }
    flops = {
        Label(region, phase): value * share
        for region, value in per_region.items()
        if value
        for phase, share in ((FORWARD, 1 / 3), (BACKWARD, 2 / 3))
    }
    for region, share in (recomputed or {}).items():
        if share and per_region[region]:
            flops[Label(region, RECOMPUTE)] = share * flops[Label(region, FORWARD)]
    seconds = {label: value / rates.matmul for label, value in flops.items()}
    seconds[Label(OPTIMISER, STEP)] = found.num_steps * optimiser_bytes / rates.copy
    if rates.transfer:
        seconds[Label(TRANSFER, STEP)] = found.batch_bytes / rates.transfer
    return Predicted(flops, seconds)


def recomputed_shares(layers: Iterable[nn.Module]) -> dict[str, float]:
    """Of a decoder's layers, the share under activation checkpointing: of those with attention, and
    of all.

    four layers, every third one is recomputed:  keep keep again keep  ->  1/4
    """
    every = list(layers)
    with_attention = [layer for layer in every if hasattr(layer, "self_attn")]
    return {
        region: sum(bool(getattr(layer, "gradient_checkpointing", False)) for layer in some)
        / max(len(some), 1)
        for region, some in ((ATTENTION, with_attention), (REST, every))
    }


def _seconds(work: Callable[[], Any], device: torch.device, num_parallel: int) -> float:
    """Best of several runs: a peak. With threads, of a run in all of them at once."""
    with ThreadPoolExecutor(num_parallel) as threads:

        def once() -> None:
            if num_parallel == 1:
                work()
            else:
                list(threads.map(lambda _: work(), range(num_parallel)))
            if device.type == "cuda":
                torch.cuda.synchronize(device)

        times = []
        for _ in range(8):
            start = time.perf_counter()
            once()
            times.append(time.perf_counter() - start)
    return min(times[1:])
