"""Several seeds: the same episodes, sampled anew, a folder each, one line of a comparison."""

import json

import pytest
from worlds import SMALL_CAMERA, evaluate_config, results_of, run_command

from vla_nav.errors import UserError
from vla_nav.evaluation.runs import evaluate_from


def overrides(policy, *more):
    return [
        f"checkpoint={policy}",
        "evaluation.rows=[policy]",
        "evaluation.decision=primitive",
        "evaluation.num_episodes=4",
        "evaluation.max_primitives=10",
        *more,
    ]


def walks(folder):
    return {key: record["primitives"] for key, record in results_of(folder).items()}


def test_seeds_sample_the_same_episodes_anew_and_the_same_seed_alike(world, tiny_policy, tmp_path):
    found = {}
    for name, seed, temperature in (
        ("a", 1, 1.0),
        ("b", 2, 1.0),
        ("again", 1, 1.0),
        ("greedy", 1, 0.0),
        ("greedy2", 2, 0.0),
    ):
        more = [f"seed={seed}", f"evaluation.temperature={temperature}"]
        config = evaluate_config(world, tmp_path / name, *overrides(tiny_policy, *more))
        assert evaluate_from(config) == 0
        found[name] = walks(tmp_path / name)
    assert found["a"].keys() == found["b"].keys()
    assert found["a"] != found["b"]
    assert found["a"] == found["again"]
    assert found["greedy"] == found["greedy2"]
    run = json.loads((tmp_path / "a" / "run.json").read_text())
    assert (run["temperature"], run["seed"]) == (1.0, 1)


def test_another_selection_is_asked_for_by_its_own_seed(world, tmp_path):
    chosen = []
    for number in (0, 5):
        options = ["evaluation.num_episodes=4", "evaluation.rows=[random]"]
        options += [f"evaluation.selection_seed={number}", f"seed={number}"]
        folder = tmp_path / str(number)
        assert evaluate_from(evaluate_config(world, folder, *options)) == 0
        chosen.append({key[1] for key in results_of(folder)})
    assert chosen[0] != chosen[1]


def test_a_temperature_below_zero_is_named(world, tiny_policy, tmp_path):
    cold = overrides(tiny_policy, "evaluation.temperature=-1.0")
    with pytest.raises(UserError, match=r"evaluation\.temperature=-1\.0: allowed: 0 and more"):
        evaluate_from(evaluate_config(world, tmp_path, *cold))


def test_a_sweep_over_seeds_is_one_line_of_a_comparison(world, tiny_policy, tmp_path, capsys):
    sweep = [
        "-m",
        "seed=0,1,2",
        "evaluation.temperature=1.0",
        f"data.path={world}",
        f"paths.output_dir={tmp_path}/sweep",
        "num_workers=0",
        "evaluation.num_threads=1",
        SMALL_CAMERA,
    ]
    assert run_command("evaluate", *overrides(tiny_policy, *sweep)) == 0
    _, end = capsys.readouterr().out.split("the sweep's evaluations")  # after the jobs' own tables
    for seed in (0, 1, 2):
        assert f" seed={seed} " in end
        assert f"report: {tmp_path}/sweep/{seed}/report.html" in end
    compare = [f"compare.runs=[{tmp_path}/sweep]", f"paths.output_dir={tmp_path}/out"]
    assert run_command("compare", *compare) == 0
    content = json.loads((tmp_path / "out" / "compare.json").read_text())
    (line,) = content["lines"]
    assert (line["label"], line["num_runs"], line["n"]) == ("sweep", 3, 12)
    assert not any("does the same for every seed" in note for note in content["notes"])
    reports = [
        json.loads((tmp_path / "sweep" / str(seed) / "report.json").read_text())["rows"][0]
        for seed in (0, 1, 2)
    ]
    ne = line["measures"]["ne_m"]
    assert ne["by_run"] == pytest.approx([row["ne_m"] for row in reports])
    assert ne["std"] > 0
