"""Public task presets: exactly the published settings, and refusals of anything else (case 18)."""

import gzip
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from worlds import SMALL_CAMERA, evaluate_config, made_episode, run_command

from vla_nav.commands.compose import compose_config, plain
from vla_nav.episodes.lerobot_reader import LeRobotDataset
from vla_nav.episodes.types import STOP, Goal
from vla_nav.errors import UserError
from vla_nav.evaluation.metrics import SuccessRule
from vla_nav.evaluation.runs import evaluate_from
from vla_nav.evaluation.setup import embodiment_of
from vla_nav.evaluation.tasks import TASKS, refuse_other_conditions, stated_body, task_differences
from vla_nav.simulators.mesh import MeshSimulator

# Read off the public configurations: VLN-CE habitat_extensions/config/{vlnce_task,
# rxr_vlnce_english_task}.yaml, habitat-lab benchmark/nav/{objectnav/objectnav_hm3d,
# pointnav/pointnav_gibson}.yaml, task/objectnav.yaml and default_structured_configs.py.
# turn, step, radius, height, sliding, (width, height, hfov, camera height), (depth ...), success
PUBLISHED = {
    "r2r_ce": (15, 0.25, 0.1, 1.5, True, (224, 224, 90, 1.25), (256, 256, 90, 1.25), 3.0),
    "rxr_ce": (30, 0.25, 0.18, 0.88, False, (640, 480, 79, 0.88), (640, 480, 79, 0.88), 3.0),
    "objectnav_hm3d": (
        30,
        0.25,
        0.18,
        0.88,
        False,
        (640, 480, 79, 0.88),
        (640, 480, 79, 0.88),
        0.1,
    ),
    "pointnav": (10, 0.25, 0.1, 1.5, True, (256, 256, 90, 1.25), (256, 256, 90, 1.25), 0.2),
}


def composed(task, *overrides):
    return plain(compose_config("evaluate", [f"task={task}", "data.path=x", *overrides]))


def rule_of(options):
    return SuccessRule(options["success_m"], tuple(options["further_m"]), options["is_strict"])


def differences_of(config):
    options = config["evaluation"]
    task = TASKS[config["task"]["name"]]
    body = embodiment_of(config["simulators"])
    return task_differences(task, body, rule_of(options), options["max_primitives"])


def r2r_like(world: Path, folder: Path) -> Path:
    """The small world's episodes in the guise of R2R-CE v1-3: ids, scenes, headings, words."""
    source = world / "episodes" / "val_unseen" / "val_unseen.json.gz"
    content = json.loads(gzip.decompress(source.read_bytes()))
    for number, episode in enumerate(content["episodes"]):
        episode["episode_id"] = number
        episode["scene_id"] = "mp3d/" + episode["scene_id"]
        episode["start_rotation"] = [0.0, 0.0, 0.0, 1.0]
    path = folder / "val_unseen.json.gz"
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    return path


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_preset_has_exactly_the_public_settings(name):
    turn, step, radius, height, is_sliding, rgb, depth, success = PUBLISHED[name]
    config = composed(name)
    body = embodiment_of(config["simulators"])
    assert (body.turn_deg, body.step_m, body.radius_m, body.height_m) == (
        *(turn, step),
        *(radius, height),
    )
    assert body.is_sliding is is_sliding
    (camera,) = body.cameras
    shape = (camera.width_px, camera.height_px, camera.hfov_deg, camera.height_m)
    assert (shape, camera.pitch_deg, camera.has_depth) == (rgb, 0.0, False)
    options = config["evaluation"]
    assert (options["success_m"], options["max_primitives"]) == (success, 500)
    assert options["is_strict"] is True
    assert options["num_episodes"] is None
    sensor = TASKS[name].depth
    assert (sensor.width_px, sensor.height_px, sensor.hfov_deg, sensor.height_m) == depth
    assert differences_of(config) == []


def test_presets_and_tasks_are_the_same_set():
    folder = Path(__file__).parents[2] / "conf" / "task"
    assert {path.stem for path in folder.glob("*.yaml")} == set(TASKS) == set(PUBLISHED)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("simulators.embodiment.turn_deg=30", "turn_deg 15.0 != 30"),
        ("simulators.embodiment.step_m=0.5", "step_m 0.25 != 0.5"),
        ("simulators.embodiment.radius_m=0.2", "radius_m 0.1 != 0.2"),
        ("simulators.embodiment.height_m=0.88", "height_m 1.5 != 0.88"),
        ("simulators.embodiment.is_sliding=false", "is_sliding True != False"),
        ("simulators.embodiment.cameras.0.width_px=640", "camera 'front' width_px 224 != 640"),
        ("simulators.embodiment.cameras.0.hfov_deg=79", "camera 'front' hfov_deg 90.0 != 79"),
        ("simulators.embodiment.cameras.0.height_m=0.88", "camera 'front' height_m 1.25 != 0.88"),
        ("simulators.embodiment.cameras.0.pitch_deg=-15", "camera 'front' pitch_deg 0.0 != -15"),
        ("simulators.embodiment.cameras.0.has_depth=true", "camera 'front' width_px 256 != 224"),
        ("evaluation.success_m=1.0", "success_m 3.0 != 1.0"),
        ("evaluation.is_strict=false", "is_strict True != False"),
        ("evaluation.max_primitives=200", "max_primitives 500 != 200"),
    ],
)
def test_every_changed_value_is_named(override, said):
    found = differences_of(composed("r2r_ce", override))
    assert any(text.startswith(said) for text in found), found


