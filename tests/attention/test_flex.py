"""FlexAttention: plans on the CPU, parity and recompilation on a GPU."""

from __future__ import annotations

import pickle

import pytest
import torch

from tests.attention.packs import (
    LAYOUTS,
    SIZES,
    caterpillar,
    chain,
    padded_to,
    random_qkv,
    relative,
)
from vla_nav.attention import backend, dense_mask, flex
from vla_nav.errors import UserError
from vla_nav.tree import pack

GPU = pytest.mark.gpu


@pytest.mark.parametrize("size", [*SIZES, 128, 300])
def test_block_mask_is_the_dense_mask(size):
    packed = padded_to(size, seed=size)
    plan = flex.plan(packed)
    mask = plan.block_mask
    padded = len(plan.end)
    assert padded % flex.BLOCK_SIZE == 0
    assert mask.shape == (1, 1, padded, padded)
    index = torch.arange(padded)
    zero = torch.zeros((), dtype=torch.int64)
    # The mask function is safe on the whole padded range, where it reads subtree_end.
    evaluated = mask.mask_mod(zero, zero, index[:, None], index[None, :])
    assert torch.equal(evaluated, dense_mask(plan.end))
    assert torch.equal(evaluated[:size, :size], dense_mask(packed.subtree_end))
    assert evaluated.any(dim=1).all()  # no query without a key, padding included


def test_lists_cover_every_visible_pair_in_both_directions():
    packed = pack([caterpillar(60, "pooled", "hidden"), chain(200)])
    plan = flex.plan(packed)
    size, blocks = flex.BLOCK_SIZE, len(plan.end) // flex.BLOCK_SIZE
    dense = dense_mask(plan.end).view(blocks, size, blocks, size)
    live, full = dense.any(3).any(1), dense.all(3).all(1)
    for partial_num, partial_idx, full_num, full_idx, is_transposed in (
        (plan.kv_num_blocks, plan.kv_indices, plan.full_kv_num_blocks, plan.full_kv_indices, False),
        (plan.q_num_blocks, plan.q_indices, plan.full_q_num_blocks, plan.full_q_indices, True),
    ):
        expected_live = live.T if is_transposed else live
        expected_full = full.T if is_transposed else full
        for row in range(blocks):
            partial = set(partial_idx[0, 0, row, : partial_num[0, 0, row]].tolist())
            whole = set(full_idx[0, 0, row, : full_num[0, 0, row]].tolist())
            assert not partial & whole
            assert partial | whole == set(expected_live[row].nonzero()[:, 0].tolist())
            assert whole <= set(expected_full[row].nonzero()[:, 0].tolist())


def test_plans_travel_from_a_loader_worker():
    packed = pack([caterpillar(8, "full", "hidden")])
    plan = flex.plan(packed)
    assert plan.block_mask is plan.block_mask  # one for all layers
    copy = pickle.loads(pickle.dumps(plan)).to("cpu")
    assert torch.equal(copy.kv_indices, plan.kv_indices)
    assert copy.num_tokens == len(packed.token_ids)


def test_buckets_bound_lengths_and_padding():
    lengths = {flex.padded_length(n) for n in range(1, 40_000, 37)}
    assert len(lengths) < 80
    for n in (1, 127, 128, 129, 5000, 16_384, 1_000_003):
        padded = flex.padded_length(n)
        assert padded % flex.BLOCK_SIZE == 0
        assert n <= padded < max(n * 1.125 + 128, 8 * 128 + 1)
        assert flex.padded_length(padded) == padded


@pytest.mark.slow
def test_mixed_lengths_are_one_graph_after_warm_up():
    # Guards and sizes only: the graph runs eagerly (dense), which the CPU can do, forward only.
    from torch._dynamo.utils import counters
    from torch.nn.attention.flex_attention import flex_attention

    compiled = torch.compile(flex_attention, dynamic=True, backend="eager")
    graphs = []
    for num_steps in (90, 200, 150, 230):
        tree = caterpillar(num_steps, "full", "hidden", seed=num_steps)
        packed = pack([tree], pad_to=flex.padded_length(tree.num_tokens))
        q, k, v, _ = (x.detach().float().transpose(1, 2) for x in random_qkv(packed, heads=4))
        block_mask = flex.plan(packed).block_mask
        with torch.no_grad():
            out = compiled(q, k, v, block_mask=block_mask, enable_gqa=True).transpose(1, 2)
        reference = backend("reference")
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        assert relative(out, reference.attend(q, k, v, reference.plan(packed))) < 1e-6
        graphs.append(counters["stats"]["unique_graphs"])
    assert len(set(graphs[1:])) == 1, graphs


