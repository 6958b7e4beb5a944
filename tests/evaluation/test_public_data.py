"""Episodes in the public layouts reach the evaluation: by scene, by role, without goals or text."""

import gzip
import json

import pytest
from worlds import evaluate_config, results_of, run_command

from vla_nav.commands.compose import compose_config, plain
from vla_nav.errors import UserError
from vla_nav.evaluation.runs import evaluate_from
from vla_nav.evaluation.selection import select
from vla_nav.evaluation.setup import episodes_digest, read_episodes


def written(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    return path


def house_episodes(world):
    source = world / "episodes" / "val_unseen" / "val_unseen.json.gz"
    return json.loads(gzip.decompress(source.read_bytes()))["episodes"]


@pytest.fixture(scope="module")
def objects(world, tmp_path_factory):
    """The small world as ObjectNav: goals by category, a file per scene."""
    root = tmp_path_factory.mktemp("objectnav")
    top = {"episodes": [], "category_to_task_category_id": {"tv_monitor": 0}}
    written(root / "val" / "val.json.gz", top)
    by_scene = {}
    for raw in house_episodes(world):
        by_scene.setdefault(raw["scene_id"], []).append(raw)
    for scene, raws in by_scene.items():
        file_name = scene.rsplit("/", 1)[-1]
        views = [{"agent_state": {"position": raws[0]["goals"][0]["position"]}}]
        thing = {"object_category": "tv_monitor", "position": [9, 9, 9], "view_points": views}
        episodes = [
            {
                "episode_id": str(number),
                "scene_id": scene,
                "start_position": raw["start_position"],
                "start_rotation": raw["start_rotation"],
                "object_category": "tv_monitor",
                "goals": [],
            }
            for number, raw in enumerate(raws)
        ]
        stem = file_name.removesuffix(".glb")
        table = {"episodes": episodes, "goals_by_category": {f"{file_name}_tv_monitor": [thing]}}
        written(root / "val" / "content" / f"{stem}.json.gz", table)
    return root


def composed(task, *overrides):
    return plain(compose_config("evaluate", [f"task={task}", *overrides]))


def test_the_layouts_of_the_presets_are_the_published_ones(objects):
    data = composed("objectnav_hm3d", f"data.path={objects}", "data.split=val")["data"]
    assert len(read_episodes(data)) == 15
    rxr = composed("rxr_ce", "data.path=RxR_VLNCE_v0")["data"]
    assert rxr["episodes"] == "RxR_VLNCE_v0/val_unseen/val_unseen_guide.json.gz"
    assert rxr["ground_truth"] == "RxR_VLNCE_v0/val_unseen/val_unseen_guide_gt.json.gz"
    followers = composed("rxr_ce", "data.path=x", "data.role=follower")["data"]
    assert followers["episodes"].endswith("_follower.json.gz")
    r2r = composed("r2r_ce", "data.path=R2R_VLNCE_v1-3_preprocessed")["data"]
    assert r2r["episodes"] == "R2R_VLNCE_v1-3_preprocessed/val_unseen/val_unseen.json.gz"
    assert r2r["ground_truth"] == "R2R_VLNCE_v1-3_preprocessed/val_unseen/val_unseen_gt.json.gz"


def test_objectnav_episodes_have_view_points_as_goals_and_a_text_to_read(objects):
    data = composed("objectnav_hm3d", f"data.path={objects}", "data.split=val")["data"]
    episodes = read_episodes(data)
    assert {episode.dataset for episode in episodes} == {"objectnav_hm3d"}
    assert {episode.instruction for episode in episodes} == {"find a tv monitor"}
    assert all(goal.radius_m == 0.1 for episode in episodes for goal in episode.goals)
    assert all(goal.position != (9.0, 9.0, 9.0) for episode in episodes for goal in episode.goals)


def test_the_digest_covers_the_files_of_the_scenes(objects, tmp_path):
    import shutil

    copy = shutil.copytree(objects, tmp_path / "copy")
    data = composed("objectnav_hm3d", f"data.path={copy}", "data.split=val")["data"]
    before = episodes_digest(data)
    assert before == episodes_digest({**data, "episodes": f"{objects}/val/val.json.gz"})
    victim = sorted((copy / "val" / "content").iterdir())[1]
    content = json.loads(gzip.decompress(victim.read_bytes()))
    content["episodes"][0]["start_position"][0] += 0.25
    written(victim, content)
    assert episodes_digest(data) != before


def test_a_task_without_reference_paths_is_evaluated(world, objects, tmp_path):
    overrides = [
        f"data.episodes={objects}/val/val.json.gz",
        "data.split=val",
        "evaluation.rows=[random,expert]",
        "evaluation.num_episodes=4",
        "evaluation.allow_mismatch=true",  # the houses' body, for small pictures
        "evaluation.success_m=1.0",
    ]
    assert evaluate_from(evaluate_config(world, tmp_path, *overrides)) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    expert = report["rows"][1]
    assert (expert["n"], expert["sr"], expert["ndtw"]) == (4, 1.0, None)
    assert expert["public"]["vlnce"]["ndtw"] is None
    assert all(record["ndtw"] is None for record in results_of(tmp_path).values())
    code = run_command(
        "compare",
        f"compare.runs=[{tmp_path}]",
        "compare.rows=[expert]",
        f"paths.output_dir={tmp_path}/compare",
    )
    assert code == 0
    assert "nDTW" not in (tmp_path / "compare" / "compare.md").read_text()


def test_the_public_task_plays_it_with_its_own_body(world, objects, tmp_path):
    overrides = [
        "task=objectnav_hm3d",
        f"data.path={objects}",
        "data.split=val",
        f"data.scenes={world}/scenes",
        f"paths.output_dir={tmp_path}",
        "evaluation.rows=[random]",
        "evaluation.num_episodes=2",
        "num_workers=0",
    ]
    assert run_command("evaluate", *overrides) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["run"]["task"] == "objectnav_hm3d"
    assert report["run"]["differs_from_task_or_data"] == []
    assert report["rows"][0]["n"] == 2


def test_a_test_split_without_goals_is_refused(world, tmp_path):
    raws = house_episodes(world)
    for raw in raws[:3]:
        del raw["goals"]
    path = written(tmp_path / "test.json.gz", {"episodes": raws})
    with pytest.raises(UserError, match=r"3 of 15 episodes have no goal .*validation split"):
        evaluate_from(evaluate_config(world, tmp_path / "out", f"data.episodes={path}"))
    assert not (tmp_path / "out").exists()


def test_an_empty_file_matches_no_episode(world, tmp_path):
    path = written(tmp_path / "val.json.gz", {"episodes": []})
    with pytest.raises(UserError, match="holds no episodes; nothing to evaluate"):
        evaluate_from(evaluate_config(world, tmp_path / "out", f"data.episodes={path}"))
    with pytest.raises(UserError, match="holds no episodes"):
        select([], source="x", seed=0)
