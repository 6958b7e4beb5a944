"""Keys of ancestors before a partition's own tokens: reference against the whole tree, sdpa against
the reference. float64: differences are sums in another order, 1e-12 leaves three digits of room."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.attention.packs import caterpillar, chain, random_pack, random_qkv, relative
from tests.attention.partitions import cut, random_partition, trunk_length
from tests.tree.random_paths import seeds
from vla_nav.attention import backend, dense_mask, sdpa
from vla_nav.tree import pack

REFERENCE = backend("reference")
NAMES = ("out", "dq", "dk", "dv")


def gradients(found, plan, q, k, v, grad):
    """Output and gradients of q, k, v."""
    out = found.attend(q, k, v, plan, None)
    return (out, *torch.autograd.grad(out, (q, k, v), grad))


def assert_whole_equals_partition(whole, num_prefix, padding):
    """The own rows of a whole pack, with gradients on them alone, are the partition's."""
    part = cut(whole, num_prefix, padding=padding)
    q, k, v, grad = random_qkv(whole)
    grad[:, :num_prefix] = 0
    expected = gradients(REFERENCE, REFERENCE.plan(whole), q, k, v, grad)
    own = torch.arange(num_prefix, len(whole.subtree_end))
    size = (1, padding, *k.shape[2:])
    noise = torch.randn(size, dtype=k.dtype)  # a padding key may hold anything finite
    k, v = (
        torch.cat([x[:, :num_prefix], noise, x[:, num_prefix:]], dim=1).detach().requires_grad_()
        for x in (k, v)
    )
    q = q[:, own].detach().requires_grad_()
    found = gradients(REFERENCE, REFERENCE.plan(part), q, k, v, grad[:, own])
    real = torch.cat([torch.arange(num_prefix), own + padding])
    assert relative(found[0], expected[0][:, own]) < 1e-12
    assert relative(found[1], expected[1][:, own]) < 1e-12
    for a, b in zip(found[2:], expected[2:], strict=True):
        assert relative(a[:, real], b) < 1e-12
        assert (a[:, num_prefix : num_prefix + padding] == 0).all()


def test_partition_mask_as_drawn():
    # r - a - b - x, r - y; own tokens x, y behind the keys of r, a, b.
    end = torch.tensor([1, 2], dtype=torch.int32)
    prefix_end = torch.tensor([2, 1, 1], dtype=torch.int32)
    drawn = ["".join(".#"[int(cell)] for cell in row) for row in dense_mask(end, prefix_end)]
    assert drawn == ["####.", "#...#"]
    assert torch.equal(dense_mask(end, prefix_end[:0]), dense_mask(end))


@given(seeds(), st.integers(0, 3))
@settings(max_examples=15, deadline=None, derandomize=True)
def test_a_partition_is_the_rest_of_its_tree(seed, padding):
    whole = random_pack(seed, num_trees=seed % 2 + 1, padding=seed % 3)
    for num_prefix in {0, 1, trunk_length(whole) // 2, trunk_length(whole)}:
        if num_prefix < len(whole.subtree_end):
            assert_whole_equals_partition(whole, num_prefix, padding)


@given(st.integers(0, 11), st.sampled_from([1, 5, 63, 97, 130]), st.sampled_from([0, 1, 20, 129]))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_sdpa_equals_the_reference_behind_any_prefix(seed, num_tokens, num_prefix):
    packed = random_partition(num_tokens, num_prefix, seed, padding=seed % 3)
    heads, kv_heads = [(4, 4), (4, 2), (3, 1)][seed % 3]
    inputs = random_qkv(packed, heads=heads, kv_heads=kv_heads, batch=seed % 2 + 1)
    expected = gradients(REFERENCE, REFERENCE.plan(packed), *inputs)
    for max_rows in (sdpa.MAX_ROWS, seed % 7 + 1, 32):
        found = gradients(sdpa, sdpa.plan(packed, max_rows=max_rows), *inputs)
        for name, a, b in zip(NAMES, found, expected, strict=True):
            assert a.shape == b.shape
            assert relative(a, b) < 1e-12, name


@pytest.mark.parametrize("num_prefix", [1, 200, 401])
def test_sdpa_equals_the_reference_on_a_cut_episode(num_prefix):
    whole = pack([caterpillar(40, "full", "hidden"), caterpillar(5, "pooled", "visible")])
    num_prefix = min(num_prefix, trunk_length(whole))
    packed = cut(whole, num_prefix)
    inputs = random_qkv(packed)
    expected = gradients(REFERENCE, REFERENCE.plan(packed), *inputs)
    found = gradients(sdpa, sdpa.plan(packed), *inputs)
    for name, a, b in zip(NAMES, found, expected, strict=True):
        assert relative(a, b) < 1e-12, name


@pytest.mark.parametrize("name", ["reference", "sdpa"])
def test_a_gateway_key_reaches_its_rows_and_no_other_bit(name):
    found = backend(name)
    packed = random_partition(63, 9, seed=4, padding=1)
    q, k, v, _ = random_qkv(packed)
    plan = found.plan(packed)
    index = torch.arange(63)
    with torch.no_grad():
        before = found.attend(q, k, v, plan, None)
        for key, end in enumerate(packed.prefix_end.tolist()):
            k2, v2 = k.clone(), v.clone()
            k2[:, key] += 3.0
            v2[:, key] -= 5.0
            after = found.attend(q, k2, v2, plan, None)
            sees = index < end
            assert torch.equal(after[:, ~sees], before[:, ~sees])
            assert (after[:, sees] != before[:, sees]).any(dim=-1).all()


def test_memory_of_a_plan_stays_below_rows_times_keys_of_a_chunk():
    # 6k own tokens behind 5k keys: a dense mask would have 69 million cells.
    whole = pack([chain(5_000), caterpillar(150, "full", "hidden")])
    packed = replace(
        whole, prefix_end=torch.full((5_000,), len(whole.subtree_end), dtype=torch.int32)
    )
    plan = sdpa.plan(packed)
    longest = len(packed.subtree_end) + len(packed.prefix_end)
    for call in plan.calls:
        mask = call.mask(plan.num_prefix)
        assert mask is not None
        assert call.q_index.shape[1] <= sdpa.MAX_ROWS
        assert mask.numel() <= max(sdpa.MAX_CELLS, sdpa.MAX_ROWS * longest)


@pytest.mark.parametrize("name", ["reference", "sdpa"])
def test_keys_without_their_prefix_are_refused(name):
    found = backend(name)
    packed = random_partition(5, 3, seed=0)
    q, k, v, _ = random_qkv(packed)
    plan = found.plan(packed)
    assert (plan.num_tokens, plan.num_prefix) == (5, 3)
    with pytest.raises(ValueError, match="5 and k 5 tokens, but the plan is for 5 behind a prefix"):
        found.attend(q, k[:, 3:], v[:, 3:], plan)


def test_a_chunk_keeps_no_copy_of_its_keys_for_the_backward_pass():
    packed = random_partition(1000, 1000, seed=0)
    q, k, v, _ = random_qkv(packed)
    kept = {}  # by storage: q, k and v themselves are saved for every chunk

    def keep(x):
        kept[x.untyped_storage().data_ptr()] = x.numel()
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        sdpa.attend(q, k, v, sdpa.plan(packed))
    # Eight chunks of 1000 to 2000 keys each would keep six times the keys and values.
    assert sum(kept.values()) < 3 * (q.numel() + k.numel() + v.numel())
