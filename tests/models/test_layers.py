"""Compiled layers are the transformers layers: values, gradients, names, and one graph for all."""

from __future__ import annotations

import copy

import pytest
import torch
from torch._dynamo.utils import counters
from torch.nn import functional as F

from tests.training.test_partitioned import gradients, loss_of, scenario
from vla_nav.attention.registry import backend
from vla_nav.errors import UserError
from vla_nav.models import layers
from vla_nav.models.backbone import (
    DECODERS,
    BackboneConfig,
    build_backbone,
    disable_checkpointing,
    enable_checkpointing,
)
from vla_nav.models.layers import compile_layers
from vla_nav.models.prompt import Layout
from vla_nav.training.partitioned import partitioned_backward, plan_partitions
from vla_nav.tree import pack

OPTIONS = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
}
MODES = ("layers", "joined")
EXACT = 1e-13  # float64: the order of sums is all that differs


def causal(q, k, v, layer, scale):
    groups = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(groups, dim=2).transpose(1, 2) for x in (k, v))
    out = F.scaled_dot_product_attention(q.transpose(1, 2), k, v, is_causal=True, scale=scale)
    return out.transpose(1, 2)


def pair(mode, *, family="qwen3", dtype=torch.float64, **options):
    """The transformers backbone and the compiled one with the same weights, in training mode."""
    made = []
    for compile_mode in (False, mode):
        config = BackboneConfig(
            family=family, options={**OPTIONS, **options}, norms="fused", compile=compile_mode
        )
        backbone = build_backbone(config, num_text=11).to(dtype).train()
        for name, parameter in backbone.named_parameters():
            if "norm" in name or "bias" in name:
                torch.manual_seed(len(name))
                torch.nn.init.normal_(parameter, mean=float("norm" in name), std=0.5)
        made.append(backbone)
    return made


def run(backbone, num_tokens, *, autocast=False):
    """Hidden states and the gradients of a weighted sum of them."""
    dtype = next(backbone.parameters()).dtype
    generator = torch.Generator().manual_seed(num_tokens)
    draw = torch.randn(2, 1, num_tokens, 24, dtype=torch.float64, generator=generator).to(dtype)
    embeddings = draw[0].clone().requires_grad_()
    backbone.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        hidden = backbone(embeddings, torch.arange(num_tokens)[None], causal)
        (hidden * draw[1]).sum().backward()
    named = {name: p.grad for name, p in backbone.named_parameters() if p.grad is not None}
    return hidden.detach(), {"embeddings": embeddings.grad, **named}


def relative(a, b):
    return float((a.double() - b.double()).norm() / b.double().norm())


def require_equal(found, expected, tolerance=EXACT):
    assert relative(found[0], expected[0]) < tolerance
    assert found[1].keys() == expected[1].keys()
    for name, gradient in expected[1].items():
        assert relative(found[1][name], gradient) < tolerance, name


@pytest.fixture
def eager():
    """The halves as they are written, uncompiled: for what does not depend on the compiler."""
    with torch.compiler.set_stance("force_eager"):
        yield


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("family", DECODERS)
def test_values_and_gradients_are_those_of_the_transformers_layers(eager, family, mode):
    stock, ours = pair(mode, family=family)
    for num_tokens in (1, 2, 63):
        require_equal(run(ours, num_tokens), run(stock, num_tokens))


@pytest.mark.parametrize("mode", MODES)
def test_biases_and_as_many_key_heads_as_query_heads(eager, mode):
    options = {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4}
    stock, ours = pair(mode, family="llama", **options)
    assert any("bias" in name for name, _ in stock.named_parameters())
    require_equal(run(ours, 17), run(stock, 17))


def test_compiled_over_mixed_lengths_there_is_one_graph_per_half():
    stock, ours = pair("joined")
    enable_checkpointing(ours.model)
    before = counters["stats"]["unique_graphs"]
    require_equal(run(ours, 9), run(stock, 9))
    warm = counters["stats"]["unique_graphs"]
    assert warm == before + 2, "both halves, for all layers and their recomputation"
    for num_tokens in (130, 24, 2, 97, 8, 40):
        require_equal(run(ours, num_tokens), run(stock, num_tokens))
    assert counters["stats"]["unique_graphs"] == warm
    disable_checkpointing(ours.model)
    require_equal(run(ours, 63), run(stock, 63))
    assert counters["stats"]["unique_graphs"] == warm


