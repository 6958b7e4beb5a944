"""Block lists against the dense mask, block by block."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.attention.packs import caterpillar, chain, random_pack
from tests.attention.partitions import random_partition
from tests.tree.random_paths import seeds
from vla_nav.attention import dense_mask
from vla_nav.attention.blocks import block_lists, longest_row, padded_rows
from vla_nav.attention.mask import joint_end
from vla_nav.tree import pack


def rows_of(rows):
    return [
        rows.indices[a:b].tolist() for a, b in zip(rows.offsets, rows.offsets[1:], strict=False)
    ]


@given(seeds(), st.sampled_from([1, 2, 4, 16]))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_lists_are_the_live_and_full_blocks_of_the_dense_mask(seed, size):
    packed = random_pack(seed, num_trees=2)
    total = -(-len(packed.token_ids) // size) * size
    packed = random_pack(seed, num_trees=2, padding=total - len(packed.token_ids))
    mask = dense_mask(packed.subtree_end).view(total // size, size, total // size, size)
    live, full = mask.any(3).any(1), mask.all(3).all(1)
    lists = block_lists(packed.subtree_end.numpy(), block_size=size)
    own = torch.eye(len(live), dtype=torch.bool)  # the diagonal always goes through the mask
    partial, whole = live & (~full | own), full & ~own
    for rows, expected in (
        (lists.kv_partial, partial),
        (lists.kv_full, whole),
        (lists.q_partial, partial.T),
        (lists.q_full, whole.T),
    ):
        assert rows_of(rows) == [row.nonzero()[:, 0].tolist() for row in expected]


@given(st.integers(0, 20), st.sampled_from([1, 2, 4, 16]), st.integers(0, 70))
@settings(max_examples=25, deadline=None, derandomize=True)
def test_lists_of_a_rectangle_are_those_of_its_dense_mask(seed, size, num_prefix):
    num_prefix = -(-num_prefix // size) * size
    packed = random_partition(-(-(40 + seed % 50) // size) * size, num_prefix, seed)
    end = joint_end(packed.prefix_end, packed.subtree_end)
    rows, keys = len(packed.subtree_end) // size, len(end) // size
    mask = dense_mask(packed.subtree_end, packed.prefix_end).view(rows, size, keys, size)
    live, full = mask.any(3).any(1), mask.all(3).all(1)  # (Jq, Jk)
    lists = block_lists(end.numpy(), num_prefix=num_prefix, block_size=size)
    own = torch.zeros_like(live)
    own[:, keys - rows :] = torch.eye(rows, dtype=torch.bool)
    partial, whole = live & (~full | own), full & ~own
    assert (lists.num_query_blocks, lists.num_key_blocks) == (rows, keys)
    for found, expected in (
        (lists.kv_partial, partial),
        (lists.kv_full, whole),
        (lists.q_partial, partial.T),
        (lists.q_full, whole.T),
    ):
        assert rows_of(found) == [row.nonzero()[:, 0].tolist() for row in expected]


def test_dense_mask_as_drawn():
    end = torch.tensor([5, 4, 4, 4, 5], dtype=torch.int32)
    expected = ["#....", "##...", "###..", "####.", "#...#"]
    drawn = ["".join("#" if cell else "." for cell in row) for row in dense_mask(end)]
    assert drawn == expected


def test_padded_rows_keep_counts_and_indices():
    packed = pack([caterpillar(20, "full", "hidden"), chain(50)])
    total = -(-len(packed.token_ids) // 16) * 16
    packed = pack([caterpillar(20, "full", "hidden"), chain(50)], pad_to=total)
    lists = block_lists(packed.subtree_end.numpy(), block_size=16)
    for rows in (lists.kv_partial, lists.kv_full, lists.q_partial, lists.q_full):
        counts, matrix = padded_rows(rows, longest_row(rows) + 2)
        assert counts.dtype == matrix.dtype == np.int32
        assert [m[:c].tolist() for c, m in zip(counts, matrix, strict=True)] == rows_of(rows)
        assert all((m[c:] == 0).all() for c, m in zip(counts, matrix, strict=True))


def test_heaviest_first_keeps_blocks_dense():
    # 60 steps, 17 history and 204 leaf tokens: the design counts 334 partial blocks of density
    # 0.74 for this order (3465 for the order of time).
    from tests.tree.episodes import token_episode
    from vla_nav.tree import Layout, PrefixTree, paths_of

    episode = token_episode(60, root=128, full=203, pooled=17, follow=1.0)
    tree = PrefixTree.from_paths(paths_of(episode, Layout("pooled", "hidden")))
    total = -(-tree.num_tokens // 128) * 128
    lists = block_lists(pack([tree], pad_to=total).subtree_end.numpy())
    num_partial, num_full = len(lists.kv_partial.indices), len(lists.kv_full.indices)
    density = (tree.position_ids + 1).sum() / ((num_partial + num_full) * 128**2)
    assert num_partial < 400
    assert density > 0.7


def test_ragged_lengths_are_refused():
    with pytest.raises(ValueError, match="a multiple of 128 tokens, got 5"):
        block_lists(np.arange(1, 6, dtype=np.int32))
    with pytest.raises(ValueError, match="got 4 behind a prefix of 3"):
        block_lists(np.full(7, 7, dtype=np.int32), num_prefix=3, block_size=2)


def test_lists_of_a_pack_take_linear_time():
    # 16k and 64k tokens of a caterpillar whose live blocks grow as its tokens do (a window): four
    # times the tokens may not take sixteen times the time. Best of five: other work disturbs it.
    def seconds(num_blocks):
        end = np.arange(1, 128 * num_blocks + 1, dtype=np.int32)
        end = np.minimum(end + 2048, len(end)).astype(np.int32)
        times = []
        for _ in range(5):
            start = time.perf_counter()
            block_lists(end)
            times.append(time.perf_counter() - start)
        return min(times)

    assert seconds(512) < 10 * seconds(128) + 1e-3
