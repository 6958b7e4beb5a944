"""The evaluation of a run that trains agrees with `vla-nav evaluate`, and refuses before it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from worlds import evaluate_config, results_of, run_command

from tests.training.recorded import write_recorded
from vla_nav.actions import DiscreteSpace, WaypointSpace
from vla_nav.commands.compose import compose_config, plain
from vla_nav.commands.train import evaluated
from vla_nav.errors import UserError
from vla_nav.evaluation.runs import evaluate_from
from vla_nav.evaluation.training_run import TrainingEvaluator
from vla_nav.files import read_json
from vla_nav.models.checkpoint import load_policy
from vla_nav.training.curve import read_curve

CPU = torch.device("cpu")
SMALL_MODEL = [
    "models.backbone.options.hidden_size=32",
    "models.backbone.options.intermediate_size=48",
    "models.backbone.options.num_hidden_layers=1",
    "models.backbone.options.num_attention_heads=2",
    "models.backbone.options.num_key_value_heads=2",
    "models.backbone.options.head_dim=16",
    "models.projector_hidden=null",
    "vision.model_kwargs.embed_dim=16",
    "vision.model_kwargs.depth=1",
]


def evaluator(world: Path, *overrides: str) -> TrainingEvaluator:
    """By the configuration of `vla-nav train callbacks=closed_loop`."""
    words = [
        f"data.path={world}",
        "callbacks=closed_loop",
        "callbacks.closed_loop.max_primitives=16",
    ]
    node = plain(compose_config("train", [*words, *overrides]).callbacks.closed_loop)
    found = evaluated(node, seed=3)
    assert (found["every_steps"], found["patience"]) == (500, None)
    return found["evaluator"]


def lines_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_rows_and_records_are_those_of_the_evaluate_command(world, tiny_policy, tmp_path):
    made = evaluator(world, "callbacks.closed_loop.num_episodes=5")
    torch.manual_seed(1)
    row = made(tiny_policy, records=tmp_path / "records.jsonl", device=CPU)
    config = evaluate_config(
        world,
        tmp_path / "run",
        f"checkpoint={tiny_policy}",
        "evaluation.embodiment=checkpoint",
        f"evaluation.decision={load_policy(tiny_policy).decision}",
        "evaluation.rows=[policy]",
        "evaluation.num_episodes=5",
        "evaluation.max_primitives=16",
        "evaluation.deterministic=true",
        "evaluation.further_m=[]",
        "seed=3",
    )
    assert evaluate_from(config) == 0
    assert (row["n"], row["num_missing"]) == (5, 0)
    (reported,) = read_json(tmp_path / "run" / "report.json")["rows"]
    assert json.loads(json.dumps({**row, "num_missing": 0})) == {**reported, "num_missing": 0}
    records = lines_of(tmp_path / "records.jsonl")
    assert {record["episode_id"] for record in records} == {
        key[-1] for key in results_of(tmp_path / "run")
    }
    expected = results_of(tmp_path / "run").values()
    assert sorted(records, key=str) == sorted(expected, key=str)


def test_it_gives_up_when_asked_and_writes_nothing(world, tiny_policy, tmp_path):
    made = evaluator(world, "callbacks.closed_loop.num_episodes=3")
    asked = []
    row = made(
        tiny_policy,
        records=tmp_path / "records.jsonl",
        device=CPU,
        is_given_up=lambda: bool(asked) or asked.append(1) or False,
    )
    assert row is None
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("num_episodes=99", r"num_episodes=99: .* has 15"),
        ("num_slots=0", r"callbacks\.closed_loop\.num_slots=0"),
        ("flag_policy=drop", r"callbacks\.closed_loop\.flag_policy 'drop'"),
        ("execution=flying", r"callbacks\.closed_loop\.execution 'flying'"),
        ("temperature=-1", r"callbacks\.closed_loop\.temperature=-1"),
        ("success_m=0", "success_m"),
        ("data.split=nowhere", "nowhere"),
    ],
)
def test_what_does_not_fit_is_refused_before_training(world, override, message):
    with pytest.raises((UserError, FileNotFoundError), match=message):
        evaluator(
            world, "callbacks.closed_loop.num_episodes=5", f"callbacks.closed_loop.{override}"
        )


def test_a_policy_that_cannot_be_played_is_refused(world, tiny_policy):
    body = load_policy(tiny_policy).embodiment
    made = evaluator(
        world, "callbacks.closed_loop.num_episodes=5", "callbacks.closed_loop.execution=geodesic"
    )
    made.check(body, WaypointSpace(), "full")
    with pytest.raises(UserError, match="actions=discrete name no place"):
        made.check(body, DiscreteSpace(), "full")
    with pytest.raises(UserError, match=r"tree\.history=summary"):
        made.check(body, WaypointSpace(), "summary")


def test_train_evaluates_in_the_simulator_and_names_the_best_policy(world, tmp_path, capsys):
    write_recorded(tmp_path / "data", num_episodes=12, num_scenes=3, image_px=48)
    data = [f"data.path={tmp_path}/data", "num_workers=0", "paths.output_dir="]
    assert run_command("encode", *data[:2], f"{data[2]}{tmp_path}/encode", "vision=pixels") == 0
    words = [
        *data[:2],
        f"paths.output_dir={tmp_path}/run",
        "vision=vit_48",
        *SMALL_MODEL,
        "callbacks=closed_loop",
        "callbacks.closed_loop.every_steps=2",
        "callbacks.closed_loop.num_episodes=4",
        "callbacks.closed_loop.max_primitives=12",
        f"callbacks.closed_loop.data.episodes={world}/episodes/val_unseen/val_unseen.json.gz",
        f"callbacks.closed_loop.data.scenes={world}/scenes",
        "training.budget.max_steps=3",
        "training.pack_tokens=1024",
        "num_threads=1",
    ]
    assert run_command("train", *words) == 0
    told = capsys.readouterr().out
    assert "closed loop at step 2:  sr " in told
    found = read_json(tmp_path / "run" / "result.json")["closed_loop"]
    assert f"best in closed loop: SR {found['best']['sr']:.3f}" in told
    assert found["evaluations"] == 2  # and one after the last step
    steps = [
        r["step"] for r in read_curve(tmp_path / "run" / "curve.jsonl") if "closed_loop/sr" in r
    ]
    assert steps == [2, 3]
    best = load_policy(found["best"]["policy"])
    assert best.data["steps"] == found["best"]["step"]
    config = evaluate_config(
        world,
        tmp_path / "again",
        f"checkpoint={tmp_path}/run/policy_best",
        "evaluation.embodiment=checkpoint",
        "evaluation.rows=[policy]",
        "evaluation.num_episodes=4",
        "evaluation.max_primitives=12",
        "evaluation.deterministic=true",
        "evaluation.further_m=[]",
    )
    assert evaluate_from(config) == 0
    (row,) = read_json(tmp_path / "again" / "report.json")["rows"]
    assert {k: row[k] for k in ("n", "sr", "spl", "ne_m")} == {
        k: found["best"][k] for k in ("n", "sr", "spl", "ne_m")
    }
