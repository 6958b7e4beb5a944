"""A small world and a small policy for the tests of this folder, made once."""

from pathlib import Path

import pytest
from worlds import evaluate_config, run_command


@pytest.fixture(scope="session")
def world(tmp_path_factory) -> Path:
    """Three houses of five episodes in split val_unseen; `data.path` of the commands."""
    path = tmp_path_factory.mktemp("world")
    code = run_command(
        "houses",
        f"data.path={path}",
        "houses.num_train=0",
        "houses.num_val_unseen=3",
        "houses.episodes_per_house=5",
        "num_workers=0",
        f"paths.output_dir={path}/runs",
    )
    assert code == 0
    return path


@pytest.fixture(scope="session")
def tiny_policy(world, tmp_path_factory) -> Path:
    """A policy folder: random weights, primitive actions and the body of the small world."""
    from vla_nav.actions import DiscreteSpace
    from vla_nav.evaluation.setup import embodiment_of
    from vla_nav.models.assembly import ModelConfig, assemble
    from vla_nav.models.checkpoint import save_policy
    from vla_nav.models.prompt import Layout
    from vla_nav.vision.encoder import TimmEncoder

    body = embodiment_of(evaluate_config(world, Path("unused"))["simulators"])
    options = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 2048,
    }
    config = ModelConfig(backbone={"family": "qwen3", "options": options})
    encoder = {"name": "resnet10t", "image_size": 32, "num_tokens": 1, "feature_index": 1}
    assembled = assemble(
        config,
        action_space=DiscreteSpace(),
        embodiment=body,
        layout=Layout("full", "hidden"),
        encoder=TimmEncoder(**encoder),
    )
    folder = tmp_path_factory.mktemp("policy")
    save_policy(folder, assembled, config, encoder=encoder, data={})
    return folder
