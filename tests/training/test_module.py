"""Training steps: accumulation is exact, averages follow, losses fall, folders tell the truth."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from torch.utils.data import DataLoader

from tests.training.tiny import (
    ENCODER,
    OPTIONS,
    cpu_trainer,
    in_child,
    make_data,
    recipe,
    settings,
    train,
)
from vla_nav.actions.waypoint import WaypointSpace
from vla_nav.attention.registry import backend
from vla_nav.episodes.lerobot_reader import LeRobotDataset
from vla_nav.errors import UserError
from vla_nav.models.assembly import Assembled, ModelConfig, assemble
from vla_nav.models.backbone import BackboneConfig
from vla_nav.models.checkpoint import load_policy
from vla_nav.models.prompt import Layout
from vla_nav.training.batch import Batch, PackMaker
from vla_nav.training.checkpoint_folder import checkpoint_folders, read_checkpoint
from vla_nav.training.curve import CurveLogger, read_curve
from vla_nav.training.data_stats import data_stats
from vla_nav.training.dataset import RecordedTrees
from vla_nav.training.ema import WeightAverage
from vla_nav.training.module import TrainingModule
from vla_nav.training.optimiser import OptimiserSettings
from vla_nav.training.progress_bar import RunProgress
from vla_nav.training.recorded_split import open_frames
from vla_nav.training.run_folder import RunFolder, describe
from vla_nav.training.schedule import Budget, Progress
from vla_nav.training.settings import (
    PartitionSettings,
    TrainingSettings,
    ValidationSettings,
)
from vla_nav.training.stats_table import stats_table
from vla_nav.vision.encoder import TimmEncoder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data"))


def assembled(data: Path) -> tuple[Assembled, RecordedTrees]:
    encoder = TimmEncoder(**ENCODER)
    episodes = LeRobotDataset(data / "recorded" / "train")
    made = assemble(
        ModelConfig(backbone=BackboneConfig(options=OPTIONS)),
        action_space=WaypointSpace(),
        embodiment=episodes.embodiment,
        layout=Layout("full", "hidden"),
        encoder=encoder,
    )
    return made, RecordedTrees(episodes, made.prompt, open_frames(data, "train", encoder))


def after_one_step(
    data: Path,
    groups: list[list[int]],
    normalisation: str,
    parallel_packs: int = 1,
    partition: PartitionSettings | None = None,
) -> dict[str, torch.Tensor]:
    """Gradients' effect: plain parameters after one AdamW step without clipping."""
    made, trees = assembled(data)
    make_pack = PackMaker(backend("sdpa"), partition)
    batch = Batch(tuple(trees.pack(group, make_pack) for group in groups), 0, 0)
    values = TrainingSettings(
        budget=Budget(max_steps=1),
        warmup_share=0.0,
        normalisation=normalisation,
        partition=partition or PartitionSettings(),
        parallel_packs=parallel_packs,
        optimiser=OptimiserSettings(clip_norm=0.0),
    )
    seen: dict[str, torch.Tensor] = {}

    class Gradients(Callback):
        def on_before_optimizer_step(self, trainer: Any, module: Any, optimiser: Any) -> None:
            seen.update(
                {
                    n: p.grad.double()
                    for n, p in module.model.named_parameters()
                    if p.grad is not None
                }
            )

    module = TrainingModule(made.model, values, Progress(values.budget, total_steps=1), stop_id=0)
    trainer = cpu_trainer(
        max_steps=1,
        callbacks=[Gradients()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader([batch], batch_size=None, collate_fn=lambda item: item))
    assert trainer.global_step == 1
    return seen


@pytest.mark.parametrize("normalisation", ["path_mean", "token_mean", "step_sum"])
def test_packs_of_a_step_give_the_gradient_of_one_pack(data: Path, normalisation: str) -> None:
    whole = after_one_step(data, [[0, 1, 2, 3, 4]], normalisation)
    parts = after_one_step(data, [[3], [1, 4, 0], [2]], normalisation)
    assert whole.keys() == parts.keys()
    assert len(whole) > 20
    for name, gradient in whole.items():
        # float32 sums in another order; relative by norm.
        scale = gradient.norm() + 1e-7
        assert (parts[name] - gradient).norm() / scale < 1e-5, name
    threaded = after_one_step(data, [[3], [1, 4, 0], [2]], normalisation, parallel_packs=3)
    assert all(torch.equal(threaded[name], gradient) for name, gradient in parts.items())
    for mode in ("recompute", "keep"):
        cut = after_one_step(
            data, [[3], [1, 4, 0], [2]], normalisation, partition=PartitionSettings(20, mode)
        )
        for name, gradient in whole.items():
            scale = gradient.norm() + 1e-7
            assert (cut[name] - gradient).norm() / scale < 1e-5, (mode, name)
    wrong = after_one_step(data, [[3], [1, 4], [2]], normalisation)
    assert any((wrong[n] - g).norm() / (g.norm() + 1e-7) > 1e-3 for n, g in whole.items())


def test_used_rows_give_the_weights_of_the_whole_table(data: Path, tmp_path: Path) -> None:
    for used_rows in (False, True):
        made = settings(
            budget=Budget(max_steps=8),
            optimiser=OptimiserSettings(learning_rate=1e-2, used_rows=used_rows),
        )
        run = tmp_path / str(used_rows)
        assert in_child(lambda made=made, run=run: train(recipe(data, settings=made), run)) == 0
    dense, used = (
        load_policy(tmp_path / name / "policy").model.state_dict() for name in ("False", "True")
    )
    for name, value in dense.items():
        # The gradient norm adds up in another order, nothing else differs.
        assert (used[name] - value).norm() <= 1e-4 * value.norm(), name
    table = "backbone.model.embed_tokens.weight"
    untrained = assembled(data)[0].model.state_dict()[table]
    moved = (used[table] != untrained).any(dim=1)
    assert 5 < int(moved.sum()) < 100
    assert torch.equal(moved, (dense[table] != untrained).any(dim=1))


def test_used_rows_need_the_action_head(data: Path) -> None:
    made, _ = assembled(data)
    made.model.head = "full"
    with pytest.raises(UserError, match=r"needs models\.head=actions"):
        TrainingModule(
            made.model,
            settings(optimiser=OptimiserSettings(used_rows=True)),
            Progress(Budget(max_steps=1), total_steps=1),
            stop_id=0,
        )


def test_average_follows_its_recursion(data: Path) -> None:
    made, _ = assembled(data)
    module = TrainingModule(
        made.model, settings(), Progress(Budget(max_steps=9), total_steps=9), stop_id=0
    )
    average = WeightAverage(decay=0.9, every_steps=1)

    class Clock:
        global_step = 0
        sanity_checking = False

    clock: Any = Clock()
    average.on_fit_start(clock, module)
    name, weight = next((n, p) for n, p in made.model.named_parameters() if p.requires_grad)
    expected = weight.detach().clone()
    for step in range(1, 6):
        clock.global_step = step
        with torch.no_grad():
            weight += 1.0
        average.on_train_batch_end(clock, module)
        decay = min(0.9, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * weight.detach()
    assert torch.allclose(average.average[name], expected, atol=1e-6)
    trained = weight.detach().clone()
    average.on_validation_start(clock, module)
    assert torch.equal(weight, average.average[name])
    average.on_validation_end(clock, module)
    assert torch.equal(weight, trained)
    with pytest.raises(UserError, match="decay"):
        WeightAverage(decay=1.0)


@pytest.fixture(scope="module")
def learnt(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run long enough to learn frames whose colour tells the action."""
    run = tmp_path_factory.mktemp("learnt")
    made = settings(
        pack_tokens=600,
        budget=Budget(max_steps=150),
        optimiser=OptimiserSettings(learning_rate=1e-2),
        validation=ValidationSettings(holdout_share=0.2, every_steps=75),
        log_every_steps=10,
    )
    code = in_child(
        lambda: train(recipe(data, settings=made), run, config={"a": {"b": 1}}, every_steps=75)
    )
    assert code == 0
    return run


def test_a_policy_learns_what_its_frames_tell(learnt: Path) -> None:
    rows = read_curve(learnt / "curve.jsonl")
    losses = [row["loss"] for row in rows if "loss" in row]
    assert losses[-1] < 0.5 * losses[0]
    assert (
        max(
            row["stop_recall"]
            for row in [{k[4:]: v for k, v in r.items()} for r in rows if "val/stop_recall" in r]
        )
        > 0.9
    )
    result = json.loads((learnt / "result.json").read_text())
    assert result["validation"]["action_accuracy"] > 0.4  # one of 10 kinds of action by chance
    assert result["steps"] == 150
    assert "stop recall" in describe(result)
    assert (learnt / "curve.csv").read_text().startswith("step,loss")


def test_the_policy_bundle_carries_conventions_and_averaged_weights(
    data: Path, learnt: Path
) -> None:
    loaded = load_policy(learnt / "policy")
    episodes = LeRobotDataset(data / "recorded" / "train")
    assert loaded.embodiment == episodes.embodiment
    assert str(loaded.decision) == "turn_then_forward(4)"
    assert loaded.data["fingerprint"] == episodes.fingerprint()
    stored = read_checkpoint(checkpoint_folders(learnt / "checkpoints")[0])
    average = next(v["average"] for v in stored["callbacks"].values() if "average" in v)
    state = loaded.model.state_dict()
    assert average
    assert all(torch.equal(state[name], value) for name, value in average.items())
    raw = stored["state_dict"]
    assert any(not torch.equal(raw[f"model.{name}"], value) for name, value in average.items())


def test_a_run_is_never_overwritten_without_being_told(learnt: Path, tmp_path: Path) -> None:
    digest = json.loads((learnt / "run.json").read_text())["data"]
    RunFolder(learnt, {"a": {"b": 1}, "num_workers": 9}, data=digest)
    with pytest.raises(UserError, match=r"run\.json: .* a\.b=1, asked for is 2; .*overwrite=true"):
        RunFolder(learnt, {"a": {"b": 2}}, data=digest)
    with pytest.raises(UserError, match="started on data"):
        RunFolder(learnt, {"a": {"b": 1}}, data="other")
    (tmp_path / "policy").mkdir()
    with pytest.raises(UserError, match=r"without run\.json"):
        RunFolder(tmp_path, {}, data="x")
    kept = tmp_path / "mine.txt"
    kept.write_text("stays")
    RunFolder(tmp_path, {"a": 1}, data="x", overwrite=True)
    assert kept.read_text() == "stays"
    assert not (tmp_path / "policy").exists()


def test_a_torn_curve_loses_its_last_line_only_and_repeats_nothing(tmp_path: Path) -> None:
    path = tmp_path / "curve.jsonl"
    path.write_text('{"step": 1, "loss": 3.0}\n{"step": 2, "loss": 2.0}\n{"step": 3, "lo')
    logger = CurveLogger(path, resumed_step=2)
    logger.log_metrics({"loss": 2.0}, 2)
    logger.log_metrics({"loss": 1.0, "epoch": 0}, 3)
    assert [(row["step"], row["loss"]) for row in read_curve(path)] == [
        (1, 3.0),
        (2, 2.0),
        (3, 1.0),
    ]


def test_progress_is_shown_by_the_budget(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = settings(budget=Budget(max_steps=4), log_every_steps=1)
    train(recipe(data, settings=made), tmp_path, extra=(RunProgress(plain_every_s=1e-6),))
    lines = capsys.readouterr().out.splitlines()
    shares = [line.split("%")[0].split()[-1] for line in lines if line.startswith("training")]
    assert shares == ["25", "50", "75", "100"]
    assert any(line.startswith("validation at step 4:") for line in lines)


def test_stats_count_a_caterpillar_by_hand(data: Path) -> None:
    stats = data_stats(
        data,
        "train",
        model=ModelConfig(backbone=BackboneConfig(options=OPTIONS)),
        encoder=ENCODER,
        action_space=WaypointSpace(),
        layout=Layout("full", "hidden"),
    )
    episodes = LeRobotDataset(data / "recorded" / "train")
    made, _ = assembled(data)
    flat = tree = 0
    for episode in episodes:
        root = len(made.prompt.root()) + len(made.prompt.instruction(episode.instruction))
        tree += root
        for number, step in enumerate(episode.steps):
            label = 1 if step.executed == (0,) else 2
            flat += root + 4 * (number + 1) + label
            tree += 4 + label
    assert (stats["n_flat"], stats["n_tree"]) == (flat, tree)
    assert stats["por"] == pytest.approx(1 - tree / flat)
    assert stats["token_bound"] == pytest.approx(flat / tree)
    frames = stats["frames_flat"] / stats["frames_tree"]
    ends = sorted((stats["flop_bound"], frames))
    assert 1.0 < ends[0] <= stats["flop_bound_with_vision"] <= ends[1]
    assert math.isfinite(stats["flops_per_episode"])
    assert "token bound" in stats_table(stats)
    json.dumps(stats, allow_nan=False)
