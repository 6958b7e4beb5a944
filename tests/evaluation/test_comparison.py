"""`vla-nav compare`: what may stand in one table, and what is refused."""

import json

import pytest
from compared_runs import checked, command, copied, table
from worlds import evaluate_config

from vla_nav.errors import UserError
from vla_nav.evaluation.comparison import ALLOWED, KINDS
from vla_nav.evaluation.comparison_runs import read_groups, rows_of
from vla_nav.evaluation.runs import evaluate_from


@pytest.fixture(scope="module")
def run(world, tmp_path_factory):
    """A finished evaluation of two rows."""
    folder = tmp_path_factory.mktemp("compared") / "first"
    assert evaluate_from(evaluate_config(world, folder)) == 0
    return folder


CAMERA = {"name": "front", "width_px": 224, "height_px": 224, "hfov_deg": 79.0}

DIFFERENCES = [
    ("backend", "habitat", "backends"),
    ("simulator.cell_m", 0.05, "backends"),
    ("simulator_version", "0.2.5", "backends"),
    ("dataset", "r2r_ce", "datasets"),
    ("role", "follower", "datasets"),
    ("split", "val_seen", "splits"),
    ("episodes", "0" * 32, "splits"),
    ("ground_truth", "0" * 32, "references"),
    ("embodiment.cameras", [CAMERA], "sensors"),
    ("embodiment.turn_deg", 15.0, "bodies"),
    ("embodiment.step_m", 0.5, "bodies"),
    ("embodiment.radius_m", 0.1, "bodies"),
    ("embodiment.height_m", 0.88, "bodies"),
    ("embodiment.is_sliding", False, "bodies"),
    ("success.success_m", 1.0, "radii"),
    ("success.is_strict", False, "radii"),
    ("max_primitives", 200, "limits"),
    ("execution", "geodesic", "executions"),
    ("differs_from_training", ["turn_deg 15 != 30"], "conditions"),
    ("differs_from_task_or_data", ["turn_deg 15 != 30"], "conditions"),
    ("a_key_of_the_future", 1, "other"),
]


@pytest.mark.parametrize(("key", "value", "kind"), DIFFERENCES)
def test_what_does_not_compare_is_refused_and_can_be_allowed_by_name(
    run, tmp_path, key, value, kind
):
    other = copied(run, tmp_path / "other", facts={key: value})
    with pytest.raises(UserError, match=rf"do not belong in one table \({kind}: {key}") as caught:
        checked(run, other)
    assert f"compare.allow=[{kind}]" in str(caught.value)
    assert "first" in str(caught.value)
    with pytest.raises(UserError, match=kind):
        checked(run, other, allow=[name for name in ALLOWED if name != kind])
    _, mixed = checked(run, other, allow=[kind])
    assert list(mixed) == [kind]


def test_every_kind_of_difference_is_tried_here():
    tried = {key for key, _, kind in DIFFERENCES if kind != "other"}
    assert tried - {"simulator.cell_m"} == set(KINDS) - {"simulator", "temperature"}


def test_policies_at_other_temperatures_are_refused_and_told_when_allowed(run, tmp_path, capsys):
    def is_played_by_a_network(record):
        record["row"] = "policy" if record["row"] == "random" else record["row"]

    one = copied(run, tmp_path / "one", records=is_played_by_a_network)
    two = copied(run, tmp_path / "two", records=is_played_by_a_network, facts={"temperature": 0.7})
    assert checked(one, two)[1] == {}  # the expert has no temperature
    with pytest.raises(UserError, match=r"decoding: temperature 0\.0 in .*one, 0\.7 in .*two"):
        checked(one, two, rows=("policy",))
    assert command(tmp_path, one, two) == 2
    assert "compare.allow=[decoding]" in capsys.readouterr().err
    assert command(tmp_path, one, two, options=["compare.allow=[decoding]"]) == 0
    assert any(note.startswith("NOT EQUAL, decoding") for note in table(tmp_path)["notes"])


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("decision", "primitive", "primitive | turn_then_forward(4)"),
        ("deterministic", True, "False | True"),
    ],
)
def test_other_ways_of_deciding_stand_beneath_the_table(run, tmp_path, key, value, said):
    other = copied(run, tmp_path / "other", facts={key: value})
    assert command(tmp_path, run, other, options=["compare.rows=[expert]"]) == 0
    assert f"{key} differs, which is allowed: {said}" in table(tmp_path)["notes"]
    assert command(tmp_path, run, options=["compare.rows=[expert]"]) == 0
    assert not any("differs, which" in note for note in table(tmp_path)["notes"])


