"""The parity gate lets right backends pass and names a wrong one: faults as releases had them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from vla_nav.attention import Backend, backend, dense_mask, parity
from vla_nav.attention.parity import TENSORS, TOLERANCE, differences_on, parity_packs
from vla_nav.errors import UserError

REFERENCE = backend("reference")
SHAPE = (4, 2, 16)  # heads, key/value heads, head dim


def worst(found, *, dtype=torch.float32, shape=SHAPE):
    """The largest difference per tensor over all packs."""
    largest = dict.fromkeys(TENSORS, 0.0)
    for case, packed in parity_packs().items():
        for item in differences_on(found, case, packed, "cpu", dtype, shape):
            largest[item.tensor] = max(largest[item.tensor], item.relative)
    return largest


def faulty(*, plan=REFERENCE.plan, attend=REFERENCE.attend):
    """The reference with a fault."""
    return Backend("faulty", plan, attend, lambda n: n, ("cpu",), lambda n: n)


def hides_a_block(packed):
    """Keys 0 .. 127 of a pack lost to the rows behind 256."""
    end = packed.subtree_end.clone()
    end[:128] = end[:128].clamp_max(256)
    return REFERENCE.plan(replace(packed, subtree_end=end))


def full_where_partial(packed):
    """The mask not evaluated: plain causal attention."""
    full = torch.full_like(packed.subtree_end, len(packed.subtree_end))
    return REFERENCE.plan(replace(packed, subtree_end=full))


def all_see_the_prefix(packed):
    """Gateway keys without their ends."""
    end = torch.full_like(packed.prefix_end, len(packed.subtree_end))
    return REFERENCE.plan(replace(packed, prefix_end=end))


def one_gateway_key_too_few(packed):
    """An off-by-one at the end of the rows of the fifth gateway key."""
    end = packed.prefix_end.clone()
    end[4:5] -= 1
    return REFERENCE.plan(replace(packed, prefix_end=end))


def wrong_groups(q, k, v, plan, scale=None):
    """Query head h reads key head h mod Hkv."""
    times = q.shape[2] // k.shape[2]
    return REFERENCE.attend(q, k.repeat(1, 1, times, 1), v.repeat(1, 1, times, 1), plan, scale)


def no_gradient_of_the_prefix(q, k, v, plan, scale=None):
    """Gateway keys and values detached."""
    k, v = (
        torch.cat([x[:, : plan.num_prefix].detach(), x[:, plan.num_prefix :]], dim=1)
        for x in (k, v)
    )
    return REFERENCE.attend(q, k, v, plan, scale)


def not_a_number_in_one_row(q, k, v, plan, scale=None):
    """A row of an output that nobody has written."""
    out = REFERENCE.attend(q, k, v, plan, scale).clone()
    out[:, -1] = torch.nan
    return out


def test_packs_are_what_they_are_called():
    packs = parity_packs()
    for packed in packs.values():
        assert 256 < len(packed.subtree_end) < 384
    keys = {
        name: dense_mask(packed.subtree_end, packed.prefix_end).sum(dim=1)
        for name, packed in packs.items()
    }
    assert torch.equal(keys["chain"], torch.arange(1, 260))
    assert keys["little attended"].max() == 4
    assert packs["forest"].num_trees == 6
    assert packs["forest"].num_tokens < 383
    ends = packs["gateway keys"].prefix_end
    assert len(ends) == 155
    assert ends[:18].tolist() == [276] * 18
    assert ends[149:].tolist() == [23, 0, 0, 0, 0, 0]
    assert (ends.diff() <= 0).all()
    few = packs["few gateway keys"]
    assert keys["few gateway keys"][61:].max() == 1 + 4
    assert keys["few gateway keys"][:61].min() == 131 + 1
    assert len(few.prefix_end) == 131


@pytest.mark.parametrize("name", ["reference", "sdpa"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_right_backends_pass_with_room(name, dtype):
    found = parity.require_parity(
        name, "cpu", dtype=dtype, num_heads=4, num_kv_heads=2, head_dim=64
    )
    assert {item.case for item in found.differences} == set(parity_packs())
    assert found.differences[0].relative < TOLERANCE[dtype] / 2
    # A tolerance of rounding only: no dtype passes at the precision of a worse one.
    if dtype is torch.bfloat16:
        assert found.differences[0].relative > TOLERANCE[dtype] / 50


@pytest.mark.parametrize(
    ("found", "tensors"),
    [
        (faulty(plan=hides_a_block), TENSORS),
        (faulty(plan=full_where_partial), TENSORS),
        (faulty(plan=all_see_the_prefix), TENSORS),
        (faulty(plan=one_gateway_key_too_few), ("out",)),
        (faulty(attend=wrong_groups), TENSORS),
        (faulty(attend=no_gradient_of_the_prefix), ("dk", "dv")),
        (faulty(attend=not_a_number_in_one_row), ("out",)),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_faults_are_beyond_the_tolerance_of_bfloat16(found, tensors):
    largest = worst(found)
    assert all(not largest[name] <= TOLERANCE[torch.bfloat16] for name in tensors), largest


def test_a_wrong_backend_is_refused_with_versions_number_and_remedy(monkeypatch):
    wrong = faulty(attend=wrong_groups)
    monkeypatch.setattr(parity, "backend", lambda name, device: wrong)
    with pytest.raises(UserError) as caught:
        parity.require_parity(
            "wrong_groups", "cpu", dtype=torch.float32, num_heads=4, num_kv_heads=2, head_dim=8
        )
    message = str(caught.value)
    assert "\n" not in message
    assert f"torch {torch.__version__}, triton " in message
    assert "'wrong_groups' is wrong on cpu in float32 with 4 heads, 2 key/value heads" in message
    assert "allowed 0.005; use another torch release or attention=sdpa" in message
    # A failure is no result: the right one passes afterwards.
    monkeypatch.setattr(parity, "backend", lambda name, device: REFERENCE)
    parity.require_parity(
        "wrong_groups", "cpu", dtype=torch.float32, num_heads=4, num_kv_heads=2, head_dim=8
    )


def test_one_run_per_combination_and_process():
    shape = {"dtype": torch.float32, "num_heads": 2, "num_kv_heads": 1, "head_dim": 8}
    first = parity.require_parity("sdpa", "cpu", **shape)
    assert parity.require_parity("sdpa", torch.device("cpu"), **shape) is first
    assert parity.require_parity("sdpa", "cpu", **(shape | {"head_dim": 16})) is not first


def test_inference_callers_get_gradients_too():
    with torch.inference_mode():
        found = parity.require_parity(
            "sdpa", "cpu", dtype=torch.float32, num_heads=1, num_kv_heads=1, head_dim=8
        )
    assert found.differences[0].relative < 1e-4


def test_what_cannot_run_is_refused():
    shape = {"num_heads": 2, "num_kv_heads": 1, "head_dim": 8}
    with pytest.raises(UserError, match=r"'flex' does not run on cpu .* use attention=sdpa"):
        parity.require_parity("flex", "cpu", dtype=torch.float32, **shape)
    with pytest.raises(UserError, match=r"trains in float64, .*, got int8"):
        parity.require_parity("sdpa", "cpu", dtype=torch.int8, **shape)
