"""The parity gate: a backend against the definition, on the device that is about to train with it.

Attention kernels are compiled for a device, a dtype and a head shape, and some releases of them are
wrong for some of these (bf16 where little is attended, grouped heads under a block mask). So before
a run, the very combination is held to `reference` on a few small packs of odd lengths, forward and
every gradient; it takes seconds, most of which are the compilation that the run needs anyway.

    chain              one path: plain causal attention
    little attended    a root and 91 leaves of 3 tokens: no row sees more than 4 of 274 keys
    forest             trees of different shape behind one another, and padding
    gateway keys       the leaves of a trunk behind the trunk's keys, each leaf seeing a part of it
    few gateway keys   a chain of ancestors that the first rows see whole, the others the root of

A difference is relative and by token, so that one wrong key of one row counts: the norm over heads
of what a token's row is off, over the norm of its row or of an average one, whichever is larger.
The reference runs in float64 on the same rounded inputs, so what is measured is the backend's own
rounding. One key too many or too few in one row is off by 0.01 (among 250 keys) to 1 (among 4).

Axis legend: B batch, Q own tokens, P prefix tokens, H query heads, Hkv key/value heads, D head dim.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

import torch

from vla_nav.attention import reference
from vla_nav.attention.registry import backend
from vla_nav.attention.types import Backend
from vla_nav.errors import UserError
from vla_nav.tree.packing import PackedTree, pack
from vla_nav.tree.prefix_tree import PrefixTree
from vla_nav.tree.types import Path, text_segment

TENSORS = ("out", "dq", "dk", "dv")
# Two to three times what plain PyTorch products in that dtype are off by (bfloat16 1.4e-2, float16
# 1.6e-3 on these packs); float32 is 2e-6 but for TF32 products (1e-3), which a run may allow.
TOLERANCE = {
    torch.float64: 1e-9,
    torch.float32: 5e-3,
    torch.float16: 5e-3,
    torch.bfloat16: 4e-2,
}
_ZERO = 1e-3  # size of a gradient that vanishes: float32 kernels leave some 1e-6 of it


class Difference(NamedTuple):
    """The largest relative difference of one tensor on one pack."""

    case: str
    tensor: str
    relative: float


class Parity(NamedTuple):
    """What the gate found: differences within `tolerance`, the largest first."""

    differences: tuple[Difference, ...]
    tolerance: float
    seconds: float


def require_parity(
    backend_name: str,
    device: torch.device | str,
    *,
    dtype: torch.dtype,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
) -> Parity:
    """Hold the backend to the reference; run once per combination and process.

    Raises `UserError` with the versions, the difference and the remedy where it is wrong, or where
    it does not run there.
    """
    shape = (num_heads, num_kv_heads, head_dim)
    return _require_parity(backend_name, str(torch.device(device)), dtype, shape)


@cache
def _require_parity(
    backend_name: str, device: str, dtype: torch.dtype, shape: tuple[int, int, int]
) -> Parity:
    found = backend(backend_name, device=device)
    if dtype not in TOLERANCE:
        raise UserError(
            f"attention backend '{backend_name}' trains in "
            f"{', '.join(_short(known) for known in TOLERANCE)}, got {_short(dtype)}"
        )
    start = time.perf_counter()
    differences = [
        difference
        for name, packed in parity_packs().items()
        for difference in differences_on(found, name, packed, device, dtype, shape)
    ]
    differences.sort(key=lambda difference: -difference.relative)
    seconds = time.perf_counter() - start
    tolerance = TOLERANCE[dtype]
    worst = differences[0]
    if not worst.relative <= tolerance:
        heads, kv_heads, dim = shape
        raise UserError(
            f"attention backend '{backend_name}' is wrong on {device} in {_short(dtype)} with "
            f"{heads} heads, {kv_heads} key/value heads and head dim {dim} (torch "
            f"{torch.__version__}, triton {_triton_version()}): {worst.tensor} is off by "
            f"{worst.relative:.2g} on '{worst.case}', allowed {tolerance:g}; use another torch "
            f"release or attention={'reference' if backend_name == 'sdpa' else 'sdpa'}"
        )
    return Parity(tuple(differences), tolerance, seconds)


def differences_on(
    found: Backend,
    case: str,
    packed: PackedTree,
    device: torch.device | str,
    dtype: torch.dtype,
    shape: tuple[int, int, int],
) -> list[Difference]:
    """Output and gradients on one pack against the reference; not a number counts as infinite."""
    heads, kv_heads, dim = shape
    num_tokens, num_keys = len(packed.subtree_end), len(packed.prefix_end) + len(packed.subtree_end)
    generator = torch.Generator().manual_seed(num_keys)
    q, k, v, grad = (
        torch.randn(1, length, h, dim, generator=generator).to(device, dtype)
        for length, h in (
            (num_tokens, heads),
            (num_keys, kv_heads),
            (num_keys, kv_heads),
            (num_tokens, heads),
        )
    )
    out = _with_gradients(found, packed, q, k, v, grad)
    exact = (x.detach().double() for x in (q, k, v, grad))
    expected = _with_gradients(reference.BACKEND, packed, *exact)
    return [
        Difference(case, name, relative_by_token(a, b))
        for name, a, b in zip(TENSORS, out, expected, strict=True)
    ]


def relative_by_token(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest, over tokens, of ||a - b|| / max(||b||, rms ||b||): (B, T, H, D) twice.

    The inputs are of size 1; a gradient below _ZERO is one that vanishes (of a query with one key).
    """
    off = (a.detach().double() - b.detach()).flatten(2).norm(dim=-1)  # (B, T)
    norm = b.detach().flatten(2).norm(dim=-1)
    least = max(float(norm.square().mean().sqrt()), _ZERO * (b.shape[2] * b.shape[3]) ** 0.5)
    largest = float((off / norm.clamp_min(least)).max())
    return largest if largest == largest else float("inf")