@pytest.mark.parametrize(
    ("key", "value"), [("checkpoint", "f" * 32), ("seed", 7), ("decision", "primitive")]
)
def test_another_policy_or_seed_may_stand_beside_it(run, tmp_path, key, value):
    other = copied(run, tmp_path / "other", facts={key: value})
    assert checked(run, other)[1] == {}


def test_what_matters_to_one_row_alone_is_free_for_the_others(run, tmp_path):
    other = copied(run, tmp_path / "other", facts={"chance_stop_probability": 0.5})
    assert checked(run, other)[1] == {}
    with pytest.raises(UserError, match=r"other: chance_stop_probability 0\.07 in"):
        checked(run, other, rows=("random", "expert"))


def test_runs_of_a_version_before_executions_count_as_discrete(run, tmp_path):
    old = copied(run, tmp_path / "old")
    about = json.loads((old / "run.json").read_text())
    for key in ("execution", "task", "differs_from_task_or_data"):
        about.pop(key, None)
    (old / "run.json").write_text(json.dumps(about))
    assert checked(run, old)[1] == {}


def test_episodes_and_languages_must_be_the_same(run, tmp_path):
    def speak(record):
        record["language"] = "en-IN"

    def rename(record):
        record["episode_id"] = f"x{record['episode_id']}"

    spoken = copied(run, tmp_path / "spoken", records=speak)
    with pytest.raises(UserError, match=r"languages: none in .*first, en-IN in .*spoken"):
        checked(run, spoken)
    others = copied(run, tmp_path / "others", records=rename)
    with pytest.raises(UserError, match=r"episodes: 15 only in .*first, 15 only in .*others"):
        checked(run, others)


def test_an_unfinished_run_is_refused(run, tmp_path):
    short = copied(run, tmp_path / "short", drop=2)
    with pytest.raises(UserError, match=r"incomplete: .*short has \d+ of 15 episodes of row"):
        checked(run, short, rows=("random", "expert"))
    started = copied(run, tmp_path / "started")
    (started / "report.json").unlink()
    with pytest.raises(UserError, match=r"incomplete: .*started has no report\.json"):
        checked(run, started)


def test_folders_rows_labels_and_kinds_that_are_not_there_are_named(run, tmp_path):
    with pytest.raises(UserError, match=r"compare\.runs=\[\]"):
        read_groups([])
    with pytest.raises(UserError, match=r"nowhere is no folder of an evaluation"):
        read_groups([str(tmp_path / "nowhere")])
    with pytest.raises(UserError, match=r"compare\.labels: 1 labels for 2 runs"):
        read_groups([str(run), str(run)], ["a"])
    with pytest.raises(UserError, match=r"names a folder twice"):
        read_groups([str(run), str(run)])
    with pytest.raises(UserError, match=r"has no row 'policy'; it has random, expert"):
        rows_of(read_groups([str(run)]), ["policy"])
    with pytest.raises(UserError, match=r"compare\.allow entry 'sensor' \(did you mean 'sensors'"):
        checked(run, allow=["sensor"])
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "run.json").write_text('{"data": "x"}')
    with pytest.raises(UserError, match=r"run\.json: not of an evaluation"):
        read_groups([str(tmp_path / "train")])
