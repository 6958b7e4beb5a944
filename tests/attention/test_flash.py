"""What the Hopper kernels are handed, on the CPU: spans, lists, items; and refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.attention.packs import random_pack
from vla_nav.attention import backend, dense_mask, flash
from vla_nav.attention.hopper.tables import SIGN, backward_items, forward_items, packed_rows
from vla_nav.attention.parity import parity_packs
from vla_nav.attention.whole_blocks import whole_blocks
from vla_nav.errors import UserError
from vla_nav.tree import PackedTree


def dense_lists(direction, num_columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Partial and full blocks (J, num_columns) bool that the lists name."""
    found = []
    counts, indices, *rest = (x[0, 0].numpy() for x in direction.lists)
    for count, index in ((counts, indices), tuple(rest)):
        dense = np.zeros((len(count), num_columns), dtype=bool)
        for row, (number, places) in enumerate(zip(count, index, strict=True)):
            assert len(set(places[:number].tolist())) == number
            dense[row, places[:number]] = True
        found.append(dense)
    return found[0], found[1]


def visible(plan: flash.FlashPlan) -> np.ndarray:
    """(rows, keys) bool by the kernels' comparison: signed, of numbers with their sign flipped."""
    keys = len(plan.span)
    rows = whole_blocks(plan.num_tokens)
    distance = np.arange(keys - rows, keys, dtype=np.int32)[:, None] - np.arange(
        keys, dtype=np.int32
    )
    return (distance ^ np.int32(SIGN)) < plan.span.numpy()


def packs() -> dict[str, PackedTree]:
    return {**parity_packs(), "random": random_pack(3, 12, padding=70)}


@pytest.mark.parametrize("name", list(packs()))
def test_spans_say_what_the_mask_says(name):
    packed = packs()[name]
    seen = visible(flash.plan(packed))
    num_tokens, num_prefix = len(packed.subtree_end), len(packed.prefix_end)
    first = seen.shape[1] - whole_blocks(num_tokens)
    own = slice(first - num_prefix, first + num_tokens)
    expected = dense_mask(packed.subtree_end, packed.prefix_end).numpy()
    assert np.array_equal(seen[:num_tokens, own], expected)
    # Nobody sees what fills up the prefix, and no token what fills up the rows.
    assert not seen[:, : first - num_prefix].any()
    assert not seen[:num_tokens, first + num_tokens :].any()
    assert seen.any(axis=1).all()  # a row without a key would be not a number


