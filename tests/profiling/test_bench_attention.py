"""What the attention benchmark checks and counts, and what the stress of backwards finds."""

import json
import time
from dataclasses import replace

import pytest
import torch
from bench_scripts import load
from torch.nn.functional import scaled_dot_product_attention

from vla_nav.attention import reference, sdpa
from vla_nav.attention.mask import dense_mask
from vla_nav.errors import UserError
from vla_nav.profiling.attention_bench import AttentionBench, Heads, dense_group
from vla_nav.profiling.causal_baseline import causal_kernels
from vla_nav.profiling.stress import Launches, launch, stress_backward
from vla_nav.profiling.synthetic import Forest
from vla_nav.profiling.timing import alternate
from vla_nav.tree import pack

HEADS = Heads(4, 2, 16)
FOREST = Forest.parse("2*6x17+3@31")


def bench(repeats=1) -> AttentionBench:
    return AttentionBench(
        "sdpa", device="cpu", dtype=torch.float32, heads=HEADS, repeats=repeats, calls=1
    )


def test_the_dense_evaluation_is_the_reference():
    packed = pack(FOREST.trees(), pad_to=350)
    generator = torch.Generator().manual_seed(0)
    q, k, v, grad = (
        torch.randn(1, 350, h, 16, generator=generator, dtype=torch.float64) for h in (4, 2, 2, 4)
    )
    inputs = [x.requires_grad_() for x in (q, k, v)]
    out = reference.BACKEND.attend(*inputs, reference.BACKEND.plan(packed))
    gradients = torch.autograd.grad(out, inputs, grad)
    found = dense_group(q[0, :, :2], k[0, :, 0], v[0, :, 0], grad[0, :, :2], packed.subtree_end)
    expected = (
        out[0, :, :2],
        gradients[0][0, :, :2],
        gradients[1][0, :, :1],
        gradients[2][0, :, :1],
    )
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-5)  # float32 sums of 350


def test_a_row_counts_live_pairs_only():
    row = bench().row(FOREST, with_flat=True)
    trees = FOREST.trees()
    pairs = sum(int(dense_mask(torch.from_numpy(tree.subtree_end)).sum()) for tree in trees)
    assert (row.pairs, row.sequences) == (pairs, 2)
    length = row.causal_length
    assert abs(length * (length + 1) - pairs) <= 2 * length  # the nearest whole length
    work = 3.5 * 4 * HEADS.query * HEADS.dim / 1e9
    assert row.fwd_bwd_tflops * row.tree_ms == pytest.approx(work * pairs)
    assert row.causal_tflops * row.causal_ms == pytest.approx(work * length * (length + 1))
    assert row.causal_tflops == max(row.varlen_tflops, row.batched_tflops)
    assert row.ratio == pytest.approx(row.fwd_bwd_tflops / row.causal_tflops)
    assert row.flat_ms is not None
    assert row.flat_ms > 0
    assert 0 < row.density <= 1


def test_both_causal_kernels_compute_the_same():
    generator = torch.Generator().manual_seed(0)
    q, k, v, grad = (
        torch.randn(3 * 29, h, 16, generator=generator, dtype=torch.float64) for h in (4, 2, 2, 4)
    )
    inputs = [x.requires_grad_() for x in (q, k, v)]
    kernels = causal_kernels(*inputs, 3)
    found = [(out := work(), *torch.autograd.grad(out, inputs, grad)) for work in kernels.values()]
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)
    hidden = ~torch.ones(29, 29, dtype=torch.bool).tril()
    scores = (q[29:58, 3] @ k[29:58, 1].T / 4).masked_fill(hidden, -torch.inf)  # one of 3 x 4
    torch.testing.assert_close(found[0][0][29:58, 3], scores.softmax(-1) @ v[29:58, 1])


def test_a_backend_that_sees_too_much_is_not_timed():
    one = bench()

    def causal(q, k, v, plan, scale=None):
        heads = (x.transpose(1, 2) for x in (q, k, v))
        out = scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)
        return out.transpose(1, 2)

    one.backend = replace(one.backend, attend=causal)
    with pytest.raises(UserError, match="nothing was timed"):
        one.row(FOREST, with_flat=False)


def test_alternate_tells_long_from_short():
    short, long = alternate(
        [lambda: time.sleep(0.002), lambda: time.sleep(0.02)],
        device="cpu",
        repeats=3,
        warmups=0,
        calls=2,
    )
    assert 2 <= short < 20 <= long < 35  # of a call, not of the sample of two


def test_stress_of_a_sound_backward():
    *_, last = stress_backward(
        "sdpa", [FOREST], device="cpu", dtype=torch.float32, heads=HEADS, launches=5, every=2
    )
    assert (last.launches, last.not_finite, last.is_sound) == (5, 0, True)


@pytest.mark.parametrize(("fault", "is_nan"), [(torch.nan, True), (0.01, False)])
def test_stress_finds_one_bad_launch(fault, is_nan):
    """The fault sits in one value of one gradient of the fourth backward."""

    class Flaky(torch.autograd.Function):
        calls = 0

        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            Flaky.calls += 1
            gradient = gradient.clone()
            if Flaky.calls == 4:
                gradient[0, 40, 1, 3] += fault
            return gradient

    def attend(q, k, v, plan, scale=None):
        return sdpa.attend(q, Flaky.apply(k), v, plan, scale)

    packs = [Launches(replace(sdpa.BACKEND, attend=attend), FOREST, "cpu", torch.float32, HEADS)]
    counts = [(s.not_finite, s.is_sound) for s in launch(packs, 1e-5, launches=4, every=2)]
    # The first backward was the one that launches are compared with.
    assert counts == [(0, True), (1 if is_nan else 0, False)]


def test_the_script_writes_the_rows_that_are_named(tmp_path, capsys):
    target = tmp_path / "attention.json"
    common = ["device=cpu", "heads=4", "kv_heads=2", "head_dim=16", "commit=abc1234"]
    arguments = [*common, "backends=sdpa", "cases=6x17+3@31,8x(4+20)@9", "repeats=1"]
    assert load("benchmark_attention").main([*arguments, f"output={target}"]) == 0
    found = json.loads(target.read_text())
    names = {"tree", "backend", "fwd_bwd_tflops", "causal_tflops", "ratio", "commit"}
    assert [(row["tree"], row["commit"]) for row in found["rows"]] == [
        ("6x17+3@31", "abc1234"),
        ("8x(4+20)@9", "abc1234"),
    ]
    assert all(names <= set(row) for row in found["rows"])
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len(table) == 4
    assert len({line.count("|") for line in table}) == 1

    stressed = tmp_path / "stress.json"
    arguments = [*common, "backend=sdpa", "cases=6x17+3@31", "launches=3", f"output={stressed}"]
    assert load("stress_backward").main(arguments) == 0
    assert json.loads(stressed.read_text())["is_sound"] is True