@pytest.mark.parametrize("is_joined", [False, True])
@pytest.mark.parametrize("mode", ["recompute", "keep"])
def test_partitions_through_compiled_layers_equal_the_plain_model(eager, mode, is_joined):
    model, trees, frames = scenario(Layout("full", "hidden"))
    packed, attention = pack(trees), backend("sdpa")
    plain = copy.deepcopy(model)
    loss_of(plain(packed, frames, attention.plan(packed)), packed).backward()
    compile_layers(model.backbone.model, is_joined=is_joined)
    enable_checkpointing(model.backbone.model)
    model.train()
    plans = plan_partitions(trees, attention, capacity=-(-packed.num_tokens // 4), mode=mode)
    partitioned_backward(model, plans, frames, loss_of)
    found = gradients(model)
    for name, gradient in gradients(plain).items():
        if gradient.norm() > 1e-9:
            assert relative(found[name], gradient) < 1e-11, name


def test_partitions_and_packs_of_many_lengths_compile_nothing_after_the_first_step(monkeypatch):
    """With the compiler's front end, which alone decides what is compiled anew."""
    halves = tuple(
        torch.compile(half, dynamic=False, fullgraph=True, backend="aot_eager")
        for half in (layers.before_attention, layers.after_attention)
    )
    monkeypatch.setattr(layers, "_compiled", lambda: halves)
    model, trees, frames = scenario(Layout("pooled", "visible"))
    compile_layers(model.backbone.model, is_joined=False)
    model.train()
    attention = backend("sdpa")

    def step(capacity, some):
        start = sum(tree.num_frames for tree in trees[: some.start])
        shown = frames[start : start + sum(tree.num_frames for tree in trees[some])]
        plans = plan_partitions(trees[some], attention, capacity=capacity)
        partitioned_backward(model, plans, shown, loss_of)

    step(70, slice(0, 3))
    warm = counters["stats"]["unique_graphs"]
    for capacity, some in ((45, slice(0, 2)), (500, slice(0, 3)), (31, slice(2, 3))):
        step(capacity, some)
    assert counters["stats"]["unique_graphs"] == warm


@pytest.mark.parametrize("mode", MODES)
def test_mixed_precision_is_as_near_to_float32_as_the_transformers_layers(eager, mode):
    stock, ours = pair(mode, dtype=torch.float32)
    exact = run(stock, 63)
    theirs, found = (run(x, 63, autocast=True) for x in (stock, ours))
    assert found[0].dtype == theirs[0].dtype == torch.float32, "the residual stream stays wide"
    # Both round activations to 2^-9; that is noise of the same size, seldom of the same sign.
    assert relative(found[0], exact[0]) < 1.3 * relative(theirs[0], exact[0])
    for name, gradient in exact[1].items():
        assert found[1][name].dtype == torch.float32
        off = relative(found[1][name], gradient)
        assert off < 1.5 * relative(theirs[1][name], gradient) + 2**-9, name


def test_names_and_copies_are_those_of_the_transformers_model():
    stock, ours = pair("joined")
    assert list(ours.state_dict()) == list(stock.state_dict())
    assert [n for n, _ in ours.named_parameters()] == [n for n, _ in stock.named_parameters()]
    assert ours.architecture() == stock.architecture()
    with torch.compiler.set_stance("force_eager"):
        before = run(ours, 5)
        twin = copy.deepcopy(ours)  # what was kept for the step stays behind
        require_equal(run(twin, 5), before, 1e-15)


def test_evaluation_and_other_attentions_run_the_transformers_layer():
    stock, ours = pair("joined")
    embeddings, positions = torch.randn(2, 7, 24).double(), torch.arange(7).expand(2, 7)
    with torch.no_grad():
        expected = stock.eval()(embeddings, positions, causal)
        assert torch.equal(ours.eval()(embeddings, positions, causal), expected)
    ours.train().model.set_attn_implementation("sdpa")
    found = ours.model(inputs_embeds=embeddings, use_cache=False).last_hidden_state
    assert relative(found.detach(), expected) < EXACT


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"compile": "layer", "norms": "fused"}, r"models\.backbone\.compile.*did you mean"),
        ({"compile": True, "norms": "fused"}, r"compile 'true'; allowed: false, joined, layers"),
        ({"compile": "layers"}, "set it to fused"),
    ],
)
def test_bad_configurations_are_refused(keywords, message):
    with pytest.raises(UserError, match=message):
        BackboneConfig(**keywords)


def test_another_activation_is_refused():
    config = BackboneConfig(
        options={**OPTIONS, "hidden_act": "gelu"}, norms="fused", compile="layers"
    )
    with pytest.raises(UserError, match="hidden_act=gelu"):
        build_backbone(config, num_text=11)


def test_a_compiler_that_is_missing_is_one_line():
    def half(x):
        raise RuntimeError(f"InvalidCxxCompiler: No working C++ compiler found in {x}")

    with pytest.raises(UserError, match=r"install g\+\+.*or set models\.backbone\.compile=false"):
        layers._called(half, "cxx")

    def other(x):
        raise RuntimeError(f"shapes of {x} differ")

    with pytest.raises(RuntimeError, match="shapes of q differ"):
        layers._called(other, "q")
