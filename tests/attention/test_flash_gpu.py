"""FlashAttention 4 on a Hopper GPU: parity for every head shape, repeats, compilations, policies.

    pytest tests/attention/test_flash_gpu.py -m gpu -s       prints every difference

Every test looks at all of its packs before it fails, so that one run says what is wrong where.
"""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

from tests.attention.packs import LAYOUTS, caterpillar, chain, padded_to
from tests.attention.partitions import cut, random_partition, trunk_length
from vla_nav.attention import backend, flash
from vla_nav.attention.parity import TOLERANCE, differences_on, require_parity
from vla_nav.errors import UserError
from vla_nav.profiling.synthetic import Forest
from vla_nav.tree import pack

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(find_spec("flash_attn") is None, reason="needs the extra `hopper`"),
]

BF16, F16 = torch.bfloat16, torch.float16
# dtype, heads, key/value heads, head dim
SHAPES = [
    (BF16, 16, 8, 128),
    (BF16, 32, 8, 128),
    (BF16, 4, 4, 128),
    (BF16, 14, 2, 64),
    (BF16, 8, 8, 64),
    (BF16, 8, 4, 96),
    (BF16, 8, 2, 256),
    (BF16, 2, 2, 256),
    (F16, 16, 8, 128),
]


def assert_all_equal_the_reference(packs, dtype, *shape):
    """Forward and every gradient of each pack, by token; the failures of all packs together."""
    wrong = []
    for name, packed in packs.items():
        found = differences_on(backend("flash"), name, packed, "cuda", dtype, shape)
        row = "  ".join(f"{item.tensor} {item.relative:.1e}" for item in found)
        print(f"\n{dtype} {shape} {name}: {row}", end="")
        wrong += [item for item in found if not item.relative <= TOLERANCE[dtype]]
    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.parametrize(("dtype", "heads", "kv_heads", "dim"), SHAPES)
def test_the_gate_passes(dtype, heads, kv_heads, dim):
    found = require_parity(
        "flash", "cuda", dtype=dtype, num_heads=heads, num_kv_heads=kv_heads, head_dim=dim
    )
    print(f"\n{dtype} {heads}/{kv_heads} x {dim}: {found.differences[0]} in {found.seconds:.1f} s")


def test_lengths_layouts_forests_and_gateways():
    packs = {f"chain {n}": pack([chain(n)]) for n in (1, 63, 128, 129, 1000)}
    packs |= {f"random {n}": padded_to(n, seed=n) for n in (97, 700, 3000)}
    packs |= {f"{h} {a}": pack([caterpillar(30, h, a)] * 2) for h, a in LAYOUTS}
    packs |= {f"behind {n}": random_partition(700, n, seed=n) for n in (1, 100, 128, 3000)}
    whole = pack([caterpillar(40, "full", "hidden")])
    packs["leaves alone"] = cut(whole, trunk_length(whole))
    assert_all_equal_the_reference(packs, BF16, 16, 8, 128)


@pytest.mark.parametrize("group", [2, 4])
def test_tiles_split_over_heads_in_a_forest(group):
    packs = {"forest": pack(Forest.parse("3*30x96+12").trees())}
    tables = flash.plan(packs["forest"]).to("cuda").tables(16, 16 // group, 128)
    assert tables.split is not None  # both kinds of tiles, and slots that are not the first tiles
    assert_all_equal_the_reference(packs, BF16, 16, 16 // group, 128)


def test_one_kernel_serves_all_lengths():
    from vla_nav.attention.hopper import kernels

    def run(size: int) -> int:
        packed = padded_to(size, seed=size)
        q, k, v = (torch.randn(1, size, h, 128, device="cuda", dtype=BF16) for h in (4, 2, 2))
        q.requires_grad_()
        flash.attend(q, k, v, flash.plan(packed).to("cuda")).sum().backward()
        return len(kernels._compiled)

    first = run(1000)
    assert {run(size) for size in (300, 3000, 1234, 777)} == {first}


def test_views_of_any_layout_and_a_batch():
    packed = padded_to(700, seed=1)
    plan = flash.plan(packed).to("cuda")
    q = torch.randn(2, 4, 700, 64, device="cuda", dtype=BF16).transpose(1, 2)
    k, v = torch.randn(2, 2, 2, 700, 64, device="cuda", dtype=BF16).transpose(2, 3)
    strided = [x.clone(memory_format=torch.preserve_format).requires_grad_() for x in (q, k, v)]
    dense = [x.contiguous().requires_grad_() for x in (q, k, v)]
    grad = torch.randn(2, 700, 4, 64, device="cuda", dtype=BF16)
    outs = [flash.attend(*x, plan) for x in (strided, dense)]
    assert torch.equal(*outs)
    for a, b in zip(
        torch.autograd.grad(outs[0], strided, grad),
        torch.autograd.grad(outs[1], dense, grad),
        strict=True,
    ):
        assert float((a - b).norm() / b.norm()) < 1e-2


def test_what_it_does_not_take_is_refused():
    plan = flash.plan(padded_to(200, seed=0)).to("cuda")

    def attend(dtype, dim):
        flash.attend(*(torch.zeros(1, 200, 2, dim, device="cuda", dtype=dtype),) * 3, plan)

    with pytest.raises(UserError, match="bf16-mixed"):
        attend(torch.float32, 64)
    with pytest.raises(UserError, match="head dims"):
        attend(BF16, 192)
