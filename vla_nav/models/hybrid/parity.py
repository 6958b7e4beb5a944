"""The gate of fused recurrences: kernels against the definition's chunked form, on this device.

As attention backends are (`vla_nav.attention.parity`), the kernels of recurrent layers are held to
the definition before a run: the rule, dtype and head sizes of the very model, on a small pack that
has what trees have.

    trunk of 150 tokens, leaves after tokens 1, 64, 65, 100 and 150, leaves of leaves, a second tree
    that is one token, padding: chunks of 1 to 64 tokens, three rounds

The definition is the torch path in float64 on the same rounded inputs (which the tests hold to the
recurrence token by token). A difference is relative, by norm of the whole tensor: gradients of
decays are sums in which most terms cancel, so that single ones say little.
"""

from __future__ import annotations

import time
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vla_nav.errors import UserError
from vla_nav.models.hybrid.chunks import Rule
from vla_nav.models.hybrid.fused import uses_fused
from vla_nav.models.hybrid.mixers import RuleShape, mixers_of
from vla_nav.models.hybrid.routing import TreeRouting
from vla_nav.tree import PackedTree, Path, PrefixTree, pack, text_segment

# A few times what rounding of inputs and states to that dtype leaves; float32 products may be TF32.
TOLERANCE = {torch.float32: 5e-3, torch.float16: 1e-2, torch.bfloat16: 4e-2}
TENSORS = ("out", "dq", "dk", "dv", "ddecay", "dbeta")


class KernelParity(NamedTuple):
    """The largest relative difference of each tensor, and seconds (most for compiling)."""

    differences: dict[str, float]
    tolerance: float
    seconds: float


def require_recurrence(
    model: nn.Module, device: torch.device | str, dtype: torch.dtype
) -> list[KernelParity]:
    """Hold the kernels of a model's recurrent layers to the definition, where they run by kernels.

    Raises `UserError` with the difference and the remedy, or where kernels cannot be had.
    """
    device = torch.device(device)
    found = {
        (mixer.shape(), mixer.kernels)
        for mixer in mixers_of(model)
        if uses_fused(mixer.kernels, device.type, dtype)
    }
    return [_require(shape, str(device), dtype) for shape, _ in sorted(found, key=str)]


@cache
def _require(shape: RuleShape, device: str, dtype: torch.dtype) -> KernelParity:
    start = time.perf_counter()
    differences = kernel_differences(shape, gate_pack(), device, dtype)
    tolerance = TOLERANCE[dtype]
    name, worst = max(differences.items(), key=lambda item: item[1])
    if not worst <= tolerance:
        raise UserError(
            f"models.backbone.kernels: {shape.rule.name} by flash-linear-attention is wrong on "
            f"{device} in {str(dtype).removeprefix('torch.')} with {shape.num_heads} heads of "
            f"{shape.key_size} by {shape.value_size}: {name} is off by {worst:.2g}, allowed "
            f"{tolerance:g}; use another release of triton or flash-linear-attention, or set "
            "models.backbone.kernels=torch"
        )
    return KernelParity(differences, tolerance, time.perf_counter() - start)


def kernel_differences(
    shape: RuleShape, packed: PackedTree, device: str, dtype: torch.dtype
) -> dict[str, float]:
    """Relative differences of out and every gradient; not a number counts as infinite."""
    inputs, grad = drawn_inputs(shape, packed.position_ids.shape[0], device, dtype)
    routing = TreeRouting(packed.heavy_paths.to(device))
    out = _with_gradients(routing, shape.rule, inputs, grad)
    exact = [x.double() for x in inputs]
    plain = shape.rule._replace(fused=None)
    expected = _with_gradients(routing, plain, exact, grad.double())
    return {name: _relative(a, b) for name, a, b in zip(TENSORS, out, expected, strict=False)}


def gate_pack() -> PackedTree:
    """The pack of the module docstring."""
    trunk = list(range(150))
    leaves = [(1, 3), (64, 12), (65, 1), (100, 70), (150, 12)]
    paths = [
        Path((text_segment([*trunk[:depth], *range(1000 * n, 1000 * n + length)]),))
        for n, (depth, length) in enumerate(leaves, start=1)
    ]
    below = [*trunk[:100], *range(4000, 4030)]
    paths.append(Path((text_segment([*below, 9001, 9002]),)))
    trees = [PrefixTree.from_paths(paths), PrefixTree.from_paths([Path((text_segment([7]),))])]
    return pack(trees, pad_to=sum(tree.num_tokens for tree in trees) + 5)


def drawn_inputs(
    shape: RuleShape, num_rows: int, device: str, dtype: torch.dtype
) -> tuple[list[Tensor], Tensor]:
    """The rule's inputs (1, T, ...) and an output gradient: projections in `dtype`, gates in
    float32, decays from fast to slow."""
    generator = torch.Generator().manual_seed(num_rows)
    heads = (1, num_rows, shape.num_heads)
    size = shape.key_size**-0.5 if shape.num_inputs == 4 else 1.0
    query, key = (
        size * torch.randn(1, num_rows, shape.num_keys, shape.key_size, generator=generator)
        for _ in range(2)
    )
    value, grad = (torch.randn(*heads, shape.value_size, generator=generator) for _ in range(2))
    decay = -torch.rand(heads, generator=generator) * torch.logspace(-3, 0, shape.num_heads)
    inputs = [x.to(device, dtype) for x in (query, key, value)] + [decay.to(device)]
    if shape.num_inputs == 5:
        inputs.append(torch.rand(heads, generator=generator).to(device))
    return inputs, grad.to(device, dtype)


def _with_gradients(
    routing: TreeRouting, rule: Rule, inputs: list[Tensor], grad: Tensor
) -> tuple[Tensor, ...]:
    with torch.inference_mode(False), torch.enable_grad():
        given = [x.clone().requires_grad_() for x in inputs]
        out = routing.scan(rule, given, 0)
        return (out, *torch.autograd.grad(out, given, grad.clone().to(out.dtype)))


def _relative(a: Tensor, b: Tensor) -> float:
    found = float((a.detach().double() - b.detach()).norm() / b.detach().norm())
    return found if found == found else float("inf")
