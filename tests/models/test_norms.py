"""Fused norms are transformers' norms in one kernel."""

from __future__ import annotations

import pytest
import torch
from transformers import Qwen3Config, Qwen3Model

from vla_nav.errors import UserError
from vla_nav.models.backbone import BackboneConfig, build_backbone
from vla_nav.models.norms import FusedNorm, fuse_norms

OPTIONS = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
}


def stock() -> Qwen3Model:
    torch.manual_seed(0)
    model = Qwen3Model(Qwen3Config(vocab_size=11, pad_token_id=None, **OPTIONS))
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.normal_(parameter, mean=1.0)
    return model


def run(model: Qwen3Model, dtype: torch.dtype) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model = model.to(dtype)
    out = model(torch.arange(11)[None]).last_hidden_state
    out.square().sum().backward()
    return out.detach(), {name: p.grad for name, p in model.named_parameters()}


def test_outputs_gradients_and_weight_names_are_those_of_transformers():
    expected, gradients = run(stock(), torch.float32)
    fused = stock()
    names = list(fused.state_dict())
    fuse_norms(fused)
    assert list(fused.state_dict()) == names
    assert sum(isinstance(module, FusedNorm) for module in fused.modules()) == 4 * 2 + 1
    found, ours = run(fused, torch.float32)
    # Float32 on both sides, rounded in another order.
    assert (found - expected).norm() < 1e-6 * expected.norm()
    for name, gradient in gradients.items():
        assert (ours[name] - gradient).norm() < 1e-5 * gradient.norm(), name


def test_activations_keep_their_dtype_under_autocast():
    fused = stock()
    norm = fused.layers[0].self_attn.q_norm
    activations = torch.randn(3, 8, dtype=torch.bfloat16)
    assert norm(activations).dtype == torch.float32  # the chain's weight promotes
    fuse_norms(fused)
    assert fused.layers[0].self_attn.q_norm(activations).dtype == torch.bfloat16


def test_a_backbone_says_which_norms_it_has_and_names_unknown_ones():
    made = build_backbone(BackboneConfig(options=OPTIONS, norms="fused"), num_text=11)
    assert made.architecture()["norms"] == "fused"
    assert isinstance(made.model.norm, FusedNorm)
    with pytest.raises(UserError, match=r"models\.backbone\.norms.*fused"):
        BackboneConfig(norms="fast")
