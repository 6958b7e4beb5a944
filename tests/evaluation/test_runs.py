"""The evaluate command: shards, kills, refusals and exit codes (cases 5, 6, 10, 12 and 18)."""

import gzip
import json
import shutil
from pathlib import Path

import pytest
from worlds import (
    SMALL_CAMERA,
    await_end,
    children_of,
    evaluate_config,
    kill_when,
    results_of,
    run_command,
    start_command,
)

from vla_nav.actions import WaypointSpace
from vla_nav.errors import UserError
from vla_nav.evaluation.runs import evaluate_from
from vla_nav.evaluation.setup import embodiment_of
from vla_nav.models.assembly import ModelConfig, assemble
from vla_nav.models.checkpoint import save_policy
from vla_nav.models.prompt import Layout
from vla_nav.vision.encoder import TimmEncoder


@pytest.fixture(scope="module")
def whole(world, tmp_path_factory):
    """An uninterrupted run of the rows `random` and `expert`."""
    folder = tmp_path_factory.mktemp("whole")
    assert evaluate_from(evaluate_config(world, folder)) == 0
    return folder


@pytest.fixture(scope="module")
def policy(world, tmp_path_factory):
    """A policy folder: random weights, the action space and body of the small world."""
    body = embodiment_of(evaluate_config(world, Path("unused"))["simulators"])
    options = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 4096,
    }
    config = ModelConfig(backbone={"family": "qwen3", "options": options})
    encoder = {"name": "resnet10t", "image_size": 32, "num_tokens": 1, "feature_index": 1}
    folder = tmp_path_factory.mktemp("policy")
    assembled = assemble(
        config,
        action_space=WaypointSpace(),
        embodiment=body,
        layout=Layout("full", "hidden"),
        encoder=TimmEncoder(**encoder),
    )
    save_policy(folder, assembled, config, encoder=encoder, data={})
    return folder


def edited_world(world: Path, tmp_path: Path, edit) -> Path:
    """The small world with another episode file."""
    shutil.copytree(world, tmp_path / "edited")
    path = tmp_path / "edited" / "episodes" / "val_unseen" / "val_unseen.json.gz"
    content = json.loads(gzip.decompress(path.read_bytes()))
    edit(content)
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    return tmp_path / "edited"


def report_of(folder: Path) -> dict:
    return json.loads((folder / "report.json").read_text())


def test_the_report_holds_what_was_asked_for(whole):
    report = report_of(whole)
    assert report["is_complete"]
    assert [row["name"] for row in report["rows"]] == ["random", "expert"]
    for row in report["rows"]:
        assert row["n"] == row["num_expected"] == 15
        assert {"sr", "sr_low", "sr_high", "spl", "ne_m", "ndtw", "sr_1m", "sr_2m"} <= row.keys()
    assert report["rows"][1]["sr"] == 1.0
    assert report["run"]["backend"] == "mesh"
    assert len(results_of(whole)) == 30


def test_shards_give_the_results_of_one_run_and_the_last_one_reports(world, whole, tmp_path):
    for shard in (2, 0, 1):
        assert not (tmp_path / "report.json").exists()
        options = ["evaluation.num_shards=3", f"evaluation.shard={shard}"]
        assert evaluate_from(evaluate_config(world, tmp_path, *options)) == 0
    assert results_of(tmp_path) == results_of(whole)
    assert report_of(tmp_path)["rows"] == report_of(whole)["rows"]
    # A lost shard is played again, and only that one.
    lost = tmp_path / "results-001-of-003.jsonl"
    before = {p.name: p.read_bytes() for p in tmp_path.glob("results-*")}
    lost.unlink()
    options = ["evaluation.num_shards=3", "evaluation.shard=1"]
    assert evaluate_from(evaluate_config(world, tmp_path, *options)) == 0
    after = {p.name: p.read_bytes() for p in tmp_path.glob("results-*")}
    assert sorted(after) == sorted(before)
    assert results_of(tmp_path) == results_of(whole)