def test_the_public_depth_sensor_may_be_added_to_the_rgb_camera():
    config = composed("r2r_ce")
    body = embodiment_of(config["simulators"])
    task = TASKS["r2r_ce"]
    both = replace(body, cameras=(*body.cameras, task.depth))
    assert task_differences(task, both, rule_of(config["evaluation"]), 500) == []


def test_data_state_the_body_they_were_made_for(world, tmp_path):
    assert stated_body(str(r2r_like(world, tmp_path)), "val_unseen")[0] == "r2r_ce"
    houses = world / "episodes" / "val_unseen" / "val_unseen.json.gz"
    assert stated_body(str(houses), "val_unseen") is None
    episode = {"episode_id": "1", "scene_id": "mp3d/a/a.glb", "start_position": [0, 0, 0]}
    for name, extra in {
        "rxr_ce": {"instruction": {"instruction_text": "go", "language": "te-IN"}},
        "objectnav": {"object_category": "chair"},
        "pointnav": {"goals": [{"position": [1, 0, 0]}]},
    }.items():
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps({"episodes": [{**episode, **extra}]}))
        found = stated_body(str(path), "val")
        assert found is not None
        assert (found[0], found[1].turn_deg) == (name, 10.0 if name == "pointnav" else 30.0)


def test_turn_angle_of_the_data_15_of_the_evaluation_30_is_refused_unless_overridden(
    world, tmp_path
):
    data = r2r_like(world, tmp_path)
    overrides = [
        f"data.episodes={data}",
        f"data.scenes={world}/scenes",
        "evaluation.rows=[random]",
        "evaluation.num_episodes=2",
        "evaluation.max_primitives=8",
    ]
    with pytest.raises(
        UserError, match=r"data r2r_ce: turn_deg 15\.0 != 30\.0.*task=r2r_ce"
    ) as caught:
        evaluate_from(evaluate_config(world, tmp_path / "out", *overrides))
    assert "radius_m 0.1 != 0.18" in str(caught.value)
    assert not (tmp_path / "out").exists()
    allowed = [*overrides, "evaluation.allow_mismatch=true"]
    assert evaluate_from(evaluate_config(world, tmp_path / "out", *allowed)) == 0
    run = json.loads((tmp_path / "out" / "report.json").read_text())["run"]
    assert "data r2r_ce: turn_deg 15.0 != 30.0" in run["differs_from_task_or_data"]
    assert "Evaluated under other conditions" in (tmp_path / "out" / "report.html").read_text()


def test_goals_of_another_radius_than_the_task_counts_are_refused(world, tmp_path):
    data = r2r_like(world, tmp_path)
    config = composed("r2r_ce", f"data.episodes={data}")
    body, rule = embodiment_of(config["simulators"]), rule_of(config["evaluation"])
    near = [made_episode("1", goals=(Goal((0.0, 0.0, 5.0), 1.0),))]
    with pytest.raises(UserError, match=r"goals of the data: radius 1 != success_m 3"):
        refuse_other_conditions(config, near, body, rule)
    assert refuse_other_conditions(config, [made_episode("1")], body, rule) == []


def test_recording_for_a_task_with_another_body_is_refused(world, capsys):
    words = ["task=pointnav", f"data.path={world}", "data.split=val_unseen"]
    assert run_command("record", *words, "simulators.embodiment.turn_deg=30") == 2
    assert "task=pointnav: its body is another" in (line := capsys.readouterr().err)
    assert "turn_deg 10.0 != 30" in line


