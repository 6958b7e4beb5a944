"""FlexAttention on the CPU: plans, block lists, the mask function, buckets and graphs. What needs a
GPU is in `test_flex_gpu.py`."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

from tests.attention.packs import SIZES, caterpillar, chain, random_qkv, relative
from tests.attention.partitions import cut, random_partition, trunk_length
from vla_nav.attention import backend, dense_mask, flex
from vla_nav.errors import UserError
from vla_nav.tree import pack

PREFIXES = (0, 1, 100, 128, 300)
REFERENCE = backend("reference")


def partitions():
    """Odd lengths behind odd prefixes; the last is the end of a real episode."""
    for size in (*SIZES, 128, 300):
        for num_prefix in PREFIXES:
            yield random_partition(size, num_prefix, seed=size, padding=size % 2)
    yield cut(whole := pack([caterpillar(60, "pooled", "hidden"), chain(200)]), trunk_length(whole))


def eager(packed, q, k, v, kernel=flex_attention):
    """The plan's block mask through FlexAttention without its kernel: dense, forward only."""
    plan = flex.plan(packed)
    heads = (x.transpose(1, 2) for x in flex.filled_up(q, k, v, plan.num_prefix))
    with torch.no_grad():
        out = kernel(*heads, block_mask=plan.block_mask, enable_gqa=True)
    return out.transpose(1, 2)[:, : plan.num_tokens]


def test_block_mask_is_the_dense_mask():
    for packed in partitions():
        plan = flex.plan(packed)
        rows, keys = plan.num_rows, len(plan.end)
        assert plan.block_mask.shape == (1, 1, rows, keys)
        assert rows % flex.BLOCK_SIZE == keys % flex.BLOCK_SIZE == 0
        row, key = torch.arange(rows), torch.arange(keys)
        zero = torch.zeros((), dtype=torch.int64)
        # The mask function is safe on the whole filled range, where it reads `end`.
        evaluated = plan.block_mask.mask_mod(zero, zero, row[:, None], key[None, :])
        first = keys - rows - plan.num_prefix
        expected = dense_mask(packed.subtree_end, packed.prefix_end)
        own = evaluated[: plan.num_tokens]
        assert torch.equal(own[:, first : first + expected.shape[1]], expected)
        assert not own[:, :first].any()
        assert not own[:, first + expected.shape[1] :].any()
        assert evaluated.any(dim=1).all()  # no query without a key, filled rows included