def test_a_killed_evaluation_is_finished_by_a_second_start(world, whole, tmp_path):
    overrides = [
        f"data.path={world}",
        f"paths.output_dir={tmp_path}",
        "evaluation.num_episodes=null",
        "evaluation.rows=[random,expert]",
        "evaluation.num_slots=2",
        SMALL_CAMERA,
    ]
    process = start_command("evaluate", *overrides, "num_workers=1")
    children: list[int] = []

    def is_half_done() -> bool:
        children[:] = children_of(process.pid) or children
        return sum(p.read_bytes().count(b"\n") for p in tmp_path.glob("results-*")) >= 4

    kill_when(process, is_half_done)
    await_end(children)  # simulator workers do not outlive the killed main process
    assert 4 <= len(results_of(tmp_path)) < 30
    assert not (tmp_path / "report.json").exists()
    with open(next(tmp_path.glob("results-*")), "ab") as handle:
        handle.write(b'{"row": "expert", "dataset"')  # what a kill in mid-write leaves
    assert evaluate_from(evaluate_config(world, tmp_path)) == 0
    assert results_of(tmp_path) == results_of(whole)
    assert report_of(tmp_path)["rows"] == report_of(whole)["rows"]


def test_a_finished_run_plays_nothing_again_and_more_episodes_only_add(world, tmp_path):
    few = evaluate_config(world, tmp_path, "evaluation.num_episodes=4")
    assert evaluate_from(few) == 0
    lines = next(tmp_path.glob("results-*")).read_bytes()
    assert evaluate_from(few) == 0
    assert next(tmp_path.glob("results-*")).read_bytes() == lines
    assert evaluate_from(evaluate_config(world, tmp_path, "evaluation.num_episodes=6")) == 0
    assert next(tmp_path.glob("results-*")).read_bytes().startswith(lines)
    assert len(results_of(tmp_path)) == 12
    assert evaluate_from(few) == 0
    assert report_of(tmp_path)["rows"][0]["n"] == 4
    with pytest.raises(UserError, match=r"seed was 0, is now 1.*output_dir"):
        evaluate_from(evaluate_config(world, tmp_path, "seed=1"))


def test_an_episode_without_a_finite_geodesic_is_flagged_and_counted(world, tmp_path):
    def far_goal(content):
        content["episodes"][0]["goals"][0]["position"] = [500.0, 0.0, 500.0]

    edited = edited_world(world, tmp_path, far_goal)
    for policy, n in (("exclude", 14), ("failure", 15)):
        out = tmp_path / policy
        option = f"evaluation.flag_policy={policy}"
        assert evaluate_from(evaluate_config(edited, out, option)) == 0
        expert = report_of(out)["rows"][1]
        assert (expert["n"], expert["num_flagged"]) == (n, 1)
        assert expert["sr"] == pytest.approx(14 / n)
        flagged = [r for r in results_of(out).values() if r["flag"]]
        assert len(flagged) == 2
        assert all(r["sr"] is None and r["ne_m"] is None and r["spl"] is None for r in flagged)


def test_a_filter_that_matches_nothing_exits_non_zero_and_is_named(world, tmp_path, capsys):
    code = run_command(
        "evaluate",
        f"data.path={world}",
        f"paths.output_dir={tmp_path}/out",
        "evaluation.rows=[expert]",
        "evaluation.scenes=[nowhere]",
    )
    assert code == 2
    message = capsys.readouterr().err
    assert "evaluation.scenes=['nowhere'] keeps none of the 15 episodes" in message
    assert len(message.strip().splitlines()) == 1
    assert not list((tmp_path / "out").glob("results-*"))


def test_a_policy_is_evaluated_in_every_row_and_the_number_of_workers_does_not_matter(
    world, policy, tmp_path
):
    options = [
        f"checkpoint={policy}",
        "evaluation.num_episodes=2",
        "evaluation.max_primitives=12",
        "evaluation.rows=[policy,swapped_instruction,no_instruction,black_images,random,expert]",
        "evaluation.deterministic=true",
    ]
    for workers in (0, 2):
        out = tmp_path / str(workers)
        code = evaluate_from(evaluate_config(world, out, *options, f"num_workers={workers}"))
        assert code == 0
    assert results_of(tmp_path / "0") == results_of(tmp_path / "2")
    report = report_of(tmp_path / "0")
    assert [row["n"] for row in report["rows"]] == [2] * 6
    assert report["timing"]["num_decisions"] > 0
    assert 0 < report["timing"]["policy_share"] <= 1


