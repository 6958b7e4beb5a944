"""Fine-tuning: frozen parts and names, LoRA, and clipping, whole and in partitions."""

from __future__ import annotations

import copy
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch

from tests.training.ranks import as_rank, require_close, run_ranks
from tests.training.test_partitioned import (
    EXACT,
    gradients,
    loss_of,
    relative,
    scenario,
    whole_gradients,
)
from tests.training.test_ranks import STRATEGIES
from tests.training.test_resume import KillAt, same_weights
from tests.training.tiny import OPTIONS, in_child, make_data, recipe, settings, train, weights_of
from vla_nav.attention.registry import backend
from vla_nav.errors import UserError
from vla_nav.models.assembly import ModelConfig
from vla_nav.models.backbone import BackboneConfig
from vla_nav.models.checkpoint import load_policy
from vla_nav.models.lora import LoraConfig, add_lora, draw_adapters, is_adapter
from vla_nav.models.prompt import Layout
from vla_nav.training.checkpoint_folder import checkpoint_folders, read_checkpoint
from vla_nav.training.curve import read_curve
from vla_nav.training.optimiser import OptimiserSettings, build_optimiser
from vla_nav.training.partitioned import partitioned_backward, plan_partitions
from vla_nav.training.schedule import Budget
from vla_nav.training.settings import PartitionSettings

LORA = ModelConfig(
    backbone=BackboneConfig(options=OPTIONS), lora=LoraConfig(rank=2, targets=["q_proj", "v_proj"])
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data"))


FROZEN = {
    "vision and the first layer": ["encoder.*", "backbone.model.layers.0.*"],
    "all but the last layer and the head": [
        "encoder.*",
        "projector.*",
        "own_embedding.*",
        "patch_embedding.*",
        "backbone.model.embed_tokens.*",
        "backbone.model.layers.0.*",
    ],
    "all but the head": [
        *("encoder.*", "projector.*", "own_embedding.*", "patch_embedding.*", "backbone.*"),
    ],
    "all but the tables": ["encoder.*", "projector.*", "backbone.model.layers.*", "own_head.*"],
}


@pytest.mark.parametrize("mode", ["recompute", "keep"])
@pytest.mark.parametrize("frozen", [*FROZEN, "lora"])
def test_partitions_give_the_gradients_of_the_whole_whatever_is_frozen(
    frozen: str, mode: str
) -> None:
    model, trees, frames = scenario(Layout("pooled", "hidden"))
    if frozen == "lora":
        add_lora(model.backbone.model, LoraConfig(rank=2), seed=1)
        draw_adapters(model, seed=2)
        model.double()
    else:
        OptimiserSettings(freeze=FROZEN[frozen]).freeze_in(model)
    trained = {name for name, value in model.named_parameters() if value.requires_grad}
    loss, _, expected = whole_gradients(model, trees, frames)
    assert expected.keys() == trained
    plans = plan_partitions(trees, backend(model.attention_name), capacity=30, mode=mode)
    assert len(plans.cut.parts) > 4
    model = copy.deepcopy(model)
    found = partitioned_backward(model, plans, frames, loss_of)
    assert relative(found, loss) < EXACT
    ours = gradients(model)
    assert ours.keys() == trained
    for name, gradient in expected.items():
        if gradient.norm() > 1e-9:
            assert relative(ours[name], gradient) < 10 * EXACT, name


def test_a_pattern_freezes_what_it_names_and_the_rest_has_its_parts_rate() -> None:
    model, _, _ = scenario(Layout("full", "hidden"))
    chosen = OptimiserSettings(
        freeze=["backbone.model.layers.0.*", "*norm*"],
        learning_rate=0.1,
        learning_rates={"vision": 0.01, "projector": 0.0},
    )
    optimiser = build_optimiser(model, chosen)
    rates = {id(p): group["lr"] for group in optimiser.param_groups for p in group["params"]}
    for name, parameter in model.named_parameters():
        is_frozen = "norm" in name or ".layers.0." in name or name.startswith("projector.")
        assert parameter.requires_grad is not is_frozen, name
        expected = None if is_frozen else 0.01 if name.startswith("encoder.") else 0.1
        assert rates.get(id(parameter)) == expected, name


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"freeze": ["backbone.layers.*"]}, r"no parameter matches 'backbone\.layers\.\*'"),
        ({"freeze": ["*"]}, "nothing trains"),
        ({"freeze": "encoder.*"}, r"freeze='encoder\.\*'; give a list"),
        ({"learning_rates": {"vision": "low"}}, r"learning_rates\.vision='low'"),
        ({"learning_rate": float("inf")}, r"learning_rate=inf"),
        ({"betas": [0.9]}, r"betas=\[0\.9\]; two numbers"),
        ({"betas": [0.9, 1.0]}, r"betas=\[0\.9, 1\.0\]; two numbers"),
    ],
)
def test_what_cannot_be_frozen_is_refused(chosen: dict[str, object], message: str) -> None:
    model, _, _ = scenario(Layout("full", "hidden"))
    with pytest.raises(UserError, match=message):
        OptimiserSettings(**chosen).freeze_in(model)


def test_adapters_that_cannot_train_are_refused() -> None:
    model, _, _ = scenario(Layout("full", "hidden"))
    add_lora(model.backbone.model, LoraConfig(rank=2), seed=1)
    with pytest.raises(UserError, match="all LoRA adapters are frozen"):
        OptimiserSettings(learning_rates={"backbone": 0}).freeze_in(model)


