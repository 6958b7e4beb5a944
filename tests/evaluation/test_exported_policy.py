"""`evaluate` takes an exported folder as it takes the one that `train` wrote."""

import json

import pytest
from worlds import SMALL_CAMERA, results_of, run_command


@pytest.fixture(scope="module")
def exported(tiny_policy, tmp_path_factory):
    """`tiny_policy` through `vla-nav export`."""
    folder = tmp_path_factory.mktemp("export") / "tiny"
    assert run_command("export", f"checkpoint={tiny_policy}", f"paths.output_dir={folder}") == 0
    return folder


def evaluated(world, folder, checkpoint, *overrides):
    words = [
        f"checkpoint={checkpoint}",
        f"data.path={world}",
        f"paths.output_dir={folder}",
        "evaluation.num_episodes=4",
        "evaluation.rows=[policy]",
        "evaluation.decision=primitive",
        "evaluation.max_primitives=12",
        "num_workers=0",
        SMALL_CAMERA,
        *overrides,
    ]
    assert run_command("evaluate", *words) == 0
    return results_of(folder)


def test_the_folder_holds_the_policy_and_nothing_of_the_command(exported):
    names = {path.name for path in exported.iterdir()}
    assert {"config.json", "model.safetensors", "policy.json", "README.md"} <= names
    assert not [name for name in names if name.startswith(".") or name.endswith(".log")]


def test_both_layouts_walk_the_same_and_finish_each_others_evaluation(
    world, tiny_policy, exported, tmp_path
):
    whole = evaluated(world, tmp_path / "bundle", tiny_policy)
    assert len(whole) == 4
    assert evaluated(world, tmp_path / "hub", exported) == whole
    for shard, checkpoint in enumerate((tiny_policy, exported)):
        options = ["evaluation.num_shards=2", f"evaluation.shard={shard}"]
        shards = evaluated(world, tmp_path / "shards", checkpoint, *options)
    assert shards == whole
    runs = [json.loads((tmp_path / x / "run.json").read_text()) for x in ("bundle", "hub")]
    assert runs[0]["checkpoint"] == runs[1]["checkpoint"]


def test_a_second_export_into_the_folder_is_refused(tiny_policy, exported, capsys):
    words = [f"checkpoint={tiny_policy}", f"paths.output_dir={exported}"]
    assert run_command("export", *words) == 2
    assert "overwrite=true" in capsys.readouterr().err
    assert run_command("export", *words, "overwrite=true") == 0