def parity_packs() -> dict[str, PackedTree]:
    """The packs of the module docstring: own tokens fill three blocks of 128, the last in part."""
    star = _caterpillar(1, 91, 3)
    small, single = _caterpillar(20, 7, 5), _caterpillar(0, 1, 1)
    forest = [small, single, _caterpillar(50, 1, 11), small, _caterpillar(60, 6, 20), single]
    few_rows = pack([_caterpillar(50, 1, 11), star])
    return {
        "chain": pack([_caterpillar(250, 1, 9)]),
        "little attended": pack([star]),
        "forest": pack(forest, pad_to=383),
        "gateway keys": _without_trunk(pack([_caterpillar(150, 12, 23)]), 150, num_padding=5),
        "few gateway keys": replace(
            few_rows, prefix_end=torch.tensor([335] + 130 * [61], dtype=torch.int32)
        ),
    }


def _with_gradients(
    found: Backend,
    packed: PackedTree,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    grad: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    """Output, and gradients of q, k and v for the output gradient `grad`."""
    with torch.inference_mode(False), torch.enable_grad():
        inputs = [x.clone().requires_grad_() for x in (q, k, v)]
        out = found.attend(*inputs, found.plan(packed).to(q.device))
        return (out, *torch.autograd.grad(out, inputs, grad.clone()))


def _caterpillar(num_trunk: int, num_leaves: int, leaf_tokens: int) -> PrefixTree:
    """A trunk of `num_trunk` tokens with leaves spread over it, one at its end."""
    paths = []
    for leaf in range(num_leaves):
        depth = num_trunk - leaf * (num_trunk // num_leaves)
        first = 1000 * (leaf + 1)
        token_ids = [*range(depth), *range(first, first + leaf_tokens)]
        paths.append(Path((text_segment(token_ids),)))
    return PrefixTree.from_paths(paths)


def _without_trunk(packed: PackedTree, num_trunk: int, *, num_padding: int) -> PackedTree:
    """The tokens behind the trunk as a partition: the trunk's keys (and padding) are its prefix."""
    end = packed.subtree_end - num_trunk
    return replace(
        packed,
        subtree_end=end[num_trunk:],
        prefix_end=torch.cat([end[:num_trunk], end.new_zeros(num_padding)]),
    )


def _short(dtype: torch.dtype) -> str:
    """bfloat16 of torch.bfloat16."""
    return str(dtype).removeprefix("torch.")


def _triton_version() -> str:
    """Triton's version, or "none": a CPU build of torch has none."""
    try:
        return version("triton")
    except PackageNotFoundError:
        return "none"
