"""What every attention backend offers, and the geometry checks that they share.

Axis legend: B batch, Q own tokens of a pack, P prefix (gateway) tokens, H query heads, Hkv
key/value heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from vla_nav.errors import UserError
from vla_nav.tree.packing import PackedTree


class Plan(Protocol):
    """What a backend needs of one pack, built once in the loader worker, used in every layer."""

    @property
    def num_tokens(self) -> int:
        """Q, padding included: the rows of q."""
        ...

    @property
    def num_prefix(self) -> int:
        """P: keys before those of the pack's own tokens, padding included."""
        ...

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Any:
        """The same plan on `device`."""
        ...

    def pin_memory(self) -> Any:
        """The same plan in page-locked memory."""
        ...


@dataclass(frozen=True, slots=True)
class Backend:
    """One implementation of attention over a pack, or over a partition with keys before it.

    plan(packed) -> Plan, on the CPU; P is the length of packed.prefix_end.
    attend(q, k, v, plan, scale) -> out: q (B, Q, H, D), k and v (B, P+Q, Hkv, D), the prefix first,
    out (B, Q, H, D); H is a multiple of Hkv; scale None = D ** -0.5; differentiable in q, k and v.
    padded_length(num_tokens): the length to pad a pack to (`pack(..., pad_to=)`).
    device_types: where `attend` runs, forward and backward.
    padded_prefix(P): the length to pad a prefix to: keys and values by zeros, prefix_end by 0.
    """

    name: str
    plan: Callable[[PackedTree], Any]
    attend: Callable[..., torch.Tensor]
    padded_length: Callable[[int], int]
    device_types: tuple[str, ...]
    padded_prefix: Callable[[int], int]

    def check_device(self, device: torch.device | str) -> None:
        """Raise `UserError`, naming a backend that does, where this one does not run there."""
        kind = torch.device(device).type
        if kind not in self.device_types:
            raise UserError(
                f"attention backend '{self.name}' does not run on {kind} "
                f"(it runs on {', '.join(self.device_types)}); use attention=sdpa"
            )


def check_shapes(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, num_tokens: int, num_prefix: int
) -> tuple[int, int]:
    """(H, Hkv) of well-formed q, k, v for a plan of Q and P tokens; `ValueError` otherwise."""
    if q.dim() != 4 or k.shape != v.shape or k.dim() != 4:
        raise ValueError(
            "attention wants q (B, Q, H, D), k and v (B, P+Q, Hkv, D), got "
            f"{tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}"
        )
    heads, kv_heads = q.shape[2], k.shape[2]
    is_same = (q.shape[0], q.shape[3]) == (k.shape[0], k.shape[3])
    if not is_same or heads % kv_heads != 0:
        raise ValueError(f"q {tuple(q.shape)} does not fit k {tuple(k.shape)}")
    if q.shape[1] != num_tokens or k.shape[1] != num_prefix + num_tokens:
        raise ValueError(
            f"q has {q.shape[1]} and k {k.shape[1]} tokens, but the plan is for {num_tokens} "
            f"behind a prefix of {num_prefix}"
        )
    return heads, kv_heads


def same_length(num_tokens: int) -> int:
    """`padded_length` and `padded_prefix` of backends that take any length."""
    return num_tokens
