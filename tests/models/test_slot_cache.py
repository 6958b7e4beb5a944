"""The cache equals attention over each row's own sequence, written out; what is dropped is gone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vla_nav.models.cache import SlotCache


def naive(q, k, v, scale):
    """One row, (n, H, D) queries against (s, K, D) keys; query i is at place s - n + i."""
    groups, (n, s) = q.shape[1] // k.shape[1], (len(q), len(k))
    k, v = (x.repeat_interleave(groups, dim=1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    hidden = torch.arange(s) > torch.arange(s - n, s)[:, None]
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), v)


@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
@pytest.mark.parametrize("rows", [[0, 1, 2], [0, 2], [1, 4], [3]])
def test_ragged_calls_equal_each_row_alone(rows, num_kv_heads):
    rng = np.random.default_rng(len(rows) * 10 + num_kv_heads)
    torch.manual_seed(0)
    cache = SlotCache(num_layers=2)
    for row in range(5):
        cache.clear(row)
    held = {row: (torch.zeros(0, num_kv_heads, 8), torch.zeros(0, num_kv_heads, 8)) for row in rows}
    for call in range(9):
        counts = rng.integers(0, 40 if call == 3 else 6, len(rows))
        counts[call % len(rows)] = max(1, counts[call % len(rows)])
        width = int(counts.max())
        q = torch.randn(len(rows), width, 4, 8)
        k, v = torch.randn(2, len(rows), width, num_kv_heads, 8)
        attend = cache.attend(rows, counts)
        out = attend(q, k, v, 1, 0.3)
        attend(q + 1, k + 1, v + 1, 0, 0.3)  # another layer must not matter
        cache.commit(rows, counts)
        for b, (row, count) in enumerate(zip(rows, counts, strict=True)):
            keys, values = (
                torch.cat([old, new[b, :count]]) for old, new in zip(held[row], (k, v), strict=True)
            )
            if count:
                expected = naive(q[b, :count], keys, values, 0.3)
                assert torch.allclose(out[b, :count], expected, atol=1e-5)
            kept = len(keys) - int(rng.integers(0, len(keys) + 1)) if call % 3 == 2 else len(keys)
            held[row] = keys[:kept], values[:kept]
            cache.keep(row, kept)
        assert torch.isfinite(out).all(), "padded queries are finite too"


def test_clearing_a_row_forgets_it_and_new_rows_keep_the_others():
    torch.manual_seed(1)
    cache = SlotCache(num_layers=1)
    cache.clear(0)
    k, v = torch.randn(2, 1, 3, 1, 8)
    cache.attend([0], np.array([3]))(torch.randn(1, 3, 2, 8), k, v, 0, 1.0)
    cache.commit([0], np.array([3]))
    cache.clear(1)  # a row more than the store has
    q, k2, v2 = torch.randn(2, 1, 2, 8), torch.randn(2, 1, 1, 8), torch.randn(2, 1, 1, 8)
    out = cache.attend([0, 1], np.array([1, 1]))(q, k2, v2, 0, 1.0)
    joined = naive(q[0], torch.cat([k[0], k2[0]]), torch.cat([v[0], v2[0]]), 1.0)
    assert torch.allclose(out[0], joined, atol=1e-6)
    assert torch.allclose(out[1], v2[1].repeat(1, 2, 1), atol=1e-6), "one key: its value"
    cache.clear(0)
    again = cache.attend([0], np.array([1]))(q[:1], k2[:1], v2[:1], 0, 1.0)
    assert torch.allclose(again[0], v2[0].repeat(1, 2, 1), atol=1e-6)
