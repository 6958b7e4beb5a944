"""Every file of conf/models and conf/actions builds what it describes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra.utils import instantiate
from model_scenario import embodiment
from omegaconf import OmegaConf

from vla_nav.actions import build_space
from vla_nav.models.assembly import ModelConfig, build_prompt
from vla_nav.models.backbone import build_backbone
from vla_nav.models.prompt import Layout

CONF = Path(__file__).parents[2] / "conf"


@pytest.mark.parametrize("path", sorted((CONF / "actions").glob("*.yaml")), ids=lambda p: p.stem)
def test_action_spaces_build_and_a_prompt_with_them(path):
    space = instantiate(OmegaConf.load(path))
    assert build_space(space.describe()).describe() == space.describe()
    prompt = build_prompt(
        ModelConfig(),
        action_space=space,
        embodiment=embodiment(),
        layout=Layout(),
        num_full=1,
        num_pooled=0,
    )
    assert prompt.vocabulary.num_actions == space.num_tokens


@pytest.mark.parametrize("path", sorted((CONF / "models").glob("*.yaml")), ids=lambda p: p.stem)
def test_models_are_described_by_their_file(path):
    config = OmegaConf.load(path)
    if path.stem == "folder":
        config.backbone.path = "/a/folder"
    model = instantiate(config)
    assert ModelConfig(**model.describe()) == model
    assert type(model.backbone.options) is dict


@pytest.mark.parametrize("name", ["qwen3_tiny", "mistral_tiny"])
def test_the_demo_models_have_a_million_parameters_beside_the_text_table(name):
    model = instantiate(OmegaConf.load(CONF / "models" / f"{name}.yaml"))
    backbone = build_backbone(model.backbone, num_text=32_768)
    total = sum(parameter.numel() for parameter in backbone.parameters())
    assert 0.7e6 < total - backbone.text_embedding.weight.numel() < 1.1e6
