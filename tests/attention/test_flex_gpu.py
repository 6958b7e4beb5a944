"""FlexAttention on a GPU: parity with and without gateway keys, recompilations, leakage.

    pytest tests/attention/test_flex_gpu.py -m gpu -s        prints every difference; minutes, most
                                                             of which are compilations

Every test looks at all of its packs before it fails, so that one run says what is wrong where.
"""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch

from tests.attention.packs import LAYOUTS, caterpillar, chain, padded_to
from tests.attention.partitions import cut, random_partition, trunk_length
from vla_nav.attention import backend, flex
from vla_nav.attention.parity import TOLERANCE, differences_on, require_parity
from vla_nav.tree import PackedTree, pack

pytestmark = pytest.mark.gpu

LENGTHS = (1000, 5000, 130, 97, 63, 1)
PREFIXES = (0, 1, 100, 128, 3000)
BF16, F32 = torch.bfloat16, torch.float32
# dtype, heads, key/value heads, head dim
COMBINATIONS = [
    (BF16, 16, 8, 128),
    (BF16, 4, 4, 64),
    (F32, 4, 2, 64),
    (F32, 4, 4, 128),
    (BF16, 14, 2, 64),
]


@pytest.fixture(autouse=True)
def fresh_compiler():
    """Graphs of one test are not counted in another."""
    torch._dynamo.reset()


def graphs() -> int:
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]


def padded(packed: PackedTree) -> PackedTree:
    """Own tokens and prefix as a training run pads them."""
    num_tokens, num_prefix = len(packed.subtree_end), len(packed.prefix_end)
    rows = torch.arange(num_tokens + 1, flex.padded_length(num_tokens) + 1, dtype=torch.int32)
    keys = torch.zeros(flex.padded_prefix(num_prefix) - num_prefix, dtype=torch.int32)
    return replace(
        packed,
        token_ids=torch.nn.functional.pad(packed.token_ids, (0, len(rows))),
        subtree_end=torch.cat([packed.subtree_end, rows]),
        prefix_end=torch.cat([packed.prefix_end, keys]),
    )


def assert_all_equal_the_reference(packs, dtype, *shape):
    """Forward and every gradient of each pack, by token; the failures of all packs together."""
    wrong = []
    for name, packed in packs.items():
        before, start = graphs(), time.perf_counter()
        found = differences_on(backend("flex"), name, packed, "cuda", dtype, shape)
        seconds = time.perf_counter() - start
        row = "  ".join(f"{item.tensor} {item.relative:.1e}" for item in found)
        row += f"  {seconds:.1f} s, graphs +{graphs() - before}"
        print(f"\n{dtype} {shape} {name}: {row}", end="")
        wrong += [item for item in found if not item.relative <= TOLERANCE[dtype]]
    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.parametrize(("dtype", "heads", "kv_heads", "dim"), COMBINATIONS)
def test_lengths_and_prefixes(dtype, heads, kv_heads, dim):
    # The first combination leaves the filling up to `attend`; the others pad as a run does.
    packs = {}
    for num_prefix in PREFIXES:
        for size in LENGTHS:
            packed = random_partition(size, num_prefix, seed=size, padding=num_prefix % 3)
            packed = packed if heads == 16 else padded(packed)
            packs[f"{size} behind {num_prefix}"] = packed
    assert_all_equal_the_reference(packs, dtype, heads, kv_heads, dim)


@pytest.mark.parametrize("dtype", [BF16, F32])
def test_forests_chains_and_cut_episodes(dtype):
    packs = {f"chain of {size}": pack([chain(size)]) for size in (1, 63, 97, 130, 128, 513)}
    packs |= {f"forest in {size}": padded_to(size, seed=size) for size in (63, 97, 130, 513)}
    for history, actions in LAYOUTS:
        trees = [caterpillar(n, history, actions, seed=n) for n in (40, 1, 5, 3)]
        whole = pack(trees)
        name = f"{history} {actions}"
        packs[name] = padded(whole)
        for num_prefix in {1, trunk_length(whole) // 2, trunk_length(whole)}:
            packs[f"{name}, cut at {num_prefix}"] = padded(cut(whole, num_prefix))
    assert_all_equal_the_reference(packs, dtype, 4, 2, 64)


def test_batches_of_two_share_a_plan():
    packed = random_partition(130, 100, seed=1)
    plan = flex.plan(packed).to("cuda")
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(2, n, h, 64, generator=generator).to("cuda", BF16)
        for n, h in ((130, 4), (230, 2), (230, 2))
    )
    both = flex.attend(q, k, v, plan)
    for i in range(2):
        one = flex.attend(q[i : i + 1], k[i : i + 1], v[i : i + 1], plan)
        assert torch.allclose(one[0], both[i], atol=1e-2)


