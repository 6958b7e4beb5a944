"""Plans, tables and the autograd function of `flash` against the reference, kernels emulated."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch

from tests.attention import kernel_emulation
from tests.attention.packs import padded_to
from vla_nav.attention import flash
from vla_nav.attention.parity import differences_on, parity_packs
from vla_nav.profiling.synthetic import Forest
from vla_nav.tree import pack

# heads, key/value heads, head dim: grouped by 2, 4, 1 and 7 (which does not divide a tile), wide
SHAPES = [(4, 2, 16), (8, 2, 16), (2, 2, 16), (7, 1, 8), (4, 2, 256)]


@pytest.fixture
def emulated(monkeypatch):
    """The backend, with its kernels emulated, on the CPU."""
    monkeypatch.setitem(sys.modules, "vla_nav.attention.hopper.kernels", kernel_emulation)
    monkeypatch.setattr("vla_nav.attention.hopper.kernels", kernel_emulation, raising=False)
    monkeypatch.setattr(flash, "_require", lambda q: None)
    backend = replace(flash.BACKEND, device_types=("cpu",))
    monkeypatch.setattr(flash, "BACKEND", backend)
    return backend


@pytest.mark.parametrize("shape", SHAPES)
def test_what_the_tables_say_is_the_reference(emulated, shape):
    packs = {**parity_packs(), "700 tokens": padded_to(700, seed=7)}
    packs["forest of caterpillars"] = pack(Forest.parse("3*6x60+12").trees())
    for name, packed in packs.items():
        for found in differences_on(emulated, name, packed, "cpu", torch.float32, shape):
            assert found.relative < 1e-5, found


def test_a_batch_is_its_elements(emulated):
    packed = padded_to(200, seed=3)
    plan = emulated.plan(packed)
    q, k, v = (torch.randn(2, 200, h, 16, requires_grad=True) for h in (4, 2, 2))
    both = emulated.attend(q, k, v, plan)
    for i in range(2):
        one = emulated.attend(q[i : i + 1], k[i : i + 1], v[i : i + 1], plan)
        assert torch.equal(both[i : i + 1], one)
    both.sum().backward()
    assert all(x.grad.shape == x.shape for x in (q, k, v))