def test_cpu_is_refused_with_the_alternative():
    packed = pack([chain(5)])
    q, k, v, _ = random_qkv(packed)
    with pytest.raises(UserError, match=r"'flex' does not run on cpu .* use attention=sdpa"):
        flex.attend(q, k, v, flex.plan(packed))
    with pytest.raises(UserError, match="use attention=sdpa"):
        backend("flex", device="cpu")


def test_unknown_backend_is_refused_with_the_nearest_name():
    with pytest.raises(UserError, match=r"unknown attention backend 'flx' \(did you mean 'flex'"):
        backend("flx")


def gpu_parity(packed, dtype, tolerance, **shape):
    """Forward and gradients of flex on the GPU against the float64 reference on the CPU."""
    reference = backend("reference")
    q, k, v, grad = random_qkv(packed, **shape)
    expected = reference.attend(q, k, v, reference.plan(packed), None)
    expected = (expected, *torch.autograd.grad(expected, (q, k, v), grad))
    inputs = [x.detach().to("cuda", dtype).requires_grad_() for x in (q, k, v)]
    out = flex.attend(*inputs, flex.plan(packed).to("cuda"), None)
    found = (out, *torch.autograd.grad(out, inputs, grad.to("cuda", dtype)))
    for name, a, b in zip(("out", "dq", "dk", "dv"), found, expected, strict=True):
        a = a.detach().cpu().double()
        assert a.isfinite().all(), name
        assert relative(a, b) < tolerance, (name, relative(a, b))


@GPU
@pytest.mark.parametrize("size", [*SIZES, 128, 513])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2)])
def test_gpu_odd_sizes_and_grouped_heads(size, heads, kv_heads):
    # float32: TF32 products are off by default, 1e-3 would still tell a wrong mask from rounding.
    # bf16 keeps 8 bits: 4e-3 is one rounding (q, k, v and grad are rounded too), 2e-2 a few.
    for packed in (pack([chain(size)]), padded_to(size, seed=size)):
        shape = {"heads": heads, "kv_heads": kv_heads, "dim": 64}
        gpu_parity(packed, torch.float32, 1e-3, **shape)
        gpu_parity(packed, torch.bfloat16, 2e-2, **shape)


@GPU
@pytest.mark.parametrize(("history", "actions"), LAYOUTS)
def test_gpu_layouts(history, actions):
    trees = [caterpillar(n, history, actions, seed=n) for n in (1, 5, 40, 3)]
    total = sum(tree.num_tokens for tree in trees)
    packed = pack(trees, pad_to=flex.padded_length(total))
    gpu_parity(packed, torch.bfloat16, 2e-2, heads=4, kv_heads=2, dim=64)


@GPU
def test_gpu_mixed_lengths_do_not_recompile_after_warm_up():
    from torch._dynamo.utils import counters

    def step(num_steps, seed):
        tree = caterpillar(num_steps, "full", "hidden", seed=seed)
        packed = pack([tree], pad_to=flex.padded_length(tree.num_tokens))
        q, k, v, grad = (x.detach().to("cuda", torch.bfloat16) for x in random_qkv(packed, dim=64))
        inputs = [x.requires_grad_() for x in (q, k, v)]
        out = flex.attend(*inputs, flex.plan(packed).to("cuda"), None)
        torch.autograd.grad(out, inputs, grad)

    for warm_up in (90, 200, 330):
        step(warm_up, seed=0)
    before = counters["stats"]["unique_graphs"]
    for seed, num_steps in enumerate((95, 150, 230, 260, 300, 410, 70)):
        step(num_steps, seed=seed)
    assert counters["stats"]["unique_graphs"] == before


@GPU
def test_gpu_no_nan_from_uninitialised_memory():
    # Outputs come from torch.empty: NaN-fill what the allocator hands out next.
    torch.cuda.empty_cache()
    poison = torch.full((2**26,), float("nan"), device="cuda")
    del poison
    packed = padded_to(130, seed=5)
    gpu_parity(packed, torch.float32, 1e-3, heads=4, kv_heads=2, dim=64)
