"""A policy on disk: the same logits after loading, and nothing that does not fit is loaded."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
import safetensors.torch
import torch
from model_scenario import ENCODER, embodiment, episode, small

from vla_nav.actions import ChunkSpace, DiscreteSpace, PointingSpace, WaypointSpace
from vla_nav.actions.decisions import DecisionRule
from vla_nav.errors import UserError
from vla_nav.models.checkpoint import (
    embodiment_differences,
    load_policy,
    require_same_conditions,
    save_policy,
)
from vla_nav.models.policy import VLAPolicy
from vla_nav.models.prompt import Layout, PoseTokens, PromptConfig
from vla_nav.models.replay import replay

SPACES = {
    "discrete": DiscreteSpace(),
    "chunk": ChunkSpace(length=4),
    "waypoint": WaypointSpace(),
    "pointing": PointingSpace(),
}


def write(folder, space=SPACES["waypoint"], **options):
    assembled, config = small(space, **options)
    save_policy(folder, assembled, config, encoder=ENCODER, data={"fingerprint": "abc", "n": 3})
    return assembled, config


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policy")
    write(folder)
    return folder


@pytest.mark.parametrize(
    ("name", "family", "head", "tie_head"),
    [
        ("discrete", "qwen3", "actions", False),
        ("chunk", "mistral", "full", False),
        ("waypoint", "llama", "full", True),
        ("pointing", "qwen3", "actions", True),
    ],
)
def test_the_loaded_policy_has_the_logits_of_the_saved_one(tmp_path, name, family, head, tie_head):
    space = SPACES[name]
    prompt = PromptConfig(facts="compact", separator=True, pose=PoseTokens())
    layout = Layout("pooled", "visible")
    assembled, _ = write(
        tmp_path, space, layout=layout, prompt=prompt, family=family, head=head, tie_head=tie_head
    )
    loaded = load_policy(tmp_path)
    assert loaded.data == {"fingerprint": "abc", "n": 3}
    assert loaded.embodiment == embodiment()
    assert loaded.decision == space.decision
    found, source = episode(1, space, num_steps=3)
    before = replay(VLAPolicy(*assembled), found, source)
    after = replay(loaded.policy(), found, source)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_a_frozen_encoder_is_checked_by_its_fingerprint(tmp_path):
    frozen = {**ENCODER, "freeze": True}
    assembled, config = small(SPACES["waypoint"], encoder=frozen)
    save_policy(tmp_path, assembled, config, encoder=frozen, data={})
    assert (
        load_policy(tmp_path).model.encoder.fingerprint() == assembled.model.encoder.fingerprint()
    )
    edit(encoder_fingerprint="test_resnet-0")(tmp_path)
    with pytest.raises(UserError, match="trained on features of encoder test_resnet-0"):
        load_policy(tmp_path)


def test_averaged_weights_take_the_place_of_the_models(tmp_path):
    (model, prompt), config = small(SPACES["waypoint"])
    zeros = {"own_head.weight": torch.zeros_like(model.own_head.weight)}
    save_policy(tmp_path, (model, prompt), config, encoder=ENCODER, data={}, weights=zeros)
    loaded = load_policy(tmp_path)
    assert not loaded.model.own_head.weight.any()
    assert torch.equal(loaded.model.own_embedding.weight, model.own_embedding.weight)
    assert model.own_head.weight.any()


def test_a_second_save_replaces_the_first(tmp_path):
    write(tmp_path)
    write(tmp_path, SPACES["chunk"])
    assert load_policy(tmp_path).prompt.action_space.name == "chunk"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["policy.json", "weights.safetensors"]


def test_the_description_is_plain_json_without_code(saved):
    text = (saved / "policy.json").read_text()
    assert "_target_" not in text
    assert "vla_nav." not in text
    assert json.loads(text)["decision"] == "turn_then_forward(4)"


def damaged(saved, folder, change):
    shutil.copytree(saved, folder)
    change(folder)
    with pytest.raises(UserError) as caught:
        load_policy(folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)
    return str(caught.value)


def test_the_seal_is_of_the_content_not_of_its_spelling(saved, tmp_path):
    shutil.copytree(saved, tmp_path / "copy")
    path = tmp_path / "copy" / "policy.json"
    described = json.loads(path.read_text())
    path.write_text(json.dumps(dict(reversed(described.items()))))
    assert load_policy(tmp_path / "copy").description == described


def edit(*, is_sealed=False, **changes):
    """Change entries; without its seal the file is as one of a version that wrote none."""

    def change(folder):
        path = folder / "policy.json"
        described = {**json.loads(path.read_text()), **changes}
        if not is_sealed:
            del described["xxh3_128"]
        path.write_text(json.dumps(described))

    return change


def truncate(folder):
    path = folder / "weights.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def other_tensors(folder):
    """A pair of files that agree with each other and not with the description."""
    from vla_nav.files import file_digest

    path = folder / "weights.safetensors"
    tensors = safetensors.torch.load_file(path)
    tensors["stray"] = tensors.pop("own_embedding.weight")
    safetensors.torch.save_file(tensors, path)
    edit(weights={"file": path.name, "xxh3_128": file_digest(path)})(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "policy.json").unlink(), "no such file"),
        (lambda folder: (folder / "weights.safetensors").unlink(), "incomplete"),
        (lambda folder: (folder / "policy.json").write_text("{"), "not valid JSON"),
        (truncate, "not what policy.json describes"),
        (other_tensors, "stray"),
        (edit(format=99), "format 99"),
        (edit(tokenizer="mistral_v3-1-0"), "trained with tokenizer"),
        (edit(layout=None), "damaged"),
        (edit(is_sealed=True, decision="primitive"), "policy.json: changed since it was written"),
        (edit(is_sealed=True, model={"backbone": 3}), "policy.json: changed since it was written"),
    ],
)
def test_damage_is_one_line_that_names_the_file(saved, tmp_path, change, message):
    assert message in damaged(saved, tmp_path / "copy", change)


def test_other_conditions_are_refused_and_named(saved):
    loaded = load_policy(saved)
    body = embodiment()
    assert require_same_conditions(loaded, embodiment=body, decision=loaded.decision) == []
    camera = replace(body.cameras[0], hfov_deg=79.0)
    other = replace(body, turn_deg=15.0, cameras=(camera,))
    with pytest.raises(UserError, match=r"turn_deg 30.0 != 15.0; camera 'front' hfov_deg 90") as e:
        require_same_conditions(loaded, embodiment=other)
    assert "allow_mismatch" in str(e.value)
    rule = DecisionRule.parse("primitive")
    found = require_same_conditions(loaded, embodiment=other, decision=rule, is_override=True)
    assert len(found) == 3
    assert embodiment_differences(body, embodiment(num_cameras=2)) == [
        "camera 'left' is additional"
    ]
