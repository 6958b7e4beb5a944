"""Hybrids as backbones: files and names, what is refused, norms, costs, and that nothing waits."""

from __future__ import annotations

import json

import pytest
import torch
from flat_hybrids import OPTIONS, tiny_hybrid
from model_scenario import ENCODER, episode, small
from torch.nn import functional as F
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from tests.verification.random_samples import in_dtype, sample
from tests.verification.steps import trees_of
from vla_nav.actions import WaypointSpace
from vla_nav.attention.registry import backend
from vla_nav.errors import UserError
from vla_nav.models.assembly import ModelConfig
from vla_nav.models.backbone import BackboneConfig, build_backbone
from vla_nav.models.checkpoint import load_policy, save_policy
from vla_nav.models.hybrid import SequenceRouting, mixers_of, recurrent_flops
from vla_nav.models.replay import training_logits
from vla_nav.training.partitioned import partitioned_backward, plan_partitions
from vla_nav.tree import pack
from vla_nav.verification.leakage import check_leakage
from vla_nav.verification.shrink import shrink
from vla_nav.verification.vla_forwards import packed_forward

in_both_families = pytest.mark.parametrize("family", OPTIONS)


def causal(q, k, v, layer, scale):
    groups = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(groups, dim=2).transpose(1, 2) for x in (k, v))
    out = F.scaled_dot_product_attention(q.transpose(1, 2), k, v, is_causal=True, scale=scale)
    return out.transpose(1, 2)


@in_both_families
def test_a_local_folder_loads_and_its_names_stay(family, tmp_path):
    config = AutoConfig.for_model(family, **OPTIONS[family], vocab_size=50, use_cache=False)
    config.pad_token_id = None
    stock = AutoModelForCausalLM.from_config(config).eval()
    stock.save_pretrained(tmp_path)
    backbone = build_backbone(BackboneConfig("folder", path=str(tmp_path)), num_text=50)
    assert len(mixers_of(backbone.model)) == 2 == backbone.num_recurrent
    assert backbone.model.state_dict().keys() == stock.model.state_dict().keys()
    ids = torch.arange(9)[None]
    with torch.no_grad():
        hidden = backbone(backbone.text_embedding(ids), ids, causal, SequenceRouting())
        expected = stock.model(ids).last_hidden_state
    assert (hidden - expected).norm() < 1e-5 * expected.norm()
    again = AutoModel.from_pretrained(tmp_path)  # adopting has changed no file and no class
    again.load_state_dict(backbone.model.state_dict())


@in_both_families
def test_a_policy_bundle_comes_back(family, tmp_path):
    space = WaypointSpace()
    assembled, config = small(space, family=family, attention="sdpa")
    found, source = episode(3, space, num_steps=3)
    before = training_logits(assembled.model, assembled.prompt, found, source)
    save_policy(tmp_path, assembled, config, encoder=ENCODER, data={})
    text = (tmp_path / "policy.json").read_text()
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    loaded = load_policy(tmp_path)
    after = training_logits(loaded.model, loaded.prompt, found, source)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        (
            "qwen3_5_text",
            {"layer_types": ["linear_attention", "sliding_attention", "full_attention"]},
            "sliding_attention",
        ),
        ("qwen3_5_text", {"linear_conv_kernel_dim": 5}, "linear_conv_kernel_dim=5"),
        ("bamba", {"mamba_d_conv": 5}, "mamba_d_conv=5"),
        ("qwen3", {"layer_types": ["linear_attention"] * 3}, "linear_attention"),
        ("mamba2", {}, "unknown models.backbone.family 'mamba2'"),
    ],
)
def test_what_is_not_routed_is_refused(family, options, message):
    shape = {**OPTIONS.get(family, OPTIONS["qwen3_5_text"]), **options}
    if family == "qwen3":
        shape = {key: value for key, value in shape.items() if not key.startswith("linear_")}
    with pytest.raises(UserError, match=message) as caught:
        build_backbone(BackboneConfig(family=family, options=shape), num_text=50)
    assert "\n" not in str(caught.value)


@in_both_families
def test_compiled_layers_are_refused(family):
    config = BackboneConfig(family=family, options=OPTIONS[family], norms="fused", compile="layers")
    with pytest.raises(UserError, match=r"set models\.backbone\.compile=false"):
        build_backbone(config, num_text=50)


