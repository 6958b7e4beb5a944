"""Many launches of an attention backward on the same inputs: is every one of them the same?

    forward once per pack, then    backward, backward, backward, ...    packs in turn
    of every launch                the largest difference, by token, from the pack's first launch

Kernels that add up dq with atomics do so in another order each time, so a launch may differ by
rounding; a race or a read of memory that nobody wrote shows as a number that is no rounding, or as
NaN. Memory that the allocator hands out again is filled with NaN between launches. Nothing waits
for the device but every `every` launches, when the numbers so far are read.

Axis legend: T packed tokens, H heads, D head dim.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vla_nav.attention.parity import require_parity
from vla_nav.attention.registry import backend
from vla_nav.attention.types import Backend
from vla_nav.profiling.attention_bench import Heads
from vla_nav.profiling.synthetic import Forest
from vla_nav.tree import pack

TENSORS = ("dq", "dk", "dv")
# Every value of a token one rounding step (2^-8 in bfloat16) beside where it was, twice over.
NOISE = {
    torch.bfloat16: 2.0**-7,
    torch.float16: 2.0**-10,
    torch.float32: 1e-5,
    torch.float64: 1e-13,
}


@dataclass(frozen=True, slots=True)
class Stress:
    """What some launches showed. worst: the largest difference by token of dq, dk and dv;
    different: launches of which some value was not bit for bit the first one's."""

    launches: int
    not_finite: int
    different: int
    worst: dict[str, float]
    allowed: float
    seconds: float

    @property
    def is_sound(self) -> bool:
        """No NaN, and nothing beyond rounding."""
        return self.not_finite == 0 and max(self.worst.values()) <= self.allowed


def stress_backward(
    backend_name: str,
    forests: Sequence[Forest],
    *,
    device: str,
    dtype: torch.dtype,
    heads: Heads,
    launches: int,
    every: int = 1000,
) -> Iterator[Stress]:
    """Launch the backward of a backend that passes the parity gate; yields what all launches so far
    showed, every `every` of them."""
    require_parity(
        backend_name,
        device,
        dtype=dtype,
        num_heads=heads.query,
        num_kv_heads=heads.key_value,
        head_dim=heads.dim,
    )
    attention = backend(backend_name, device=torch.device(device).type)
    packs = [Launches(attention, forest, device, dtype, heads) for forest in forests]
    yield from launch(packs, NOISE[dtype], launches=launches, every=every)


def launch(
    packs: Sequence[Launches], allowed: float, *, launches: int, every: int
) -> Iterator[Stress]:
    """The packs in turn. allowed: the difference that is rounding."""
    found = packs[0].grad.new_zeros((launches, len(TENSORS)), dtype=torch.float32)
    start = time.perf_counter()
    for number in range(launches):
        pack_ = packs[number % len(packs)]
        pack_.poison()
        found[number] = pack_.differences()
        if (number + 1) % every == 0 or number + 1 == launches:
            yield _summary(found[: number + 1], allowed, time.perf_counter() - start)


class Launches:
    """One pack, its forward, and the gradients of its first backward."""

    def __init__(
        self, attention: Backend, forest: Forest, device: str, dtype: torch.dtype, heads: Heads
    ) -> None:
        trees = forest.trees()
        num_tokens = sum(tree.num_tokens for tree in trees)
        packed = pack(trees, pad_to=attention.padded_length(num_tokens))
        length = len(packed.token_ids)
        generator = torch.Generator(device).manual_seed(length)
        self.inputs = [
            torch.randn(
                (1, length, num_heads, heads.dim), generator=generator, device=device, dtype=dtype
            ).requires_grad_()
            for num_heads in (heads.query, heads.key_value, heads.key_value)
        ]
        self.out = attention.attend(*self.inputs, attention.plan(packed).to(device))
        self.grad = torch.randn(self.out.shape, generator=generator, device=device, dtype=dtype)
        self.first = [gradient.clone() for gradient in self._backward()]
        norms = [_token_norms(gradient) for gradient in self.first]
        self.sizes = [norm.clamp_min(norm.square().mean().sqrt()) for norm in norms]  # (T,)

    def differences(self) -> Tensor:
        """(3,) of one launch, by token and relative; NaN where a gradient has one."""
        return torch.stack(
            [
                (_token_norms(gradient - first) / size).amax()
                for gradient, first, size in zip(
                    self._backward(), self.first, self.sizes, strict=True
                )
            ]
        )

    def poison(self) -> None:
        """NaN into the memory that the next launch is likely to be given."""
        for like in self.inputs:
            torch.full_like(like, torch.nan, dtype=torch.float32)
            torch.full_like(like, torch.nan)

    def _backward(self) -> tuple[Tensor, ...]:
        return torch.autograd.grad(self.out, self.inputs, self.grad, retain_graph=True)


def _token_norms(x: Tensor) -> Tensor:
    """(1, T, H, D) -> (T,) float32 norms."""
    return torch.linalg.vector_norm(x.detach(), dim=(0, 2, 3), dtype=torch.float32)


def _summary(found: Tensor, allowed: float, seconds: float) -> Stress:
    """found (launches, 3)."""
    is_finite = found.isfinite().all(1)
    kept = found[is_finite]
    worst = kept.amax(0).tolist() if len(kept) else [0.0] * len(TENSORS)
    return Stress(
        launches=len(found),
        not_finite=int((~is_finite).sum()),
        different=int((found != 0).any(1).sum()),
        worst=dict(zip(TENSORS, worst, strict=True)),
        allowed=allowed,
        seconds=seconds,
    )