def test_another_turn_angle_or_decision_rule_than_trained_is_refused(world, policy, tmp_path):
    options = [f"checkpoint={policy}", "evaluation.rows=[policy]", "evaluation.num_episodes=2"]
    turned = "simulators.embodiment.turn_deg=15"
    with pytest.raises(UserError, match=r"turn_deg 30\.0 != 15.*allow_mismatch"):
        evaluate_from(evaluate_config(world, tmp_path / "a", *options, turned))
    with pytest.raises(UserError, match="decision"):
        evaluate_from(
            evaluate_config(world, tmp_path / "b", *options, "evaluation.decision=primitive")
        )
    assert not (tmp_path / "a").exists()
    short = "evaluation.max_primitives=6"
    allowed = [*options, turned, "evaluation.allow_mismatch=true", short]
    assert evaluate_from(evaluate_config(world, tmp_path / "c", *allowed)) == 0
    assert "turn_deg" in report_of(tmp_path / "c")["run"]["differs_from_training"][0]
    adopted = [*options, turned, "evaluation.embodiment=checkpoint", short]
    assert evaluate_from(evaluate_config(world, tmp_path / "d", *adopted)) == 0
    assert report_of(tmp_path / "d")["run"]["embodiment"]["turn_deg"] == 30.0
    unread = ["evaluation.rows=[expert]", "evaluation.embodiment=checkpoint"]
    with pytest.raises(UserError, match=r"none of the rows expert loads a checkpoint"):
        evaluate_from(evaluate_config(world, tmp_path / "e", *unread))


@pytest.mark.parametrize(("command", "num_workers"), [("evaluate", 0), ("record", 1)])
def test_a_damaged_scene_is_one_line_that_names_it_and_nothing_is_lost(
    world, tmp_path, capsys, command, num_workers
):
    edited = edited_world(world, tmp_path, lambda content: None)
    victim = sorted((edited / "scenes").rglob("*.glb"))[1]
    whole = victim.read_bytes()
    victim.write_bytes(whole[: len(whole) // 2])
    overrides = [
        f"data.path={edited}",
        "data.split=val_unseen",
        f"paths.output_dir={tmp_path}/out",
        f"num_workers={num_workers}",
        SMALL_CAMERA,
    ]
    if command == "evaluate":
        overrides += ["evaluation.rows=[expert]", "evaluation.num_episodes=6"]
    assert run_command(command, *overrides) == 2
    (line,) = [x for x in capsys.readouterr().err.splitlines() if x.startswith("vla-nav")]
    assert str(victim) in line
    victim.write_bytes(whole)
    assert run_command(command, *overrides) == 0


def test_a_network_row_without_a_checkpoint_is_refused(world, tmp_path):
    with pytest.raises(UserError, match="checkpoint: has no value"):
        evaluate_from(evaluate_config(world, tmp_path, "evaluation.rows=[policy]"))


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("simulators.backend=gazebo", "simulators.backend"),
        ("simulators.embodiment.turn_deg=31", "turn_deg"),
        ("simulators.embodiment.step_m=0", "step_m"),
        ("simulators.embodiment.cameras=[]", "cameras"),
        ("evaluation.flag_policy=ignore", "flag_policy"),
        ("evaluation.num_slots=0", r"evaluation\.num_slots=0: allowed: 1 and more"),
        ("evaluation.max_primitives=0", r"evaluation\.max_primitives=0"),
        ("evaluation.num_videos=-1", r"evaluation\.num_videos=-1"),
        ("data.episodes=/nowhere.json.gz", "/nowhere.json.gz"),
        ("evaluation.decision=walk", "decision rule"),
    ],
)
def test_wrong_values_are_named(world, tmp_path, override, named):
    with pytest.raises(UserError, match=named):
        evaluate_from(evaluate_config(world, tmp_path / "out", override))
    assert not (tmp_path / "out").exists()  # refused before any work


@pytest.mark.parametrize("device", ["tpu", "cuda"])
def test_a_device_that_is_not_there_is_named(world, policy, tmp_path, device, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    options = ["evaluation.rows=[policy]", f"checkpoint={policy}", f"evaluation.device={device}"]
    with pytest.raises(UserError, match=f"evaluation.device={device}"):
        evaluate_from(evaluate_config(world, tmp_path / "out", *options))