@in_both_families
def test_a_tree_without_routing_raises_instead_of_leaking(family):
    backbone = build_backbone(BackboneConfig(family=family, options=OPTIONS[family]), num_text=50)
    x, positions = torch.randn(1, 5, 24), torch.arange(5)[None]
    with pytest.raises(UserError, match="without `recur`"):
        backbone(x, positions, causal)


@in_both_families
def test_fused_norms_change_no_result(family):
    built = [
        build_backbone(
            BackboneConfig(family=family, options=OPTIONS[family], norms=norms), num_text=50
        )
        for norms in ("transformers", "fused")
    ]
    assert built[0].model.state_dict().keys() == built[1].model.state_dict().keys()
    for backbone in built:
        for name, parameter in backbone.named_parameters():
            if "norm" in name:
                parameter.data += 0.3 * torch.linspace(-1, 1, parameter.numel())
    x, positions = torch.randn(2, 9, 24), torch.arange(9).expand(2, 9)
    with torch.no_grad():
        one, two = (backbone(x, positions, causal, SequenceRouting()) for backbone in built)
    assert (one - two).norm() < 1e-5 * one.norm()


@in_both_families
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_token_moves_another_branch_by_a_bit(family, dtype):
    model = tiny_hybrid(family, dtype=dtype)
    forest = [sample("bushy", 5, 2), sample("single tokens", 5, 3)]
    forest = in_dtype(forest, dtype)
    findings = check_leakage(model, forest, packed_forward=packed_forward, num_probes=30)
    assert {finding.check for finding in findings} >= {"probe: other branch", "probe: descendant"}
    assert not [finding for finding in findings if not finding.is_ok]


@in_both_families
def test_autocast_leaves_states_in_float32(family):
    model = tiny_hybrid(family, dtype=torch.float32)
    forest = [sample("bushy", 5, 2)]
    packed = pack(trees_of(forest))
    frames, plan = forest[0].frames.float(), backend("sdpa").plan(packed)
    with torch.no_grad():
        exact = model(packed, frames, plan)
        with torch.autocast("cpu", torch.bfloat16):
            rounded = model(packed, frames, plan)
    drift = float((rounded.float() - exact).norm() / exact.norm())
    assert 1e-4 < drift < 0.1


@in_both_families
def test_operations_of_a_recurrence_are_those_of_its_products(family):
    model = tiny_hybrid(family).backbone.model
    if family == "bamba":  # read and write of 6 heads, states 5 x 8; conv over 48 + 2 * 2 * 5
        forward = 2 * (2 * 2 * 6 * 5 * 8 + 2 * 4 * (48 + 20))
    else:  # what a key holds, write and read of 4 heads, states 8 x 6; conv over 16 + 16 + 24
        forward = 2 * (3 * 2 * 4 * 8 * 6 + 2 * 4 * 56)
    assert recurrent_flops(model) == 3 * forward


@in_both_families
def test_a_model_shrunk_for_the_proof_keeps_both_kinds_of_layers(family):
    wide = {**OPTIONS[family], "hidden_size": 96, "intermediate_size": 200}
    wide["num_hidden_layers"] = 6
    if family == "bamba":
        wide |= {"attn_layer_indices": [4], "mamba_n_heads": 24, "mamba_d_head": 8}
    else:
        wide["layer_types"] = ["linear_attention"] * 5 + ["full_attention"]
    config = ModelConfig(backbone=BackboneConfig(family=family, options=wide))
    small_config, changes = shrink(config, max_layers=2, max_width=48)
    backbone = build_backbone(small_config.backbone, num_text=50)
    assert (backbone.num_layers, backbone.num_recurrent) == (2, 1)
    assert backbone.hidden_size <= 48
    assert any("num_hidden_layers 6 -> 2" in change for change in changes)


@in_both_families
def test_a_step_reads_no_value_of_the_device(family):
    """On torch's meta device whoever asks for a value fails."""
    model = tiny_hybrid(family, dtype=torch.float32).to("meta")
    forest = [sample("bushy", 4, 2), sample("unary", 3, 3)]
    trees = trees_of(forest)
    packed = pack(trees)
    frames = torch.cat([one.frames for one in forest]).float().to("meta")
    plan = backend("sdpa").plan(packed).to("meta")
    model(packed.to("meta"), frames, plan).sum().backward()
    for mode in ("recompute", "keep"):
        plans = plan_partitions(trees, backend("sdpa"), capacity=25, mode=mode).to("meta")
        partitioned_backward(model, plans, frames, lambda found, _: found.dense().sum())
    assert all(parameter.grad is not None for parameter in model.backbone.model.layers.parameters())
