"""Shapes without weights: the same numbers as the real model's, and no memory for them."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

from tests.training.recorded import body
from vla_nav.actions.waypoint import WaypointSpace
from vla_nav.commands.compose import compose_config, instantiate
from vla_nav.errors import UserError
from vla_nav.models.assembly import ModelConfig, assemble
from vla_nav.models.backbone import BackboneConfig
from vla_nav.models.prompt import Layout
from vla_nav.models.vocabulary import Vocabulary
from vla_nav.training.shapes import backbone_shape, encoder_flops, flop_model, frame_tokens
from vla_nav.vision.encoder import TimmEncoder

OPTIONS = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 10,
}
ENCODER = {
    "name": "vit_small_patch16_224",
    "image_size": 48,
    "num_pooled": 1,
    "freeze": False,
    "model_kwargs": {
        "embed_dim": 32,
        "depth": 1,
        "num_heads": 2,
        "class_token": False,
        "global_pool": "avg",
    },
}
TEXT = 32768


@pytest.mark.parametrize("family", ["qwen3", "mistral", "llama"])
@pytest.mark.parametrize("head", ["actions", "full"])
def test_costs_are_those_of_the_real_model(family: str, head: str) -> None:
    config = ModelConfig(backbone=BackboneConfig(family=family, options=OPTIONS), head=head)
    real, prompt = assemble(
        config,
        action_space=WaypointSpace(),
        embodiment=body(),
        layout=Layout(),
        encoder=TimmEncoder(**ENCODER),
    )
    made, num_parameters = flop_model(config, prompt.vocabulary)
    linear = [m for m in real.backbone.modules() if isinstance(m, nn.Linear)]
    assert made.linear_parameters == sum(layer.weight.numel() for layer in linear)
    assert made.head_parameters == real.num_outputs * 24
    assert num_parameters == sum(value.numel() for value in real.backbone.parameters())
    assert (made.num_layers, made.num_heads, made.head_dim) == (3, 4, 10)


def test_a_model_of_billions_takes_no_memory() -> None:
    config = instantiate(compose_config("train", ["data.path=x", "models=qwen3_1_7b"]).models)
    shape = backbone_shape(config, num_text=TEXT)
    assert {value.device.type for value in shape.parameters()} == {"meta"}
    made, _ = flop_model(config, Vocabulary(20, ("<begin>",), 0, TEXT))
    attention = 2048 * 16 * 128 * 2 + 2048 * 8 * 128 * 2
    assert made.linear_parameters == 28 * (attention + 3 * 2048 * 6144)


def test_a_folder_gives_its_shape_without_its_weights(tmp_path: Path) -> None:
    from transformers import AutoConfig

    stored = AutoConfig.for_model("qwen3", vocab_size=TEXT, **OPTIONS)
    stored.save_pretrained(tmp_path)
    config = ModelConfig(
        backbone=BackboneConfig(source="folder", path=str(tmp_path)),
        tokenizer="mistral_v3",
    )
    vocabulary = Vocabulary(20, ("<begin>",), 0, TEXT)
    same = ModelConfig(backbone=BackboneConfig(options={**OPTIONS, "vocab_size": TEXT}))
    assert flop_model(config, vocabulary) == flop_model(same, vocabulary)
    empty = tmp_path / "empty"
    empty.mkdir()
    broken = ModelConfig(backbone=BackboneConfig(source="folder", path=str(empty)))
    with pytest.raises(UserError, match=r"models\.backbone\.path"):
        flop_model(broken, vocabulary)


def test_tokens_of_a_frame_are_the_encoders_or_those_given() -> None:
    real = TimmEncoder(**ENCODER)
    assert frame_tokens(ENCODER) == (real.num_full, real.num_pooled)
    assert frame_tokens(ENCODER, full=196) == (196, 1)
    assert frame_tokens(ENCODER, pooled=0) == (real.num_full, 0)
    assert frame_tokens({"name": "nothing like it"}, full=5, pooled=2) == (5, 2)
    with pytest.raises(UserError, match="frame_tokens=0: allowed: whole numbers from 1 on"):
        frame_tokens(ENCODER, full=0)


def test_only_an_encoder_in_the_step_costs_flops() -> None:
    assert encoder_flops({**ENCODER, "freeze": True}) == 0
    # 3 x 3 patches of 32 channels: attention and MLP matrices, 2 FLOPs forward, 4 backward each.
    matrices = 32 * 32 * 4 + 2 * 32 * 4 * 32
    patches = 9
    assert encoder_flops(ENCODER) > 6 * 0.9 * patches * matrices
    assert encoder_flops(ENCODER) < 6 * 2 * patches * (matrices + 32 * 768)