@pytest.mark.parametrize("name", PUBLISHED)
def test_recording_for_a_task_needs_no_more_than_its_name(world, tmp_path, name):
    """A label reaches over a half turn and a decision's steps; STOP is the task's success."""
    source = f"{world}/episodes/val_unseen/val_unseen.json.gz"
    words = [f"task={name}", f"data.path={world}", "data.split=val_unseen", "num_workers=0"]
    words += [f"paths.output_dir={tmp_path}/out", f"data.recorded={tmp_path}/set"]
    words += [f"data.episodes={source}", f"data.scenes={world}/scenes", "record.num_episodes=1"]
    assert run_command("record", *words, "data.ground_truth=null") == 0
    info = json.loads((tmp_path / "set" / "meta" / "info.json").read_text())
    assert info["total_episodes"] == 1
    about, (turn, _, _, _, _, (width, *_), _, success) = info["vla_nav"], PUBLISHED[name]
    assert about["embodiment"]["turn_deg"] == turn
    assert about["embodiment"]["cameras"][0]["width_px"] == width
    (walked,) = LeRobotDataset(tmp_path / "set")
    assert walked.steps[-1].executed[-1] == STOP
    simulator = MeshSimulator(TASKS[name].body)
    simulator.load_scene(str(world / "scenes" / walked.scene_id))
    goals = [goal.position for goal in walked.goals]
    assert simulator.geodesic_distance(walked.steps[-1].pose.position, goals) < success


def test_a_task_on_its_own_data_needs_no_override(world, tmp_path):
    data = r2r_like(world, tmp_path)
    config = composed("r2r_ce", f"data.episodes={data}")
    body = embodiment_of(config["simulators"])
    assert refuse_other_conditions(config, (), body, rule_of(config["evaluation"])) == []
    other = composed("rxr_ce", f"data.episodes={data}")
    with pytest.raises(UserError, match=r"data r2r_ce: .*take task=r2r_ce"):
        refuse_other_conditions(
            other, (), embodiment_of(other["simulators"]), rule_of(other["evaluation"])
        )


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("config", r"the policy was trained under other conditions .*turn_deg 30\.0 != 15\.0"),
        ("checkpoint", r"task r2r_ce: turn_deg 15\.0 != 30\.0.*data r2r_ce: turn_deg 15\.0 != 30"),
    ],
)
def test_a_checkpoint_of_another_body_is_refused_whichever_body_is_asked_for(
    world, tiny_policy, tmp_path, body, said
):
    config = composed(
        "r2r_ce",
        f"data.path={world}",
        f"data.episodes={r2r_like(world, tmp_path)}",
        "data.ground_truth=null",
        f"paths.output_dir={tmp_path}/out",
        f"checkpoint={tiny_policy}",
        "evaluation.rows=[policy]",
        "evaluation.decision=primitive",
        f"evaluation.embodiment={body}",
        "evaluation.num_threads=1",
        "num_workers=0",
    )
    with pytest.raises(UserError, match=said):
        evaluate_from(config)
    assert not (tmp_path / "out").exists()


def test_the_command_refuses_a_changed_task_in_one_line(world, tmp_path, capsys):
    code = run_command(
        "evaluate",
        "task=r2r_ce",
        f"data.path={world}",
        f"data.episodes={r2r_like(world, tmp_path)}",
        "data.ground_truth=null",
        f"paths.output_dir={tmp_path}/out",
        "evaluation.rows=[random]",
        SMALL_CAMERA,
    )
    assert code == 2
    (line,) = [x for x in capsys.readouterr().err.splitlines() if x.startswith("vla-nav")]
    assert "task r2r_ce: camera 'front' width_px 224 != 16" in line
    assert "evaluation.allow_mismatch=true" in line


def test_an_unknown_task_is_one_line(capsys):
    assert run_command("evaluate", "task=r2r", "data.path=x") == 2
    assert "r2r_ce" in capsys.readouterr().err


@pytest.mark.habitat
def test_the_public_task_is_played_in_habitat_and_not_compared_with_mesh(world, tmp_path, capsys):
    data = r2r_like(world, tmp_path)
    for backend, python in (("habitat", os.environ["VLA_NAV_HABITAT_PYTHON"]), ("mesh", "null")):
        words = [
            "task=r2r_ce",
            f"simulators={backend}",
            f"simulators.python={python}",
            f"data.path={world}",
            f"data.episodes={data}",
            "data.ground_truth=null",
            f"paths.output_dir={tmp_path}/{backend}",
            "evaluation.rows=[expert]",
            "evaluation.num_episodes=4",
            "num_workers=1",
        ]
        assert run_command("evaluate", *words) == 0
        report = json.loads((tmp_path / backend / "report.json").read_text())
        assert report["run"]["differs_from_task_or_data"] == []
        assert report["run"]["backend"] == backend
        assert bool(report["run"]["simulator_version"]) == (backend == "habitat")
        assert report["rows"][0]["sr"] == 1.0
    pair = f"compare.runs=[{tmp_path}/habitat,{tmp_path}/mesh]"
    words = [pair, "compare.rows=[expert]", f"paths.output_dir={tmp_path}/out"]
    assert run_command("compare", *words) == 2
    assert "do not belong in one table (backends: backend habitat in" in capsys.readouterr().err
    assert run_command("compare", *words, "compare.allow=[backends]") == 0