def test_a_refused_run_leaves_its_folder_to_the_next_one(data: Path, tmp_path: Path) -> None:
    wrong = settings(optimiser=OptimiserSettings(freeze=["backbone.layers.*"]))
    with pytest.raises(UserError, match="no parameter matches"):
        train(recipe(data, settings=wrong), tmp_path / "run")
    for checkpoint in ({"every_minutes": 0}, {"every_minutes": "1 min"}, {"signals": ["TERM"]}):
        with pytest.raises(UserError, match=r"callbacks\.checkpoint"):
            train(recipe(data), tmp_path / "run", checkpoint=checkpoint)
    with pytest.raises(UserError, match=r"callbacks\.checkpoint\.every_steps=0"):
        train(recipe(data), tmp_path / "run", every_steps=0)
    assert not (tmp_path / "run").exists()


def test_clipping_in_partitions_is_that_of_the_whole(data: Path, tmp_path: Path) -> None:
    """One step: AdamW's first moment is (1 - beta_1) times the clipped gradient."""
    moments = {}
    norms = {}
    for name, partition in {
        "whole": PartitionSettings(),
        "recompute": PartitionSettings(tokens=25),
        "keep": PartitionSettings(tokens=25, mode="keep"),
    }.items():
        chosen = settings(
            budget=Budget(max_steps=1),
            accumulate=2,
            partition=partition,
            log_every_steps=1,
            optimiser=OptimiserSettings(clip_norm=0.125),
        )
        train(recipe(data, settings=chosen), tmp_path / name)
        norms[name] = read_curve(tmp_path / name / "curve.jsonl")[0]["gradient_norm"]
        (checkpoint,) = checkpoint_folders(tmp_path / name / "checkpoints")
        states = read_checkpoint(checkpoint)["optimizer_states"][0]["state"].values()
        moments[name] = torch.cat([state["exp_avg"].flatten() for state in states]) / (1 - 0.9)
    assert norms["whole"] > 0.25  # clipping does something
    for name, clipped in moments.items():
        assert float(clipped.norm()) == pytest.approx(0.125, rel=1e-4), name
        assert norms[name] == pytest.approx(norms["whole"], rel=1e-5)
        assert relative(clipped, moments["whole"]) < 1e-5  # float32, other orders of sums


def test_lora_trains_adapters_alone_survives_a_kill_and_leaves_a_plain_policy(
    data: Path, tmp_path: Path
) -> None:
    made = recipe(data, model=LORA)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert in_child(lambda: train(made, whole)) == 0
    code = in_child(lambda: train(made, killed, extra=(KillAt(8, "before step"),)))
    assert code == -signal.SIGKILL
    assert in_child(lambda: train(made, killed)) == 0
    same_weights(killed, whole)
    # The backbone is as it was drawn; its adapters, and what is outside of it, are not.
    first = tmp_path / "first"
    short = replace(made, settings=settings(budget=Budget(max_steps=1), warmup_share=0.0))
    assert in_child(lambda: train(short, first)) == 0
    last, one = weights_of(whole), weights_of(first)
    moved = {name for name, value in last.items() if not torch.equal(value, one[name])}
    weights = {name.removeprefix("state_dict/model.") for name in moved if "state_dict" in name}
    in_backbone = {name for name in weights if name.startswith("backbone.")}
    assert in_backbone
    assert all(is_adapter(name) for name in in_backbone)
    assert weights > in_backbone
    averaged = {name for name in last if "WeightAverage" in name and "backbone" in name}
    assert averaged
    assert all(is_adapter(name) for name in averaged)
    loaded = load_policy(whole / "policy")
    assert not any(is_adapter(name) for name, _ in loaded.model.named_parameters())


@pytest.mark.parametrize(("strategy", "tokens"), [("ddp", None), ("fsdp", 25)])
def test_ranks_tune_as_one_whatever_is_frozen(
    data: Path, tuned: Path, tmp_path: Path, strategy: str, tokens: int | None
) -> None:
    """Ranks that waited for the gradient of a frozen parameter would hang here."""

    def rank(number: int, port: int) -> None:
        as_rank(number, 2, port)
        tune(data, tmp_path / "run", num_ranks=2, tokens=tokens, strategy=strategy)

    assert run_ranks(rank, 2) == [0, 0]
    one, two = weights_of(tuned), weights_of(tmp_path / "run")
    require_close(
        {name: value for name, value in one.items() if name.startswith("state_dict")},
        {name: value for name, value in two.items() if name.startswith("state_dict")},
        1e-3,  # float32 sums in another order, carried through four steps of Adam
    )
    policies = [
        safetensors.torch.load_file(run / "policy" / "weights.safetensors")
        for run in (tuned, tmp_path / "run")
    ]
    assert not any(is_adapter(name) for name in policies[1])
    require_close(policies[0], policies[1], 1e-3)


def tune(data: Path, run: Path, *, num_ranks: int, tokens: int | None, strategy: str) -> None:
    """Four steps of adapters beside a frozen encoder and projector bias."""
    made = settings(
        accumulate=4 // num_ranks,
        partition=PartitionSettings(tokens),
        budget=Budget(max_steps=4),
        warmup_share=0.0,
        optimiser=OptimiserSettings(
            learning_rates={"vision": 0.0}, freeze=["projector.*bias", "patch_embedding.*"]
        ),
    )
    train(
        recipe(data, settings=made, model=LORA),
        run,
        num_ranks=num_ranks,
        strategy=STRATEGIES[strategy](),
    )


@pytest.fixture(scope="module")
def tuned(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Those steps on one rank."""
    run = tmp_path_factory.mktemp("runs") / "tuned"
    assert in_child(lambda: tune(data, run, num_ranks=1, tokens=None, strategy="ddp")) == 0
    return run
