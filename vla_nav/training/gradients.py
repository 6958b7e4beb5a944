"""Gradients over ranks where the ranks' backward passes differ in number.

DistributedDataParallel exchanges gradients during a backward pass and so needs the same passes on
every rank. A step in partitions has as many passes as its packs need, and an idle rank none; its
gradients are added up afterwards, tensor by tensor in one order, with zeros where a rank has none.
A rank of whole packs that lacks some gradients, or all, adds zeros to its last loss instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, distributed

from vla_nav.models.vla import VLA

_BUCKET_BYTES = 2**26


def sum_over_ranks(parameters: Sequence[Tensor]) -> None:
    """Replace every parameter's gradient by its sum over all ranks; a collective call."""
    bucket: list[Tensor] = []
    size = 0
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        if bucket and (size >= _BUCKET_BYTES or bucket[0].dtype != parameter.grad.dtype):
            _reduce(bucket)
            bucket, size = [], 0
        bucket.append(parameter.grad)
        size += parameter.grad.nbytes
    if bucket:
        _reduce(bucket)


def zero_loss(parameters: Iterable[Tensor]) -> Tensor | None:
    """Zero, with a gradient of zero for each of `parameters` that is trained; None for none."""
    first = [p.flatten()[:1].float() for p in parameters if p.requires_grad]
    return torch.cat(first).sum() * 0.0 if first else None


def frame_parameters(model: VLA) -> list[Tensor]:
    """The parameters that a pack without frames gives no gradient."""
    encoder = () if model.encoder is None else model.encoder.parameters()
    return [*model.projector.parameters(), *model.patch_embedding.parameters(), *encoder]


def _reduce(gradients: Sequence[Tensor]) -> None:
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    distributed.all_reduce(flat)
    for gradient, part in zip(
        gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True
    ):
        gradient.copy_(part.view_as(gradient))
