"""How much faster than flat a tree step can be, and how much of a device a step uses.

    token bound   tokens of the flat paths / tokens of the trees
    FLOP bound    ((6 linear + recurrent) tokens + 12 pairs H D L + 6 head predictors + vision),
                  flat over tree
    MFU           floating-point operations of a step / its time / the device's peak

Operations of a step are those of forward and backward once, without recomputation, of live pairs
only; `linear` are the matrices of the decoder layers, `head` those of the head. The projector is
not counted (0.4 % of a 1.7B step, on both sides).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from vla_nav.models.hybrid import recurrent_flops
from vla_nav.models.vla import VLA
from vla_nav.profiling.timing import alternate
from vla_nav.tree import FlopModel, PrefixTree, total_stats, tree_stats
from vla_nav.tree.stats import TreeStats
from vla_nav.vision.encoder import TimmEncoder

PEAK_FLOPS = 989e12  # H100 and H200 (SXM), dense bfloat16, as stated by the maker
_PASSES = 3  # a forward and a backward cost three forwards


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a step of these trees costs, and what their flat paths would."""

    stats: TreeStats
    tree_flops: float
    flat_flops: float

    @property
    def token_bound(self) -> float:
        """Flat tokens over tree tokens."""
        return self.stats.token_bound

    @property
    def flop_bound(self) -> float:
        """Flat operations over tree operations."""
        return self.flat_flops / self.tree_flops


def bounds(
    trees: Sequence[PrefixTree], model: FlopModel, *, flat_encodes_once: bool = False
) -> Bounds:
    """flat_encodes_once: the flat side keeps a frame's features for the whole step."""
    stats = total_stats(map(tree_stats, trees))
    if flat_encodes_once:
        stats = replace(stats, num_flat_frames=stats.num_tree_frames)
    tree, flat = (
        model.flops(
            tokens=getattr(stats, f"num_{side}_tokens"),
            pairs=getattr(stats, f"num_{side}_pairs"),
            predictors=getattr(stats, f"num_{side}_predictors"),
            frames=getattr(stats, f"num_{side}_frames"),
        )
        for side in ("tree", "flat")
    )
    return Bounds(stats, tree, flat)


def flop_model(model: VLA, *, frame_flops: float = 0.0) -> FlopModel:
    """The costs of a VLA. frame_flops: of encoding a frame, forward and backward."""
    shape = model.backbone.attention_shape
    linear = sum(
        module.weight.numel()
        for module in model.backbone.model.modules()
        if isinstance(module, nn.Linear)
    )
    return FlopModel(
        linear_parameters=linear,
        head_parameters=model.num_outputs * model.backbone.hidden_size,
        num_layers=model.backbone.num_layers - model.backbone.num_recurrent,
        num_heads=shape.num_heads,
        head_dim=shape.head_dim,
        frame_flops=frame_flops,
        recurrent_flops=recurrent_flops(model.backbone.model),
    )


def encoder_flops(encoder: TimmEncoder, device: str) -> float:
    """Forward and backward of one frame, as torch counts the forward's products."""
    frame = torch.zeros((1, *encoder.image_size, 3), dtype=torch.uint8, device=device)
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        encoder.encode(frame)
    return float(_PASSES * counter.get_total_flops())


def device_rates(device: str, dtype: torch.dtype) -> dict[str, float]:
    """What the device does in this process: TFLOP/s of a large matrix product, TB/s of a copy (read
    and written bytes)."""
    size = 8192 if torch.device(device).type == "cuda" else 512
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    target = torch.empty_like(a)
    product_ms, copy_ms = alternate(
        [lambda: a @ b, lambda: target.copy_(a)], device=device, calls=4
    )
    return {
        "matmul_tflops": 2 * size**3 / product_ms / 1e9,
        "copy_tb_per_s": 2 * a.nbytes / copy_ms / 1e9,
    }
