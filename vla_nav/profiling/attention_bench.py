"""Attention over trees against plain causal attention at equal live pairs, forward and backward.

    trees     G trees in a pack, `pairs` live pairs of query and key
    causal    G sequences of n tokens, G n (n + 1) / 2 = pairs; the faster of two kernels
    ratio     (TFLOP/s over the trees) / (TFLOP/s of the plain causal kernel)

Only live pairs count: forward 4 x pairs x H x D floating-point operations, both passes 3.5 times as
many. Tree and causal calls are timed in turn in one process, on random data. Before a case is
timed, its output and gradients on one key/value head are held to a dense float32 evaluation of the
definition, block of rows by block of rows.

Axis legend: T packed tokens, G trees, H query heads, Hkv key/value heads, D head dim, R rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vla_nav.attention.blocks import block_lists
from vla_nav.attention.causal import causal_varlen
from vla_nav.attention.mask import is_visible
from vla_nav.attention.parity import TOLERANCE, relative_by_token, require_parity
from vla_nav.attention.registry import backend
from vla_nav.attention.types import Backend
from vla_nav.errors import UserError
from vla_nav.profiling.causal_baseline import causal_kernels
from vla_nav.profiling.flat import flat_packs
from vla_nav.profiling.synthetic import Forest
from vla_nav.profiling.timing import alternate
from vla_nav.tree import PackedTree, pack

CASES = (
    "44x196+12",
    "3*44x196+12",
    "6*60x64+16@256",
    "100x144+12",
    "60x(68+204)",
    "200x(17+204)",
)
_BOTH = 3.5  # passes: two matrix products forward, five backward
_ROWS = 1024  # of a block of the dense evaluation
_BLOCK = 128  # tokens, for the counts of live blocks


class Heads(NamedTuple):
    """H, Hkv and D."""

    query: int = 16
    key_value: int = 8
    dim: int = 128


@dataclass(frozen=True, slots=True)
class AttentionRow:
    """One line of the table; `density`: live pairs over the cells of live blocks of 128 x 128.
    causal_kernel: the faster one over both passes (`causal_baseline.py`), varlen_tflops and
    batched_tflops the two of them. flat_ms: the trees' flat paths through the first, None where it
    was not asked for."""

    tree: str
    backend: str
    fwd_bwd_tflops: float
    causal_tflops: float
    ratio: float
    fwd_tflops: float
    causal_fwd_tflops: float
    fwd_ratio: float
    tree_ms: float
    causal_ms: float
    causal_kernel: str
    varlen_tflops: float
    batched_tflops: float
    flat_ms: float | None
    tokens: int
    pairs: int
    sequences: int
    causal_length: int
    full_blocks: int
    partial_blocks: int
    density: float
    worst_difference: float


class AttentionBench:
    """Times backends on forests. Refuses a backend that does not pass the parity gate."""

    def __init__(
        self,
        backend_name: str,
        *,
        device: str,
        dtype: torch.dtype,
        heads: Heads = Heads(),  # noqa: B008
        repeats: int = 20,
        calls: int = 5,
    ) -> None:
        self.backend: Backend = backend(backend_name, device=torch.device(device).type)
        self.device, self.dtype, self.heads = device, dtype, heads
        self.repeats, self.calls = repeats, calls
        self.parity = require_parity(
            backend_name,
            device,
            dtype=dtype,
            num_heads=heads.query,
            num_kv_heads=heads.key_value,
            head_dim=heads.dim,
        )

    def row(self, forest: Forest, *, with_flat: bool) -> AttentionRow:
        """Check and time one pack. with_flat: the flat paths too."""
        trees = forest.trees()
        num_tokens = sum(tree.num_tokens for tree in trees)
        packed = pack(trees, pad_to=self.backend.padded_length(num_tokens))
        pairs = sum(int((tree.position_ids + 1).sum()) for tree in trees)
        plan = self.backend.plan(packed).to(self.device)
        on_tree = _Inputs(len(packed.token_ids), self, seed=1)
        worst = self._check(forest, on_tree, packed, plan)

        def tree() -> Tensor:
            q, k, v = on_tree.qkv
            return self.backend.attend(q[None], k[None], v[None], plan)[0]

        length = max(1, round((math.sqrt(8 * pairs / len(trees) + 1) - 1) / 2))
        on_causal = _Inputs(length * len(trees), self, seed=2)
        kernels = causal_kernels(*on_causal.qkv, len(trees))
        causal_pairs = len(trees) * length * (length + 1) // 2
        forward = alternate(
            list(map(_without_graph, (tree, *kernels.values()))),
            device=self.device,
            repeats=self.repeats,
            calls=self.calls,
        )
        both = alternate(
            [on_tree.both(tree), *map(on_causal.both, kernels.values())],
            device=self.device,
            repeats=self.repeats,
            calls=self.calls,
        )
        tree_rate, tree_forward = (
            self._tflops(pairs, times[0], passes) for times, passes in ((both, _BOTH), (forward, 1))
        )
        rates = {
            name: self._tflops(causal_pairs, time_ms, _BOTH)
            for name, time_ms in zip(kernels, both[1:], strict=True)
        }
        causal_forward = self._tflops(causal_pairs, min(forward[1:]), 1)
        fastest = max(rates, key=lambda name: rates[name])
        padded = pack(trees, pad_to=-(-num_tokens // _BLOCK) * _BLOCK)
        blocks = block_lists(padded.subtree_end.numpy(), block_size=_BLOCK)
        num_full, num_partial = len(blocks.q_full.indices), len(blocks.q_partial.indices)
        return AttentionRow(
            tree=str(forest),
            backend=self.backend.name,
            fwd_bwd_tflops=tree_rate,
            causal_tflops=rates[fastest],
            ratio=tree_rate / rates[fastest],
            fwd_tflops=tree_forward,
            causal_fwd_tflops=causal_forward,
            fwd_ratio=tree_forward / causal_forward,
            tree_ms=both[0],
            causal_ms=min(both[1:]),
            causal_kernel=fastest,
            varlen_tflops=rates["varlen"],
            batched_tflops=rates["batched"],
            flat_ms=self._flat_ms(forest) if with_flat else None,
            tokens=num_tokens,
            pairs=pairs,
            sequences=len(trees),
            causal_length=length,
            full_blocks=num_full,
            partial_blocks=num_partial,
            density=pairs / ((num_full + num_partial) * _BLOCK**2),
            worst_difference=worst,
        )

    def _flat_ms(self, forest: Forest) -> float:
        trees = forest.trees()
        (flat,) = flat_packs(trees, budget=2**31 - 1)
        inputs = _Inputs(flat.num_tokens, self, seed=3)
        cu_lengths, (q, k, v) = flat.cu_lengths.to(self.device), inputs.qkv

        def work() -> Tensor:
            return causal_varlen(q, k, v, cu_lengths, flat.max_length)

        return alternate([inputs.both(work)], device=self.device, repeats=5, warmups=2)[0]

    def _tflops(self, pairs: int, time_ms: float, passes: float) -> float:
        return passes * 4 * pairs * self.heads.query * self.heads.dim / time_ms / 1e9

    def _check(self, forest: Forest, inputs: _Inputs, packed: PackedTree, plan: Any) -> float:
        """The largest difference from the dense evaluation by token; raises `UserError`."""
        q, k, v = inputs.qkv
        group = self.heads.query // self.heads.key_value
        out = self.backend.attend(q[None], k[None], v[None], plan)
        grads = torch.autograd.grad(out, (q, k, v), inputs.grad[None])
        end = packed.subtree_end.to(self.device)
        expected = dense_group(q[:, :group], k[:, 0], v[:, 0], inputs.grad[:, :group], end)
        found = (out[0, :, :group], grads[0][:, :group], grads[1][:, :1], grads[2][:, :1])
        differences = {
            name: relative_by_token(a[None], b[None])
            for name, a, b in zip(("out", "dq", "dk", "dv"), found, expected, strict=True)
        }
        name, worst = max(differences.items(), key=lambda item: item[1])
        if not worst <= TOLERANCE[self.dtype]:
            raise UserError(
                f"{forest}: {name} of attention backend '{self.backend.name}' is off by "
                f"{worst:.2g}, allowed {TOLERANCE[self.dtype]:g}; nothing was timed"
            )
        return worst


class _Inputs:
    """Random q (T, H, D), k and v (T, Hkv, D), and a gradient of the output."""

    def __init__(self, num_tokens: int, bench: AttentionBench, *, seed: int) -> None:
        generator = torch.Generator(bench.device).manual_seed(seed)
        heads = bench.heads

        def draw(num_heads: int) -> Tensor:
            return torch.randn(
                (num_tokens, num_heads, heads.dim),
                generator=generator,
                device=bench.device,
                dtype=bench.dtype,
            )

        self.qkv = tuple(
            draw(n).requires_grad_() for n in (heads.query, heads.key_value, heads.key_value)
        )
        self.grad = draw(heads.query)

    def both(self, forward: Callable[[], Tensor]) -> Callable[[], Any]:
        """Forward and backward of `forward` over these inputs."""
        return lambda: torch.autograd.grad(forward(), self.qkv, self.grad)


def dense_group(
    q: Tensor, k: Tensor, v: Tensor, grad: Tensor, end: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The definition in float32 for the query heads of one key/value head.

    q, grad (T, G, D); k, v (T, D); end (T,) subtree ends -> out, dq (T, G, D), dk, dv (T, 1, D).
    Memory: R x T at a time.
    """
    scale = q.shape[-1] ** -0.5
    keys, values = k.detach().float(), v.detach().float()
    index = torch.arange(len(q), device=q.device)
    out, dq = torch.empty_like(q, dtype=torch.float32), torch.empty_like(q, dtype=torch.float32)
    dk, dv = torch.zeros_like(keys), torch.zeros_like(values)
    for start in range(0, len(q), _ROWS):
        rows = slice(start, start + _ROWS)
        hidden = ~is_visible(index[rows, None], index[None], end[None])  # (R, T)
        for head in range(q.shape[1]):
            queries, grads = q[rows, head].detach().float(), grad[rows, head].float()
            scores = (queries @ keys.T * scale).masked_fill_(hidden, -math.inf)
            share = scores.softmax(-1)
            out[rows, head] = share @ values
            delta = (grads * out[rows, head]).sum(-1, keepdim=True)
            pull = share * (grads @ values.T - delta) * scale
            dq[rows, head] = pull @ keys
            dk += pull.T @ queries
            dv += share.T @ grads
    return out, dq, dk[:, None], dv[:, None]


def _without_graph(work: Callable[[], Tensor]) -> Callable[[], Tensor]:
    def run() -> Tensor:
        with torch.no_grad():
            return work()

    return run
