"""`verify checkpoint=`: the proof is of the trained weights, in the layout that was trained."""

import json

import pytest
import torch

from vla_nav.actions import WaypointSpace
from vla_nav.commands.cli import main
from vla_nav.models.assembly import ModelConfig, assemble
from vla_nav.models.checkpoint import save_policy
from vla_nav.models.export import export_policy
from vla_nav.models.hub_card import Card
from vla_nav.models.prompt import Layout
from vla_nav.verification.generated import plain_embodiment
from vla_nav.vision.encoder import TimmEncoder

WEIGHT = "backbone.model.layers.1.mlp.up_proj.weight"
QUICK = ("num_episodes=1", "max_steps=3", "num_trees=0", "num_probes=3", "max_parts=2")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """name -> a policy folder: sane weights as an export, and one weight that is not a number."""
    root = tmp_path_factory.mktemp("trained")
    options = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
    }
    config = ModelConfig(backbone={"family": "qwen3", "options": options})
    encoder = {"name": "test_resnet", "image_size": 32, "num_tokens": 1, "freeze": False}
    assembled = assemble(
        config,
        action_space=WaypointSpace(),
        embodiment=plain_embodiment(30.0, 0.25, has_depth=False),
        layout=Layout("pooled", "visible"),
        encoder=TimmEncoder(**encoder),
    )
    save_policy(root / "sane", assembled, config, encoder=encoder, data={})
    export_policy(root / "sane", root / "export", card=Card("export"))
    broken = torch.full_like(assembled.model.state_dict()[WEIGHT], float("nan"))
    save_policy(
        root / "broken", assembled, config, encoder=encoder, data={}, weights={WEIGHT: broken}
    )
    return root


@pytest.mark.parametrize(
    ("name", "part", "code"),
    [
        ("export", "max_layers=null", 0),
        ("broken", "max_layers=null", 1),
        ("broken", "max_layers=1", 0),
    ],
)
def test_the_weights_of_the_policy_are_verified(trained, tmp_path, name, part, code):
    words = [f"verification.{word}" for word in (*QUICK, part, "drift_episodes=0")]
    folder = f"paths.output_dir={tmp_path}"
    assert main(["verify", f"checkpoint={trained / name}", folder, *words]) == code
    told = json.loads((tmp_path / "verify.json").read_text())
    assert told["subject"]["layout"]["history"] == "pooled"
    assert told["subject"]["actions"]["name"] == "waypoint"
    assert ("trained weights -> random" in told["float64"]["shrunk"]) is (part == "max_layers=1")
