"""A model whose weights are spread over ranks (FSDP2), and its tensors whole again.

    rank 0   rows 0..n/2 of every weight, its gradient, its moments, its average
    rank 1   rows n/2..n
    a pass   gather layer 0, run it, free it; gather layer 1, ...; backwards in the other order;
             gradients are summed and scattered once a step

    unit of a gather      what it holds
    every decoder layer   in the compute dtype; freed after its forward
    the rest (the root)   tables, projector, trained encoder, head: in float32; whole during a pass
    not spread            a frozen encoder: it is read as it is, and has a fingerprint

Master weights, gradients over ranks and the optimiser's state are float32. Source of the mechanism:
PyTorch, torch.distributed.fsdp.fully_shard.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor, distribute_tensor

from vla_nav.errors import UserError
from vla_nav.models.vla import VLA


def shard_model(
    model: VLA, mesh: DeviceMesh, *, dtype: torch.dtype | None, is_offloaded: bool = False
) -> None:
    """Spread the weights of `model` over the ranks of `mesh` (one axis), in place; once.

    dtype: of the layers' gathered weights, None for that of the weights themselves. is_offloaded:
    weights, gradients and optimiser live in the CPU's memory. The model comes with equal weights
    on every rank. Raises `UserError` for layers that keep copies of their weights.
    """
    if isinstance(model, FSDPModule):
        return
    layers: Any = model.backbone.model.layers
    for layer in layers:
        kept = getattr(layer, "_weights", None)
        if kept is not None and kept.is_joined:
            raise UserError(
                "models.backbone.compile=joined keeps whole copies of the weights, which sharding "
                "(trainer=fsdp) is there to avoid; set models.backbone.compile=layers"
            )
    is_pinned = mesh.device_type == "cuda"
    offload = CPUOffloadPolicy(pin_memory=is_pinned) if is_offloaded else OffloadPolicy()
    reduced = None if dtype is None else torch.float32
    for layer in layers:
        # Inputs are not cast: the residual stream keeps the dtype that one GPU gives it.
        policy = MixedPrecisionPolicy(dtype, reduced, cast_forward_inputs=False)
        fully_shard(layer, mesh=mesh, mp_policy=policy, offload_policy=offload)
    encoder = model.encoder
    frozen = set() if encoder is None or not encoder.is_frozen else set(encoder.parameters())
    fully_shard(
        model,
        mesh=mesh,
        mp_policy=MixedPrecisionPolicy(cast_forward_inputs=False),
        offload_policy=offload,
        ignored_params=frozen,
    )
    register_fsdp_forward_method(model, "through")


def is_sharded(model: nn.Module) -> bool:
    """Whether `shard_model` was here."""
    return isinstance(model, FSDPModule)


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor, sharing its memory; the tensor itself where it is whole."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """The whole tensor, on every rank; a collective call where it is sharded."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def whole_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`state` with whole tensors in the CPU's memory where they are sharded, on rank 0; other ranks
    only take part and keep nothing of them. Tensors that are whole stay as they are."""
    found = {}
    for name, tensor in state.items():
        if not isinstance(tensor, DTensor):
            found[name] = tensor
            continue
        value = tensor.detach().full_tensor()
        if tensor.device_mesh.get_rank() == 0:
            found[name] = value.cpu()
    return found


def sharded_like(tensor: Tensor, like: Tensor) -> Tensor:
    """`tensor` (whole, on every rank) spread as `like` is, on its device; whole where it is."""
    if not isinstance(like, DTensor):
        return tensor.to(like.device)
    mesh = like.device_mesh
    moved = tensor.to(mesh.device_type)
    spread = distribute_tensor(moved, mesh, like.placements, src_data_rank=None)
    return spread.to(like.device)
