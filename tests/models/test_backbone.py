"""Backbones: families, seeds, local folders, and what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForCausalLM

from vla_nav.errors import UserError
from vla_nav.models.backbone import (
    ATTENTION_NAME,
    DECODERS,
    BackboneConfig,
    build_backbone,
    check_architecture,
)

OPTIONS = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
}


def causal(q: Tensor, k: Tensor, v: Tensor, layer: int, scale: float) -> Tensor:
    groups = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(groups, dim=2).transpose(1, 2) for x in (k, v))
    out = F.scaled_dot_product_attention(q.transpose(1, 2), k, v, is_causal=True, scale=scale)
    return out.transpose(1, 2)


@pytest.mark.parametrize("family", DECODERS)
def test_attention_is_handed_every_layer_in_the_documented_shapes(family):
    backbone = build_backbone(BackboneConfig(family=family, options=OPTIONS), num_text=50)
    seen = []

    def attend(q, k, v, layer, scale):
        seen.append((tuple(q.shape), tuple(k.shape), tuple(v.shape), layer, scale))
        return causal(q, k, v, layer, scale)

    hidden = backbone(torch.randn(3, 7, 32), torch.arange(7).expand(3, 7), attend)
    assert hidden.shape == (3, 7, 32)
    shapes = (3, 7, 4, 8), (3, 7, 2, 8), (3, 7, 2, 8)
    assert seen == [(*shapes, 0, 8**-0.5), (*shapes, 1, 8**-0.5)]


@pytest.mark.parametrize("family", DECODERS)
def test_positions_that_restart_do_not_make_transformers_guess_packed_sequences(family):
    """With stock attention the same call would isolate the two halves without a word."""
    backbone = build_backbone(BackboneConfig(family=family, options=OPTIONS), num_text=50)
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3]])
    embeddings = torch.randn(1, 8, 32)
    changed = embeddings.clone()
    changed[0, 0] += 1
    with torch.no_grad():
        before, after = (backbone(x, positions, causal) for x in (embeddings, changed))
    assert not torch.allclose(before[0, -1], after[0, -1])


def test_the_seed_alone_decides_the_weights():
    torch.manual_seed(1)
    one = build_backbone(BackboneConfig(options=OPTIONS, seed=5), num_text=50)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    two = build_backbone(BackboneConfig(options=OPTIONS, seed=5), num_text=50)
    assert torch.equal(state, torch.get_rng_state()), "the caller's generator is left alone"
    other = build_backbone(BackboneConfig(options=OPTIONS, seed=6), num_text=50)
    ours, theirs, third = (x.text_embedding.weight for x in (one, two, other))
    assert torch.equal(ours, theirs)
    assert not torch.equal(ours, third)


@pytest.mark.parametrize("is_tied", [False, True])
def test_a_local_folder_gives_its_weights(tmp_path, is_tied):
    config = AutoConfig.for_model(
        "qwen3", **OPTIONS, vocab_size=50, tie_word_embeddings=is_tied, use_cache=False
    )
    stock = AutoModelForCausalLM.from_config(config).eval()
    stock.save_pretrained(tmp_path)
    backbone = build_backbone(BackboneConfig("folder", path=str(tmp_path)), num_text=50)
    assert (backbone.text_head is None) == is_tied
    ids = torch.arange(9)[None]
    with torch.no_grad():
        hidden = backbone(backbone.text_embedding(ids), ids, causal)
        head = backbone.text_embedding if is_tied else backbone.text_head
        expected = stock(ids).logits
    assert torch.allclose(hidden @ head.weight.T, expected, atol=1e-5)


def test_a_folder_with_too_small_a_table_is_refused(tmp_path):
    config = AutoConfig.for_model("llama", **OPTIONS, vocab_size=50)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="text table has 50 rows"):
        build_backbone(BackboneConfig("folder", path=str(tmp_path)), num_text=51)


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        ("mistral", {"sliding_window": 16}, "sliding_window=16"),
        ("qwen3", {"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention"),
        ("qwen3", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic"),
        ("llama", {"attention_dropout": 0.1}, "attention_dropout"),
        ("qwen3", {"hiden_size": 32}, "did you mean 'hidden_size'"),
    ],
)
def test_what_a_tree_cannot_compute_is_refused(family, options, message):
    config = BackboneConfig(family=family, options={**OPTIONS, **options})
    with pytest.raises(UserError, match=message) as caught:
        build_backbone(config, num_text=50)
    assert "\n" not in str(caught.value)


def test_a_window_that_never_binds_is_allowed():
    config = BackboneConfig(family="mistral", options={**OPTIONS, "sliding_window": 64})
    assert build_backbone(config, num_text=50).max_positions == 64


def test_other_architectures_are_refused():
    with pytest.raises(UserError, match="unknown backbone family 'gpt2'"):
        check_architecture(AutoConfig.for_model("gpt2"))


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"source": "hub"}, r"models\.backbone\.source"),
        ({"family": "qwen"}, "did you mean 'qwen3'"),
        ({"source": "folder"}, r"models\.backbone\.path is needed"),
    ],
)
def test_bad_configurations_are_refused(keywords, message):
    with pytest.raises(UserError, match=message):
        BackboneConfig(**keywords)


def test_damaged_files_are_one_clear_line(tmp_path):
    with pytest.raises(UserError, match="no such folder"):
        build_backbone(BackboneConfig("folder", path=str(tmp_path / "none")), num_text=5)
    with pytest.raises(UserError, match="not loadable"):
        build_backbone(BackboneConfig("folder", path=str(tmp_path)), num_text=5)
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(UserError, match=r"broken\.gguf"):
        build_backbone(BackboneConfig("gguf", path=str(broken)), num_text=5)


def test_calling_without_attend_is_loud():
    backbone = build_backbone(BackboneConfig(options=OPTIONS), num_text=50)
    assert backbone.model.config._attn_implementation == ATTENTION_NAME
    with pytest.raises(UserError, match="without `attend`"):
        backbone.model(inputs_embeds=torch.randn(1, 3, 32))


def test_gradient_checkpointing_changes_no_gradient():
    grads = []
    for every in (False, True, 2):
        config = BackboneConfig(options=OPTIONS, gradient_checkpointing=every)
        backbone = build_backbone(config, num_text=50).train()
        embeddings = torch.linspace(-1, 1, 5 * 32).reshape(1, 5, 32).requires_grad_()
        backbone(embeddings, torch.arange(5)[None], causal).square().sum().backward()
        grads.append(embeddings.grad)
        layers = [layer.gradient_checkpointing for layer in backbone.model.layers]
        wanted = [bool(every) and n % int(every) == 0 for n in range(1, len(layers) + 1)]
        assert layers == wanted
    assert torch.equal(grads[0], grads[1])
    assert torch.equal(grads[0], grads[2])


@pytest.mark.parametrize("value", [0, -1, "layers", 1.5])
def test_checkpointing_policies_are_named(value):
    with pytest.raises(UserError, match="every k-th layer"):
        BackboneConfig(options=OPTIONS, gradient_checkpointing=value)