def test_mixed_lengths_do_not_recompile_after_warm_up():
    def step(num_tokens, num_prefix, *, is_training=True):
        packed = padded(random_partition(num_tokens, num_prefix, seed=num_tokens))
        num_keys = len(packed.subtree_end) + len(packed.prefix_end)
        q, k, v = (
            torch.randn(1, n, h, 128, device="cuda", dtype=BF16, requires_grad=is_training)
            for n, h in ((len(packed.subtree_end), 16), (num_keys, 8), (num_keys, 8))
        )
        start, before = time.perf_counter(), graphs()
        with torch.set_grad_enabled(is_training):
            out = flex.attend(q, k, v, flex.plan(packed).to("cuda"))
        if is_training:
            out.square().mean().backward()
        torch.cuda.synchronize()
        print(
            f"\n{num_tokens} behind {num_prefix}, training {is_training}: "
            f"{1e3 * (time.perf_counter() - start):.0f} ms, graphs +{graphs() - before}",
            end="",
        )

    start = graphs()
    for is_training in (False, True):
        for num_prefix in (0, 700, 2500):
            for num_tokens in (1100, 3000, 9000):
                step(num_tokens, num_prefix, is_training=is_training)
    warm = graphs()
    # With and without prefix, with and without gradients: four, and one each where sizes of the
    # first call are equal by chance.
    assert warm - start <= 8
    mixed = [(1, 0), (900, 1), (5000, 128), (1500, 3000), (2048, 0), (16_000, 1), (4000, 0)]
    mixed += [(7000, 100), (1000, 5000), (3100, 0), (2100, 2100), (1024, 1024), (12_000, 0)]
    for is_training in (True, False):
        for num_tokens, num_prefix in mixed:
            step(num_tokens, num_prefix, is_training=is_training)
    print(f"\ngraphs: {warm - start} in warm-up, {graphs() - warm} afterwards")
    assert graphs() == warm


def test_invisible_gateway_keys_do_not_change_a_bit():
    packed = random_partition(300, 200, seed=4, padding=2)
    plan = flex.plan(packed).to("cuda")
    generator = torch.Generator().manual_seed(0)
    num_keys = len(packed.prefix_end)
    q, k, v = (
        torch.randn(1, n, h, 64, generator=generator).to("cuda", BF16)
        for n, h in ((300, 4), (num_keys + 300, 2), (num_keys + 300, 2))
    )
    ends = [*packed.prefix_end.tolist(), *packed.subtree_end.tolist()]
    starts = [0] * num_keys + list(range(300))
    index = torch.arange(300)
    with torch.no_grad():
        before = flex.attend(q, k, v, plan).cpu()
        for key in (0, 1, 49, 50, 100, 127, 128, 199, 201, 202, 250, 329, 330, 450, 501):
            k2, v2 = k.clone(), v.clone()
            k2[:, key] += 3.0
            v2[:, key] -= 50.0
            after = flex.attend(q, k2, v2, plan).cpu()
            sees = (starts[key] <= index) & (index < ends[key])
            assert torch.equal(after[:, ~sees], before[:, ~sees]), key
            if sees.any():
                assert (after[:, sees] != before[:, sees]).any(), key


def test_no_nan_from_uninitialised_memory():
    # Outputs come from torch.empty: NaN-fill what the allocator hands out next.
    packs = {"padded": padded_to(130, seed=5), "behind": random_partition(130, 100, 5, padding=3)}
    for _ in range(2):
        torch.cuda.empty_cache()
        poison = torch.full((2**26,), float("nan"), device="cuda")
        del poison
        assert_all_equal_the_reference(packs, F32, 4, 2, 64)


@pytest.mark.parametrize("name", ["flex", "sdpa"])
@pytest.mark.parametrize(("dtype", "heads", "kv_heads", "dim"), COMBINATIONS[:3])
def test_parity_gate_passes(name, dtype, heads, kv_heads, dim):
    found = require_parity(
        name, "cuda", dtype=dtype, num_heads=heads, num_kv_heads=kv_heads, head_dim=dim
    )
    worst = {}
    for item in found.differences:
        worst.setdefault(item.tensor, f"{item.relative:.1e} ({item.case})")
    print(f"\n{name} {dtype} {heads}/{kv_heads} x {dim}: {worst}, {found.seconds:.1f} s")
