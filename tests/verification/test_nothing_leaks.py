"""Branches are isolated bit by bit, ancestors reach every descendant, child order is free.

    r - a - x     change x: the logits of y, of r and a, and of every other tree keep every bit
        |         change a: the logits behind x and behind y move, all of them
        y

Who sees a token is read off the flat paths: those whose beginning up to the target holds it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tree.random_paths import token_list
from tests.verification.random_samples import samples
from tests.verification.steps import relative, target_keys, trees_of
from tests.verification.tiny_models import TinyVLA, packed_forward, with_float64_norms
from vla_nav.attention import dense_mask
from vla_nav.tree import PackedTree, pack

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}


@cache
def model_of(dtype: str) -> TinyVLA:
    return TinyVLA(num_layers=2).to(DTYPES[dtype])


def probe(model, forest, rng, *, forward, num_tokens=6):
    """(unseen, seen) largest and least change over probes of tokens and frames: logits that must
    keep every bit, and logits that must move."""
    packed = pack(trees_of(forest))
    dtype = next(model.parameters()).dtype
    frames = torch.cat([sample.frames for sample in forest]).to(dtype)
    keys = target_keys(packed)
    flat = {
        (number, *token_list(path)[: i + 1])
        for number, sample in enumerate(forest)
        for path in sample.paths
        for i in path.tokens().is_supervised.nonzero()[0]
    }
    assert set(keys) == flat
    unseen, seen = [0.0], []

    def compare(after, is_seen):
        change = (after - before).abs().amax(dim=1).double()
        for value, sees in zip(change.tolist(), is_seen, strict=True):
            (seen if sees else unseen).append(value)

    with torch.no_grad():
        before = forward(model, packed, frames)
        owner = keys_of_tokens(packed)
        text = (packed.frame_index < 0).nonzero()[:, 0].tolist()
        for token in rng.sample(text, min(num_tokens, len(text))):
            ids = packed.token_ids.clone()
            ids[token] = (int(ids[token]) + rng.randrange(1, 29)) % 30
            place = owner[token]
            sees = [key[: len(place)] == place and len(key) > len(place) for key in keys]
            compare(forward(model, replace(packed, token_ids=ids), frames), sees)
        for frame in range(len(frames)):
            number = int(torch.searchsorted(packed.frame_offset, frame, right=True)) - 1
            own = frame - int(packed.frame_offset[number])
            sees = [
                key[0] == number and any(t[:2] == ("v", own) for t in key[1:-1]) for key in keys
            ]
            changed = frames.clone()
            changed[frame] = -changed[frame]
            compare(forward(model, packed, changed), sees)
        other_labels = replace(packed, target_ids=(packed.target_ids + 1) % 30)
        compare(forward(model, other_labels, frames), [False] * len(keys))
    return max(unseen), min(seen, default=1.0)


def keys_of_tokens(packed: PackedTree) -> list[tuple]:
    """The key of every token, as of a target."""
    every = torch.arange(packed.num_tokens)
    number = torch.searchsorted(packed.tree_start, every, right=True) - 1
    return target_keys(replace(packed, target_index=every, target_tree=number))


@pytest.mark.parametrize("attention", ["sdpa", "reference"])
@pytest.mark.parametrize("dtype", DTYPES)
@given(samples(), st.randoms(use_true_random=False))
@settings(max_examples=6, deadline=None, derandomize=True)
def test_only_descendants_move(attention, dtype, forest, rng):
    unseen, seen = probe(model_of(dtype), forest, rng, forward=packed_forward(attention))
    assert unseen == 0.0
    # 8 bits of bfloat16 may round a small change of a far ancestor away.
    assert seen > 0.0 or dtype == "bfloat16"


@given(samples(), st.randoms(use_true_random=False))
@settings(max_examples=6, deadline=None, derandomize=True)
def test_the_probes_find_a_leak_of_one_key(forest, rng):
    # The mistake: one token sees one token more than its path holds.
    packed = pack(trees_of(forest))
    hidden = ~dense_mask(packed.subtree_end)
    hidden &= torch.tril(torch.ones_like(hidden))
    rows = set(packed.predictor_index.tolist())
    candidates = [(q, k) for q, k in hidden.nonzero().tolist() if q in rows]
    if not candidates:
        return  # a chain: everything before is an ancestor
    query, key = rng.choice(candidates)

    def leak(q, k, v, plan, scale):
        mask = dense_mask(packed.subtree_end)
        mask[query, key] = True
        out = torch.nn.functional.scaled_dot_product_attention(
            *(x.transpose(1, 2) for x in (q, k, v)), attn_mask=mask, scale=scale, enable_gqa=True
        )
        return out.transpose(1, 2)

    forward = packed_forward("reference", attend=leak)
    unseen, _ = probe(model_of("float64"), forest, rng, forward=forward, num_tokens=99)
    assert unseen > 0.0


@given(samples(), st.randoms(use_true_random=False))
@settings(max_examples=12, deadline=None, derandomize=True)
def test_child_order_does_not_matter(forest, rng):
    model = with_float64_norms(TinyVLA(num_layers=1))
    packed = pack(trees_of(forest))
    frames = torch.cat([sample.frames for sample in forest])
    other = in_another_order(packed, rng)
    found = dict(zip(target_keys(other), packed_forward()(model, other, frames), strict=True))
    out = packed_forward()(model, packed, frames)
    for key, row in zip(target_keys(packed), out, strict=True):
        assert relative(found[key].detach(), row.detach()) < 1e-12


def in_another_order(packed: PackedTree, rng) -> PackedTree:
    """The pack in another depth-first pre-order: children shuffled, token by token.

    r a b x y   ->   r y a b x       subtree_end is found again by counting
    """
    end = packed.subtree_end.tolist()
    children: dict[int, list[int]] = {}
    for i in range(packed.num_tokens):
        parent = max((k for k in range(i) if i < end[k]), default=-1 - int(tree_of(packed, i)))
        children.setdefault(parent, []).append(i)
    order, ends = [], {}

    def walk(token):
        order.append(token)
        descend(token)
        ends[token] = len(order)

    def descend(parent):
        below = children.get(parent, [])
        rng.shuffle(below)
        for child in below:
            walk(child)

    for number in range(packed.num_trees):
        descend(-1 - number)
    place = torch.empty(len(order), dtype=torch.int64)
    place[order] = torch.arange(len(order))
    taken = {
        name: getattr(packed, name)[order]
        for name in ("token_ids", "position_ids", "frame_index", "patch_index")
    }
    return replace(
        packed,
        **taken,
        subtree_end=torch.tensor([ends[token] for token in order], dtype=torch.int32),
        target_index=place[packed.target_index],
        predictor_index=place[packed.predictor_index],
    )


def tree_of(packed: PackedTree, token: int) -> int:
    return int((packed.tree_start <= token).sum()) - 1