def test_lists_cover_every_visible_pair_in_both_directions():
    size = flex.BLOCK_SIZE
    for packed in partitions():
        plan = flex.plan(packed)
        row, key = torch.arange(plan.num_rows), torch.arange(len(plan.end))
        dense = plan.block_mask.mask_mod(None, None, row[:, None], key[None, :])
        dense = dense.view(len(row) // size, size, len(key) // size, size)
        live, full = dense.any(3).any(1), dense.all(3).all(1)  # (Jq, Jk)
        mask = plan.block_mask
        for partial, whole, expected_live, expected_full in (
            (
                (mask.kv_num_blocks, mask.kv_indices),
                (mask.full_kv_num_blocks, mask.full_kv_indices),
                live,
                full,
            ),
            (
                (mask.q_num_blocks, mask.q_indices),
                (mask.full_q_num_blocks, mask.full_q_indices),
                live.T,
                full.T,
            ),
        ):
            # Kernels of some releases find the rows of both lists by one stride.
            assert partial[1].stride() == whole[1].stride()
            partial_rows, full_rows = rows_of(*partial), rows_of(*whole)
            assert len(partial_rows) == len(full_rows) == len(expected_live)
            for i, (some, every) in enumerate(zip(partial_rows, full_rows, strict=True)):
                assert sorted(some + every) == expected_live[i].nonzero()[:, 0].tolist()
                assert set(every) <= set(expected_full[i].nonzero()[:, 0].tolist())


def rows_of(counts, indices):
    """The lists of a block mask as lists."""
    return [indices[0, 0, i, :count].tolist() for i, count in enumerate(counts[0, 0].tolist())]


@pytest.mark.parametrize(("size", "num_prefix"), [(1, 1), (97, 0), (130, 100), (63, 300)])
def test_forward_without_a_kernel_equals_the_reference(size, num_prefix):
    packed = random_partition(size, num_prefix, seed=size, padding=num_prefix % 3)
    q, k, v, _ = (x.detach() for x in random_qkv(packed, heads=4, kv_heads=2))
    # FlexAttention keeps its softmax in float32 whatever the dtype.
    expected = REFERENCE.attend(q, k, v, REFERENCE.plan(packed))
    assert relative(eager(packed, q, k, v), expected) < 1e-6


def test_plans_travel_from_a_loader_worker():
    packed = pack([caterpillar(8, "full", "hidden")])
    plan = flex.plan(packed)
    assert plan.block_mask is plan.block_mask  # one for all layers
    copy = pickle.loads(pickle.dumps(plan)).to("cpu")
    assert torch.equal(copy.kv_indices, plan.kv_indices)
    assert copy.num_tokens == len(packed.token_ids)


def test_buckets_bound_lengths_and_padding():
    lengths = {flex.padded_length(n) for n in range(1, 40_000, 37)}
    assert len(lengths) < 140  # 32 per doubling, and every one of the first 64 blocks
    for n in (1, 127, 128, 129, 5000, 16_384, 1_000_003):
        padded = flex.padded_length(n)
        assert padded % flex.BLOCK_SIZE == 0
        assert n <= padded < max(n * 33 / 32 + 128, 8 * 128 + 1)
        assert flex.padded_length(padded) == padded


def test_prefix_buckets_are_whole_blocks_and_keep_an_absent_prefix():
    assert flex.padded_prefix(0) == 0
    lengths = {flex.padded_prefix(n) for n in range(1, 40_000, 37)}
    assert len(lengths) < 140
    for n in (1, 127, 128, 129, 5000, 16_384):
        padded = flex.padded_prefix(n)
        assert padded % flex.BLOCK_SIZE == 0
        assert n <= padded < n * 33 / 32 + 128
        assert flex.padded_prefix(padded) == padded


def test_padding_of_the_caller_needs_no_copy():
    packed = random_partition(1000, 128, seed=3)
    q, k, v, _ = random_qkv(packed)
    assert flex.filled_up(q, k, v, len(packed.prefix_end))[0] is not q
    packed = random_partition(flex.padded_length(1000), flex.padded_prefix(150), seed=3)
    q, k, v, _ = random_qkv(packed)
    filled = flex.filled_up(q, k, v, len(packed.prefix_end))
    assert all(a is b for a, b in zip(filled, (q, k, v), strict=True))


@pytest.mark.slow
def test_mixed_lengths_are_one_graph_with_and_one_without_prefix():
    # Guards and sizes only: the graph runs eagerly (dense), which the CPU can do, forward only.
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    compiled = torch.compile(flex_attention, dynamic=True, backend="eager", fullgraph=True)
    graphs = []
    mixed = [(n, p) for p in (0, 300) for n in (900, 1500, 1030)]
    mixed += [(1500, 1), (1030, 900), (1300, 0), (900, 500)]
    for num_tokens, num_prefix in mixed:
        packed = random_partition(
            flex.padded_length(num_tokens), flex.padded_prefix(num_prefix), seed=num_tokens
        )
        q, k, v, _ = (x.detach().float() for x in random_qkv(packed, heads=2, kv_heads=1, dim=4))
        out = eager(packed, q, k, v, compiled)
        assert relative(out, REFERENCE.attend(q, k, v, REFERENCE.plan(packed))) < 1e-6
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[2] - graphs[0] <= 1, graphs  # the first size may equal a head count by chance
    assert graphs[-1] - graphs[2] <= 2, graphs
    assert len(set(graphs[4:])) == 1, graphs


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
