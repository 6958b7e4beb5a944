"""Every CPU backend against the reference, forward and every gradient; the reference against the
flat paths. float64: differences are sums in another order, 1e-12 leaves three digits of room."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings

from tests.attention.packs import (
    LAYOUTS,
    SIZES,
    caterpillar,
    chain,
    padded_to,
    random_pack,
    random_qkv,
    relative,
)
from tests.tree.random_paths import random_paths, seeds
from vla_nav.attention import backend, sdpa
from vla_nav.tree import PrefixTree, pack, path_token_index

REFERENCE = backend("reference")


def assert_parity(packed, plan, *, scale=None, **shape):
    q, k, v, grad = random_qkv(packed, **shape)
    expected = REFERENCE.attend(q, k, v, REFERENCE.plan(packed), scale)
    expected = (expected, *torch.autograd.grad(expected, (q, k, v), grad))
    out = sdpa.attend(q, k, v, plan, scale)
    found = (out, *torch.autograd.grad(out, (q, k, v), grad))
    for name, a, b in zip(("out", "dq", "dk", "dv"), found, expected, strict=True):
        assert a.shape == b.shape
        assert relative(a, b) < 1e-12, name


@given(seeds())
@settings(max_examples=40, deadline=None, derandomize=True)
def test_random_forests_with_padding(seed):
    packed = random_pack(seed, num_trees=seed % 4 + 1, padding=seed % 6)
    assert_parity(packed, sdpa.plan(packed))
    assert_parity(packed, sdpa.plan(packed, max_rows=seed % 7 + 1))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (3, 1)])
def test_odd_sizes_and_grouped_heads(size, heads, kv_heads):
    for packed in (pack([chain(size)]), padded_to(size, seed=size)):
        assert_parity(packed, sdpa.plan(packed), heads=heads, kv_heads=kv_heads, batch=2)
        assert_parity(packed, sdpa.plan(packed, max_rows=32), heads=heads, kv_heads=kv_heads)


@pytest.mark.parametrize(("history", "actions"), LAYOUTS)
def test_layouts_in_one_pack(history, actions):
    trees = [caterpillar(n, history, actions, seed=n) for n in (1, 5, 16, 3)]
    total = sum(tree.num_tokens for tree in trees)
    for packed in (pack(trees), pack(trees, pad_to=total + 77)):
        assert_parity(packed, sdpa.plan(packed), scale=0.3)
        assert_parity(packed, sdpa.plan(packed, max_rows=24))


@given(seeds())
@settings(max_examples=25, deadline=None, derandomize=True)
def test_reference_is_causal_attention_of_every_flat_path(seed):
    tree = PrefixTree.from_paths(random_paths(seed))
    packed = pack([tree])
    q, k, v, _ = random_qkv(packed, heads=2, kv_heads=1)
    out = REFERENCE.attend(q, k, v, REFERENCE.plan(packed), None)
    for path in range(tree.num_paths):
        index = torch.from_numpy(path_token_index(tree, path))
        flat = torch.nn.functional.scaled_dot_product_attention(
            q[:, index].transpose(1, 2),
            k[:, index].transpose(1, 2).expand(-1, 2, -1, -1),
            v[:, index].transpose(1, 2).expand(-1, 2, -1, -1),
            is_causal=True,
        ).transpose(1, 2)
        assert relative(out[:, index], flat) < 1e-12


@pytest.mark.parametrize("name", ["reference", "sdpa"])
def test_invisible_keys_do_not_change_a_bit(name):
    found = backend(name)
    packed = random_pack(11, num_trees=3, padding=5)
    q, k, v, _ = random_qkv(packed)
    plan = found.plan(packed)
    with torch.no_grad():
        before = found.attend(q, k, v, plan, None)
        for key in range(0, len(packed.token_ids), 7):
            k2, v2 = k.clone(), v.clone()
            k2[:, key] += 3.0
            v2[:, key] -= 5.0
            after = found.attend(q, k2, v2, plan, None)
            index = torch.arange(len(packed.token_ids))
            sees = (key <= index) & (index < packed.subtree_end[key])
            assert torch.equal(after[:, ~sees], before[:, ~sees])
            assert (after[:, sees] != before[:, sees]).any(dim=-1).all()


def test_memory_of_a_plan_is_linear_where_the_tree_is_bushy():
    # 16k tokens: a trunk of 4k with leaves; a dense mask would have 268 million cells.
    packed = pack([caterpillar(400, "full", "hidden"), caterpillar(300, "pooled", "hidden")])
    plan = sdpa.plan(packed)
    cells = [mask.numel() for call in plan.calls if (mask := call.mask(0)) is not None]
    assert max(cells) <= sdpa.MAX_CELLS
    assert sum(cells) < len(packed.token_ids) ** 2 / 4


@pytest.mark.parametrize("name", ["reference", "sdpa"])
def test_wrong_shapes_are_refused(name):
    found = backend(name)
    packed = pack([chain(5)])
    plan = found.plan(packed)
    q, k, v, _ = random_qkv(packed)
    with pytest.raises(ValueError, match="q has 4 and k 4 tokens, but the plan is for 5"):
        found.attend(q[:, :4], k[:, :4], v[:, :4], plan)
    with pytest.raises(ValueError, match="does not fit"):
        found.attend(q[:, :, :3], k, v, plan)
    with pytest.raises(ValueError, match="attention wants"):
        found.attend(q[0], k[0], v[0], plan)
