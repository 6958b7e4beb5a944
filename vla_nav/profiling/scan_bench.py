"""The recurrence of one layer by itself: a tree pack, flat packs, the public call on these.

    tree     the pack's runs, round by round                     forward and backward
    flat     the packs of flat paths through the same kernels    all packs behind one another
    public   the same packs by flash-linear-attention's own call, which knows no branch points; what
             a flat step costs without this project (GPU only)

`overhead` = (tree time / tree tokens) / (public time / flat tokens): what runs, short chunks at
branch points and rounds cost per token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from vla_nav.models.hybrid import TreeRouting, mixers_of
from vla_nav.models.hybrid.fused import uses_fused
from vla_nav.models.hybrid.mixers import RuleShape
from vla_nav.models.hybrid.parity import drawn_inputs
from vla_nav.profiling.flat import FlatPack
from vla_nav.profiling.timing import measure
from vla_nav.tree import PackedTree


def scan_times(
    model: nn.Module,
    packed: PackedTree,
    flats: Sequence[FlatPack],
    *,
    device: str,
    dtype: torch.dtype,
    repeats: int,
) -> dict[str, Any]:
    """Columns of a row: milliseconds of one recurrent layer's scan, rounds, runs and chunks."""
    mixer = mixers_of(model)[0]
    shape = mixer.shape()
    is_fused = uses_fused(mixer.kernels, torch.device(device).type, dtype)
    if not is_fused:
        shape = shape._replace(rule=shape.rule._replace(fused=None))
    paths = packed.heavy_paths
    timed = partial(measure, device=device, repeats=repeats)
    tree = timed(_scan(shape, [packed], device, dtype)).time_ms
    flat_packs = [flat.packed for flat in flats]
    flat = timed(_scan(shape, flat_packs, device, dtype)).time_ms
    row: dict[str, Any] = {
        "kernels": "fla" if is_fused else "torch",
        "rounds": len(paths.rounds),
        "runs": len(paths.runs.start),
        "chunks": len(paths.table.branch),
        "tree_scan_ms": tree,
        "flat_scan_ms": flat,
        "public_scan_ms": None,
        "overhead": None,
    }
    if is_fused:
        public = timed(_public(shape, flats, device, dtype)).time_ms
        tokens = sum(pack.num_tokens for pack in flats) / paths.num_tokens
        row |= {"public_scan_ms": public, "overhead": tree / public * tokens}
    return row


def _scan(
    shape: RuleShape, packs: Sequence[PackedTree], device: str, dtype: torch.dtype
) -> Callable[[], None]:
    """Forward and backward of the packs, one after the other."""
    given = [
        (TreeRouting(pack.heavy_paths), *_leaves(shape, len(pack.position_ids), device, dtype))
        for pack in packs
    ]

    def run() -> None:
        for routing, inputs, grad in given:
            out = routing.scan(shape.rule, inputs, 0)
            torch.autograd.grad(out, inputs, grad.to(out.dtype))

    return run


def _public(
    shape: RuleShape, flats: Sequence[FlatPack], device: str, dtype: torch.dtype
) -> Callable[[], None]:
    """The same by the package's public calls, every path a sequence."""
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    from fla.ops.simple_gla import chunk_simple_gla

    given = [
        (flat.cu_lengths.long(), *_leaves(shape, flat.num_tokens, device, dtype)) for flat in flats
    ]
    groups = shape.num_heads // shape.num_keys

    def run() -> None:
        for lengths, inputs, grad in given:
            if shape.num_inputs == 5:
                out, _ = chunk_gated_delta_rule(
                    *inputs, cu_seqlens=lengths, use_qk_l2norm_in_kernel=True
                )
            else:  # one query and key head for every value head
                q, k = (x.repeat_interleave(groups, dim=2) for x in inputs[:2])
                out, _ = chunk_simple_gla(q, k, *inputs[2:], scale=1.0, cu_seqlens=lengths)
            torch.autograd.grad(out, inputs, grad)

    return run


def _leaves(
    shape: RuleShape, num_rows: int, device: str, dtype: torch.dtype
) -> tuple[list[Tensor], Tensor]:
    inputs, grad = drawn_inputs(shape, num_rows, device, dtype)
    return [x.requires_grad_() for x in inputs], grad
