"""Triton kernels that pass states from chunk to chunk and from run to run, and gradients back.

    forward, round by round               backward, round by round from the last

    S = states[row of the run]            G = 0
    for chunk of the run:                 for chunk of the run, from the last:
        h[chunk] = S                          G += exports[branch] + sum of dh0 of its children
        v = u - w S                           dh[chunk] = G
        S = e^g S + k^T (e^{g - g_t} v)       dv = dv + e^{g - g_t} k G
        states[branch] = S                    G = e^g G + scale (e^{g_t} q)^T do - w^T dv
                                          dh0[run] = G

h (the state before a chunk) and dh (the gradient of the one after it) are what the stages inside
chunks of flash-linear-attention read, so these kernels stand where its own inter-chunk kernels do,
which know one initial and one final state per sequence. Nothing is added up by atomics: the same
call gives the same bits. States are float32 inside; g is the running sum of log2 decays.

Axis legend: T tokens, C chunks, R runs, S branch states, H value heads, Hk key heads, K and V key
and value size.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from vla_nav.tree.heavy_paths import CHUNK
from vla_nav.tree.run_table import RunTable

_IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_CONFIGS = [
    triton.Config({"BV": width}, num_warps=warps, num_stages=stages)
    for width in (16, 32, 64)
    for warps in (2, 4)
    for stages in (1, 2, 3)
]
_TUNED = {
    "configs": _CONFIGS[:1] if _IS_INTERPRETED else _CONFIGS,
    "key": ["H", "HK", "K", "V", "HAS_READS", "WIDE_GRID"],
}


@triton.autotune(**_TUNED)
@triton.jit(do_not_specialize=["first_run"])
def _forward_kernel(
    k,
    u,
    w,
    g,
    v_new,
    h,
    states,
    bounds,
    branch,
    runs,
    first_run,
    first_branch,
    H: tl.constexpr,
    HK: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BT: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    HAS_READS: tl.constexpr,
    WIDE_GRID: tl.constexpr,
):
    NV: tl.constexpr = (V + BV - 1) // BV
    pid = tl.program_id(0)
    i_v, i_h = pid % NV, (pid // NV) % H
    run = runs + 3 * (first_run + pid // (NV * H))
    chunk = tl.load(run).to(tl.int64)
    count = tl.load(run + 1)
    row = tl.load(run + 2).to(tl.int64)
    o_k = tl.arange(0, BK)
    o_v = i_v * BV + tl.arange(0, BV)
    o_t = tl.arange(0, BT)
    m_k, m_v = o_k < K, o_v < V
    m_s = m_k[:, None] & m_v[None, :]
    o_s = i_h * K * V + o_k[:, None] * V + o_v[None, :]  # of a state in a row of states
    b_s = tl.load(states + row * (H * K * V) + o_s, mask=m_s, other=0.0).to(tl.float32)
    for _ in range(count):
        start = tl.load(bounds + chunk).to(tl.int64)
        length = tl.load(bounds + chunk + 1).to(tl.int64) - start
        m_t = o_t < length
        m_tv = m_t[:, None] & m_v[None, :]
        tl.store(h + chunk * (H * K * V) + o_s, b_s.to(h.dtype.element_ty), mask=m_s)
        o_tv = ((start + o_t) * H + i_h)[:, None] * V + o_v[None, :]
        b_v = tl.load(u + o_tv, mask=m_tv, other=0.0)
        if HAS_READS:
            o_w = ((start + o_t) * H + i_h)[:, None] * K + o_k[None, :]
            b_w = tl.load(w + o_w, mask=m_t[:, None] & m_k[None, :], other=0.0)
            b_v = b_v - tl.dot(b_w, b_s.to(b_w.dtype))
            tl.store(v_new + o_tv, b_v.to(v_new.dtype.element_ty), mask=m_tv)
        b_g = tl.load(g + (start + o_t) * H + i_h, mask=m_t, other=0.0)
        g_last = tl.load(g + (start + length - 1) * H + i_h)
        b_v = b_v * tl.where(m_t, tl.math.exp2(g_last - b_g), 0.0)[:, None]
        o_kt = ((start + o_t) * HK + i_h // (H // HK))[None, :] * K + o_k[:, None]
        b_k = tl.load(k + o_kt, mask=m_k[:, None] & m_t[None, :], other=0.0)
        b_s = b_s * tl.math.exp2(g_last)
        b_s = tl.dot(b_k, b_v.to(b_k.dtype), b_s)
        i_b = tl.load(branch + chunk).to(tl.int64)
        if i_b >= 0:
            tl.store(states + (first_branch + i_b) * (H * K * V) + o_s, b_s, mask=m_s)
        chunk += 1


@triton.autotune(**_TUNED)
@triton.jit(do_not_specialize=["first_run", "scale"])
def _backward_kernel(
    q,
    k,
    w,
    g,
    do,
    dv,
    dv_new,
    dh,
    dh0,
    exports,
    bounds,
    branch,
    runs,
    first_child,
    children,
    first_run,
    scale,
    H: tl.constexpr,
    HK: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BT: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
    HAS_READS: tl.constexpr,
    HAS_EXPORTS: tl.constexpr,
    WIDE_GRID: tl.constexpr,
):
    NV: tl.constexpr = (V + BV - 1) // BV
    pid = tl.program_id(0)
    i_v, i_h = pid % NV, (pid // NV) % H
    i_r = (first_run + pid // (NV * H)).to(tl.int64)
    count = tl.load(runs + 3 * i_r + 1)
    chunk = tl.load(runs + 3 * i_r).to(tl.int64) + count - 1
    o_k = tl.arange(0, BK)
    o_v = i_v * BV + tl.arange(0, BV)
    o_t = tl.arange(0, BT)
    m_k, m_v = o_k < K, o_v < V
    m_s = m_k[:, None] & m_v[None, :]
    o_s = i_h * K * V + o_k[:, None] * V + o_v[None, :]
    b_ds = tl.zeros([BK, BV], dtype=tl.float32)
    for _ in range(count):
        i_b = tl.load(branch + chunk).to(tl.int64)
        if i_b >= 0:
            if HAS_EXPORTS:
                b_ds += tl.load(exports + i_b * (H * K * V) + o_s, mask=m_s, other=0.0)
            for i_c in range(tl.load(first_child + i_b), tl.load(first_child + i_b + 1)):
                child = tl.load(children + i_c).to(tl.int64)
                b_ds += tl.load(dh0 + child * (H * K * V) + o_s, mask=m_s, other=0.0)
        tl.store(dh + chunk * (H * K * V) + o_s, b_ds.to(dh.dtype.element_ty), mask=m_s)
        start = tl.load(bounds + chunk).to(tl.int64)
        length = tl.load(bounds + chunk + 1).to(tl.int64) - start
        m_t = o_t < length
        m_tv = m_t[:, None] & m_v[None, :]
        m_kt = m_k[:, None] & m_t[None, :]
        o_tv = ((start + o_t) * H + i_h)[:, None] * V + o_v[None, :]
        o_kt = ((start + o_t) * HK + i_h // (H // HK))[None, :] * K + o_k[:, None]
        b_g = tl.load(g + (start + o_t) * H + i_h, mask=m_t, other=0.0)
        g_last = tl.load(g + (start + length - 1) * H + i_h)
        b_do = tl.load(do + o_tv, mask=m_tv, other=0.0)
        b_q = tl.load(q + o_kt, mask=m_kt, other=0.0)
        written = b_ds
        b_q = (b_q * tl.math.exp2(b_g)[None, :]).to(b_q.dtype)
        b_ds = b_ds * tl.math.exp2(g_last) + tl.dot(b_q, b_do.to(b_q.dtype)) * scale
        if HAS_READS:
            b_k = tl.load(k + o_kt, mask=m_kt, other=0.0)
            b_dv = tl.dot(tl.trans(b_k), written.to(b_k.dtype))
            b_dv = b_dv * tl.where(m_t, tl.math.exp2(g_last - b_g), 0.0)[:, None]
            b_dv += tl.load(dv + o_tv, mask=m_tv, other=0.0)
            tl.store(dv_new + o_tv, b_dv.to(dv_new.dtype.element_ty), mask=m_tv)
            o_wt = ((start + o_t) * H + i_h)[None, :] * K + o_k[:, None]
            b_w = tl.load(w + o_wt, mask=m_kt, other=0.0)
            b_ds -= tl.dot(b_w, b_dv.to(b_w.dtype))
        chunk -= 1
    tl.store(dh0 + i_r * (H * K * V) + o_s, b_ds, mask=m_s)


def pass_states_along(
    k: Tensor,
    u: Tensor,
    w: Tensor | None,
    g: Tensor,
    initial: Tensor,
    table: RunTable,
    *,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """(h (1, C, H, K, V) in `dtype`, corrected values like u, branch states (S, H, K, V)).

    k (1, T, Hk, K); u (1, T, H, V); w (1, T, H, K), None = nothing is read; g (1, T, H) float32.
    initial: the rows before the branch states, zero first, float32.
    """
    (_, num_tokens, num_keys, size), (heads, width) = k.shape, u.shape[2:]
    assert initial.dtype == g.dtype == torch.float32
    assert num_tokens == u.shape[1]
    assert all(x.is_contiguous() for x in (k, u, g, initial))
    num_chunks = len(table.branch)
    h = k.new_empty(1, num_chunks, heads, size, width, dtype=dtype)
    v_new = u if w is None else torch.empty_like(u)
    states = torch.cat([initial, initial.new_empty(table.num_branches, heads, size, width)])
    first = 0
    for count in table.num_runs:
        _forward_kernel[_grid(count, heads, width)](
            k,
            u,
            u if w is None else w,
            g,
            v_new,
            h,
            states,
            table.bounds,
            table.branch,
            table.runs,
            first,
            len(initial),
            **_sizes(heads, num_keys, size, width, has_reads=w is not None, count=count),
        )
        first += count
    return h, v_new, states[len(initial) :]


def pass_gradients_along(
    q: Tensor,
    k: Tensor,
    w: Tensor | None,
    g: Tensor,
    do: Tensor,
    dv: Tensor | None,
    exports: Tensor | None,
    table: RunTable,
    *,
    scale: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """(dh (1, C, H, K, V) in `dtype`, dv with the states' part, dh0 (R, H, K, V) float32).

    do (1, T, H, V). dv: gradient of the corrected values from their own chunk, None = no reads.
    exports (S, H, K, V): float32 gradients of branch states from elsewhere.
    """
    (_, _, num_keys, size), (heads, width) = k.shape, do.shape[2:]
    assert all(x.is_contiguous() for x in (q, k, g, do))
    dh = k.new_empty(1, len(table.branch), heads, size, width, dtype=dtype)
    dh0 = g.new_empty(len(table.runs), heads, size, width)
    dv_new = None if dv is None else torch.empty_like(dv)
    first = len(table.runs)
    for count in reversed(table.num_runs):
        first -= count
        _backward_kernel[_grid(count, heads, width)](
            q,
            k,
            k if w is None else w,
            g,
            do,
            do if dv is None else dv,
            do if dv_new is None else dv_new,
            dh,
            dh0,
            dh0 if exports is None else exports,
            table.bounds,
            table.branch,
            table.runs,
            table.first_child,
            table.children,
            first,
            scale,
            HAS_EXPORTS=exports is not None,
            **_sizes(heads, num_keys, size, width, has_reads=w is not None, count=count),
        )
    return dh, dv_new, dh0


def initial_gradients(dh0: Tensor, num_initial: int, table: RunTable) -> Tensor:
    """(num_initial, H, K, V): dh0 summed over the runs of the first round by their row."""
    num_first = table.num_runs[0]
    rows = table.runs[:num_first, 2].long()
    sums = dh0.new_zeros(num_initial, *dh0.shape[1:])
    return sums.index_put((rows,), dh0[:num_first], accumulate=True)


def _grid(count: int, heads: int, width: int) -> Any:
    return lambda meta: (triton.cdiv(width, meta["BV"]) * heads * count,)


def _sizes(
    heads: int, num_keys: int, size: int, width: int, *, has_reads: bool, count: int
) -> dict[str, Any]:
    """WIDE_GRID: whether runs alone fill a device; few runs want narrow programs."""
    return {
        "H": heads,
        "HK": num_keys,
        "K": size,
        "V": width,
        "BT": CHUNK,
        "BK": max(16, triton.next_power_of_2(size)),
        "HAS_READS": has_reads,
        "WIDE_GRID": count >= 8,
    }