@pytest.mark.parametrize("is_wide", [False, True])
@pytest.mark.parametrize("name", list(packs()))
def test_lists_hold_every_live_block_and_call_full_what_is(name, is_wide):
    plan = flash.plan(packs()[name])
    seen = visible(plan)
    forward, whole, backward, keys = plan.forward, plan._whole_rows(), plan.backward, 128
    if is_wide:
        forward, whole = forward.halved_indices(), whole.halved_indices()
        backward, keys = backward.divided_rows(2), 64
    sides = [(forward, 64, False), (whole, 128, False), (backward, 64, True)]
    for direction, rows, is_transposed in [*sides, (forward.divided_rows(4), 16, False)]:
        blocks = seen.reshape(seen.shape[0] // rows, rows, seen.shape[1] // keys, keys)
        live, full = blocks.any(axis=(1, 3)), blocks.all(axis=(1, 3))
        if is_transposed:
            live, full = live.T, full.T
        listed_partial, listed_full = dense_lists(direction, live.shape[1])
        assert not (listed_partial & listed_full).any()
        assert not (live & ~(listed_partial | listed_full)).any()
        assert not (listed_full & ~full).any()
        assert np.array_equal(direction.work, (listed_partial | listed_full).sum(axis=1))
        if not is_wide and rows >= 64:  # as tight as blocks allow
            assert np.array_equal(live, listed_partial | listed_full)
            assert np.array_equal(full, listed_full)


@pytest.mark.parametrize(("heads", "key_heads"), [(4, 4), (4, 2), (8, 2), (14, 2), (64, 1)])
@pytest.mark.parametrize("is_wide", [False, True])
@pytest.mark.parametrize("name", list(packs()))
def test_bits_say_what_the_mask_says(name, is_wide, heads, key_heads):
    plan = flash.plan(packs()[name])
    seen = visible(plan)
    bits, partial_counts, partial, *_, entries = plan.tables(
        heads, key_heads, 256 if is_wide else 128
    ).tensors[:7]
    rows, keys = packed_rows(heads // key_heads), 64 if is_wide else 128
    blocks = seen.reshape(seen.shape[0] // rows, rows, seen.shape[1] // keys, keys)
    group = 128 // rows
    for tile, count in enumerate(partial_counts[0, 0].tolist()):
        for i, block in enumerate(partial[0, 0, tile, :count].tolist()):
            words = bits[entries[tile] + i].numpy().astype(np.uint32)  # (128, 4)
            for lane in range(4):
                column = np.array([8 * (b // 2) + b % 2 + 2 * lane for b in range(keys // 4)])
                shown = (words[:, lane, None] >> np.arange(keys // 4, dtype=np.uint32)) & 1
                expected = np.repeat(blocks[tile, :, block][:, column], group, axis=0)
                assert np.array_equal(shown.astype(bool), expected)


@settings(max_examples=60, deadline=None)
@given(
    work=st.lists(st.integers(1, 400), min_size=1, max_size=60),
    key_heads=st.integers(1, 4),
    group=st.integers(1, 4),
    processors=st.sampled_from([1, 8, 132]),
)
def test_every_tile_of_every_head_is_computed_once(work, key_heads, group, processors):
    work = np.array(work)
    heads = key_heads * group
    everything = {(head, tile) for head in range(heads) for tile in range(len(work))}
    split = lambda items: [(item >> 16, item & 0xFFFF) for item in items.tolist()]  # noqa: E731
    assert sorted(split(forward_items(work, heads))) == sorted(everything)
    items, slots = backward_items(work, heads, group, processors)
    done = []
    for head, tile in split(items):
        merged = slots[tile] < 0
        assert not merged or head % group == 0
        done += [(head + offset, tile) for offset in range(group if merged else 1)]
    assert sorted(done) == sorted(everything)
    used = slots[slots >= 0]
    assert np.array_equal(used, np.arange(len(used)))
    if group == 1:
        assert len(used) == len(work)
    # The longest programs come first.
    length = [work[tile] * (group if slots[tile] < 0 else 1) for _, tile in split(items)]
    assert length[0] == max(length)


def test_a_plan_of_a_forest_names_the_tiles_that_have_a_slot():
    from vla_nav.profiling.synthetic import Forest
    from vla_nav.tree import pack

    one, three = (pack(Forest.parse(text).trees()) for text in ("20x96+12", "3*20x96+12"))
    tables = flash.plan(one).tables(16, 8, 128)
    assert tables.split is None
    plan = flash.plan(three)
    items, slots = backward_items(plan.backward.work, 16, 2, 132)
    assert (slots < 0).any()
    assert (slots >= 0).any()
    assert len(items) == 16 * (slots >= 0).sum() + 8 * (slots < 0).sum()


def test_a_plan_moves_and_is_pickled_without_what_was_derived():
    import pickle

    plan = flash.plan(random_pack(5, 6))
    plan.tables(4, 2, 64)
    again = pickle.loads(pickle.dumps(plan.to("cpu")))
    assert torch.equal(again.span, plan.span)
    assert np.array_equal(again.backward.work, plan.backward.work)
    for a, b in zip(again.forward.lists, plan.forward.lists, strict=True):
        assert torch.equal(a, b)


def test_it_does_not_run_on_a_cpu_and_says_what_does():
    with pytest.raises(UserError, match="does not run on cpu"):
        backend("flash", device="cpu")
