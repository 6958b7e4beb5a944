"""The product's own VLA over a tiny backbone, for the same random samples as `tiny_models`.

Forty action tokens take the place of all text; frames are features. `flat` is its oracle side:
transformers' own attention, every path alone.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from tests.verification.tiny_models import FEATURES, VOCABULARY, with_float64_norms
from vla_nav.models.backbone import BackboneConfig, build_backbone
from vla_nav.models.vla import VLA
from vla_nav.models.vocabulary import Vocabulary


def tiny_vla(
    family: str = "qwen3",
    *,
    num_layers: int = 2,
    head_dim: int = 8,
    attention: str = "sdpa",
    dtype: torch.dtype = torch.float64,
    has_float64_norms: bool = False,
) -> VLA:
    """A model in `dtype` with random weights, the same at every call."""
    options = {
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": head_dim,
        "max_position_embeddings": 512,
        "initializer_range": 0.2,
    }
    backbone = build_backbone(BackboneConfig(family=family, options=options, seed=3), num_text=1)
    torch.manual_seed(0)
    model = VLA(
        backbone,
        nn.Linear(FEATURES, 24),
        Vocabulary(VOCABULARY, (), 0, 1),
        num_patches=8,
        attention=attention,
    ).to(dtype)
    if has_float64_norms:
        with_float64_norms(model)
    return model


def flat_copy(model: VLA) -> VLA:
    """The same weights under transformers' own attention."""
    flat = copy.deepcopy(model)
    flat.backbone.model.set_attn_implementation("sdpa")
    return flat


def flat_forward(model: VLA, path, frames: Tensor) -> Tensor:
    """Logits (n, V) of one path, the backbone's own positions and causal attention."""
    embeddings = model.embed(
        torch.from_numpy(path.token_ids),
        torch.from_numpy(path.frame_index),
        torch.from_numpy(path.patch_index),
        frames,
    )
    out = model.backbone.model(inputs_embeds=embeddings[None], use_cache=False)
    return model.logits(out.last_hidden_state[0])
