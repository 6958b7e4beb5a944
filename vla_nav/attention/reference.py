"""Attention over a pack by its definition: dense, obvious, Q x (P+Q). What the others are held to.

    out[q] = sum_k softmax_k( scale * q . k  where visible(q, k), else -inf ) v[k]

Axis legend: B batch, Q own tokens, P prefix tokens, H query heads, Hkv key/value heads, D head dim.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vla_nav.attention.mask import dense_mask
from vla_nav.attention.types import Backend, check_shapes, same_length
from vla_nav.tree.packing import PackedTree


@dataclass(frozen=True, eq=False)
class ReferencePlan:
    """subtree_end (Q,) int32, prefix_end (P,) int32."""

    subtree_end: torch.Tensor
    prefix_end: torch.Tensor

    @property
    def num_tokens(self) -> int:
        """Q."""
        return len(self.subtree_end)

    @property
    def num_prefix(self) -> int:
        """P."""
        return len(self.prefix_end)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> ReferencePlan:
        """The same plan on `device`."""
        return ReferencePlan(
            self.subtree_end.to(device, non_blocking=non_blocking),
            self.prefix_end.to(device, non_blocking=non_blocking),
        )

    def pin_memory(self) -> ReferencePlan:
        """The same plan in page-locked memory."""
        return ReferencePlan(self.subtree_end.pin_memory(), self.prefix_end.pin_memory())


def plan(packed: PackedTree) -> ReferencePlan:
    """Nothing to prepare."""
    return ReferencePlan(packed.subtree_end, packed.prefix_end)


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    plan: ReferencePlan,
    scale: float | None = None,
) -> torch.Tensor:
    """q (B, Q, H, D), k and v (B, P+Q, Hkv, D) -> (B, Q, H, D), in the dtype of q."""
    heads, kv_heads = check_shapes(q, k, v, plan.num_tokens, plan.num_prefix)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    k = k.repeat_interleave(heads // kv_heads, dim=2)
    v = v.repeat_interleave(heads // kv_heads, dim=2)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * scale  # (B, H, Q, P+Q)
    mask = dense_mask(plan.subtree_end, plan.prefix_end)
    scores = scores.masked_fill(~mask, -torch.inf)
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(dim=-1), v)


BACKEND = Backend("reference", plan, attend, same_length, ("cpu", "cuda"), same_length)
