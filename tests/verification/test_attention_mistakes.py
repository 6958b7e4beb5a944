"""Mistakes of public attention code, put in by hand: each must be found, the right way must pass.

dense mask first, then blocks          N x N memory                 found by watching sizes
mask function reading past the end     garbage or NaN in backward   found by evaluating it there
rows that see nothing, NaN padding     NaN in outputs and gradients
a compilation for every length         seconds per step             found by counting graphs
grouped heads paired wrongly           wrong logits or gradients    found against flat paths
silent fallback                        leaks, or N x N memory
"""

from __future__ import annotations

import tracemalloc
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import pad, scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from tests.attention.packs import padded_to, random_qkv
from tests.tree.episodes import token_episode
from tests.verification.tiny_models import (
    TinyVLA,
    flat_copy,
    flat_forward,
    layout_sample,
    packed_forward,
    with_float64_norms,
)
from vla_nav.attention import backend, dense_mask, flex
from vla_nav.errors import UserError
from vla_nav.tree import Layout, PackedTree, PrefixTree, pack, paths_of
from vla_nav.verification import Bounds, check_equivalence, check_leakage

SIZES = (1, 63, 97, 130)


# --- memory ------------------------------------------------------------------------------------


class _Largest(TorchDispatchMode):
    """Remembers the largest tensor that any operation makes, backward included."""

    num_bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(value, torch.Tensor):
                self.num_bytes = max(self.num_bytes, value.untyped_storage().nbytes())
        return out


@contextmanager
def memory_below(limit_bytes: int):
    """Fail where torch makes one tensor, or numpy and Python hold, more than `limit_bytes`."""
    tracemalloc.start()
    try:
        with _Largest() as largest:
            yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert max(peak, largest.num_bytes) <= limit_bytes, (peak, largest.num_bytes)


def long_tree(num_steps: int, history: str, *, full: int) -> PrefixTree:
    episode = token_episode(num_steps, full=full)
    return PrefixTree.from_paths(paths_of(episode, Layout(history, "hidden")))


def sizes_in(plan) -> int:
    """Bytes of all tensors of a plan."""
    values = [plan]
    total = 0
    while values:
        value = values.pop()
        if isinstance(value, torch.Tensor):
            total += value.nbytes
        elif isinstance(value, (tuple, list)):
            values += value
        elif hasattr(value, "__dataclass_fields__"):
            values += [getattr(value, name) for name in value.__dataclass_fields__]
    return total


@pytest.mark.parametrize("history", ["full", "pooled"])
def test_packing_and_planning_32k_tokens_stay_far_below_n_times_n(history):
    num_steps, full = (570, 56) if history == "full" else (530, 58)
    with memory_below(32_768**2 // 16):
        tree = long_tree(num_steps, history, full=full)
        packed = pack([tree])
        plans = {name: backend(name).plan(packed) for name in ("sdpa", "flex")}
    assert tree.num_tokens >= 32_768
    # One integer per token, and four lists of (N / 128) x (N / 128) blocks at most.
    assert sizes_in(plans["flex"]) < 32_768**2 // 512
    # Rows x keys of the leaves alone: 128 rows at a time against their ancestors.
    assert sizes_in(plans["sdpa"]) < 32_768**2 // 16


def test_attention_itself_stays_below_n_times_n_and_the_definition_does_not():
    packed = pack([long_tree(70, "full", full=56)])
    size = len(packed.token_ids)
    assert size > 4000
    limit = 4 * size**2 // 3  # float32 scores, and the fallback of a fused kernel, are 4 N^2

    def step(name):
        q, k, v, grad = (x.detach().float() for x in random_qkv(packed, heads=1, kv_heads=1))
        inputs = [x.requires_grad_() for x in (q, k, v)]
        with memory_below(limit):
            found = backend(name)
            out = found.attend(*inputs, found.plan(packed))
            torch.autograd.grad(out, inputs, grad)

    step("sdpa")
    with pytest.raises(AssertionError):
        step("reference")


def test_a_dense_mask_that_is_made_into_blocks_is_found():
    packed = pack([long_tree(70, "full", full=56)], pad_to=4608)
    blocks = 4608 // 128

    def converted():  # the mistake
        dense = dense_mask(packed.subtree_end).view(blocks, 128, blocks, 128)
        return dense.any(3).any(1), dense.all(3).all(1)

    with memory_below(4608**2 // 4):
        plan = flex.plan(packed)
    with pytest.raises(AssertionError), memory_below(4608**2 // 4):
        converted()
    live, full = converted()
    counts = plan.kv_num_blocks + plan.full_kv_num_blocks  # the lists say the same
    assert counts[0, 0].tolist() == live.sum(1).tolist()
    assert (plan.full_kv_num_blocks[0, 0] <= full.sum(1)).all()


# --- the end of the sequence -------------------------------------------------------------------


def evaluated(plan) -> torch.Tensor:
    """The plan's mask function over every row and key that a kernel's blocks cover."""
    zero = torch.zeros((), dtype=torch.int64)
    num_keys = plan.q_num_blocks.shape[-1] * flex.BLOCK_SIZE
    rows, keys = torch.arange(plan.num_rows), torch.arange(num_keys)
    return plan.block_mask.mask_mod(zero, zero, rows[:, None], keys[None, :])


@pytest.mark.parametrize("size", SIZES)
def test_a_mask_function_that_reads_past_the_end_is_found(size):
    packed = padded_to(size, seed=size)
    plan = flex.plan(packed)
    mask = evaluated(plan)
    end = packed.subtree_end.tolist()
    for q in range(size):
        assert mask[q].nonzero()[:, 0].tolist() == [k for k in range(q + 1) if q < end[k]]
    with pytest.raises(IndexError):
        evaluated(replace(plan, end=packed.subtree_end))  # the mistake: as long as the pack


@pytest.mark.parametrize("size", SIZES)
def test_rows_that_see_nothing_and_padding_that_is_not_zero_are_found(size):
    packed = padded_to(size, seed=size)
    plan = flex.plan(packed)
    assert finite(packed, plan, evaluated(plan), flex.filled_up)
    # The mistakes: padding tokens that not even themselves see; memory as torch.empty leaves it.
    blind = plan.end.clone()
    blind[size:] = 0
    assert not finite(packed, plan, evaluated(replace(plan, end=blind)), flex.filled_up)

    def uninitialised(q, k, v, _):
        return [pad(x, (0, 0, 0, 0, 0, -size % 128), value=torch.nan) for x in (q, k, v)]

    assert not finite(packed, plan, evaluated(plan), uninitialised)


def finite(packed: PackedTree, plan, mask: torch.Tensor, filled_up) -> bool:
    """Whether a kernel that evaluates `mask` on whole blocks gives finite outputs and gradients."""
    q, k, v, grad = random_qkv(packed, heads=2, kv_heads=2)
    filled = [x.transpose(1, 2) for x in filled_up(q, k, v, plan.num_prefix)]
    scores = filled[0] @ filled[1].transpose(-1, -2)
    out = scores.masked_fill(~mask, -torch.inf).softmax(-1) @ filled[2]
    of_rows = pad(grad, (0, 0, 0, 0, 0, plan.num_rows - grad.shape[1]))
    gradients = torch.autograd.grad(out.transpose(1, 2), (q, k, v), of_rows)
    return bool(all(x.isfinite().all() for x in (out, *gradients)))


# --- compilation -------------------------------------------------------------------------------


@pytest.mark.gpu
def test_gpu_a_compilation_for_every_length_is_found():
    from torch._dynamo.utils import counters
    from torch.nn.attention.flex_attention import flex_attention

    def graphs(attend, lengths):
        """Graphs that the lengths behind the first three add."""
        seen = []
        for num_steps in lengths:
            tree = long_tree(num_steps, "full", full=9)
            packed = pack([tree], pad_to=flex.padded_length(tree.num_tokens))
            q, k, v, grad = (
                x.detach().to("cuda", torch.bfloat16) for x in random_qkv(packed, dim=64)
            )
            inputs = [x.requires_grad_() for x in (q, k, v)]
            out = attend(*inputs, flex.plan(packed).to("cuda"))
            torch.autograd.grad(out, inputs, grad)
            seen.append(counters["stats"]["unique_graphs"])
        return seen[-1] - seen[2]

    lengths = (90, 200, 330, 95, 150, 260, 300)
    assert graphs(flex.attend, lengths) == 0
    static = torch.compile(flex_attention, dynamic=False)  # the mistake

    def for_every_length(q, k, v, plan):
        q, k, v = (x.transpose(1, 2) for x in flex.filled_up(q, k, v, plan.num_prefix))
        out = static(q, k, v, block_mask=plan.block_mask, enable_gqa=True)
        return out.transpose(1, 2)[:, : plan.num_tokens]

    assert graphs(for_every_length, lengths) > 0


# --- against flat paths ------------------------------------------------------------------------


@pytest.fixture(name="samples", scope="module")
def two_episodes():
    return [
        layout_sample("full", "hidden", num_steps=4, seed=1),
        layout_sample("pooled", "visible", num_steps=3, seed=2),
    ]


def violated(samples, attend=None, *, plan_of=None, name="sdpa"):
    """Names of the checks that fail with `attend`, at bounds a thousand times too wide."""
    model = with_float64_norms(TinyVLA(num_layers=1))
    forward = packed_forward(name, plan_of=plan_of, attend=attend)
    findings = check_equivalence(
        model,
        samples,
        packed_forward=forward,
        flat_forward=flat_forward,
        flat_model=flat_copy(model),
        bounds=Bounds(logits=1e-3, loss=1e-3, gradients=1e-3, parameters=1e-6),
    )
    findings += check_leakage(model, samples, packed_forward=forward)
    return {finding.check for finding in findings if not finding.is_ok}


def test_query_heads_paired_with_the_wrong_keys_are_found(samples):
    sdpa = backend("sdpa")

    def tiled(q, k, v, plan, scale):
        # The mistake: heads k0 k1 k0 k1 where k0 k0 k1 k1 is meant.
        k, v = (x.repeat(1, 1, q.shape[2] // x.shape[2], 1) for x in (k, v))
        return sdpa.attend(q, k, v, plan, scale)

    assert violated(samples) == set()
    assert {"logits at every target", "gradients"} <= violated(samples, tiled)


def test_key_gradients_of_one_head_of_a_group_are_found(samples):
    sdpa = backend("sdpa")

    def first_head_only(q, k, v, plan, scale):
        # The mistake: the backward of a group writes one head's gradient instead of their sum.
        k, v = (
            torch.stack([x, x.detach()], dim=3).flatten(2, 3) if x.shape[2] < q.shape[2] else x
            for x in (k, v)
        )
        return sdpa.attend(q, k, v, plan, scale)

    found = violated(samples, first_head_only)
    assert "gradients" in found
    assert "logits at every target" not in found  # right forward, wrong backward


def test_a_silent_fallback_to_leaking_attention_is_found(samples):
    def fallback(q, k, v, plan, scale):
        try:
            return flex.attend(q, k, v, plan, scale)
        except UserError:  # the mistake: go on with something else
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            out = scaled_dot_product_attention(
                q, k, v, is_causal=True, scale=scale, enable_gqa=True
            )
            return out.transpose(1, 2)

    found = violated(samples, fallback, plan_of=flex.plan)
    assert {"logits at every target", "gradients", "probe: other branch"} <= found


def test_no_backend_falls_back():
    packed = pack([long_tree(3, "full", full=4)])
    q, k, v, _ = random_qkv(packed)
    with pytest.raises(UserError, match="use attention=sdpa"):
        flex.attend(q, k, v, flex.plan(packed))
    with pytest.raises(UserError, match="use attention=sdpa"):
        backend("flex", device="cpu")
    for name in ("sdpa", "reference"):  # a plan of another pack is not stretched either
        found = backend(name)
        with pytest.raises(ValueError, match="the plan is for"):
            found.attend(q[:, 1:], k[:, 1:], v[:, 1:], found.plan(packed))
