"""`vla-nav compare`: what may stand in one table, what is refused, and what the table says."""

import json
import shutil

import pytest
from worlds import evaluate_config, run_command

from vla_nav.errors import UserError
from vla_nav.evaluation.comparison import ALLOWED, KINDS, refuse_mixing
from vla_nav.evaluation.comparison_lines import compare
from vla_nav.evaluation.comparison_runs import read_groups, rows_of
from vla_nav.evaluation.runs import evaluate_from


@pytest.fixture(scope="module")
def run(world, tmp_path_factory):
    """A finished evaluation of two rows."""
    folder = tmp_path_factory.mktemp("compared") / "first"
    assert evaluate_from(evaluate_config(world, folder)) == 0
    return folder


def copied(run, folder, *, facts=None, records=None, drop=0):
    """A copy of a run with other facts (dotted keys), records edited, the last ones dropped."""
    shutil.copytree(run, folder)
    about = json.loads((folder / "run.json").read_text())
    for key, value in (facts or {}).items():
        node, *rest = key.split(".")
        (about[node] if rest else about)[rest[0] if rest else node] = value
    (folder / "run.json").write_text(json.dumps(about))
    (path,) = folder.glob("results-*.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if records is not None:
            records(line)
    kept = lines[: len(lines) - drop]
    path.write_text("".join(json.dumps(line) + "\n" for line in kept))
    return folder


def checked(*folders, rows=("expert",), allow=()):
    groups = read_groups([str(folder) for folder in folders])
    return groups, refuse_mixing(groups, rows_of(groups, rows), allow)


def command(tmp_path, *folders, options=()):
    return run_command(
        "compare",
        f"compare.runs=[{','.join(map(str, folders))}]",
        f"paths.output_dir={tmp_path}/out",
        *options,
    )


def table(tmp_path):
    return json.loads((tmp_path / "out" / "compare.json").read_text())


CAMERA = {"name": "front", "width_px": 224, "height_px": 224, "hfov_deg": 79.0}

PUBLIC = dict.fromkeys(("sr", "osr", "osr_2020", "spl", "ne_m", "ndtw", "ndtw_2020"), 1.0)

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


def test_the_table_has_the_numbers_of_the_reports(run, tmp_path, capsys):
    def fail_half(record):
        if int(record["episode_id"]) % 2:
            record.update(sr=0.0, spl=0.0)

    worse = copied(run, tmp_path / "worse", records=fail_half)
    assert command(tmp_path, run, worse, options=["compare.rows=[random,expert]"]) == 0
    report = {row["name"]: row for row in json.loads((run / "report.json").read_text())["rows"]}
    found = table(tmp_path)
    assert [(line["label"], line["row"]) for line in found["lines"]] == [
        ("first", "random"),
        ("worse", "random"),
        ("first", "expert"),
        ("worse", "expert"),
    ]
    for line in found["lines"]:
        if line["label"] == "first":
            own = report[line["row"]]
            assert line["n"] == own["n"] == 15
            for name, value in line["measures"].items():
                assert value["mean"] == pytest.approx(own[name]), name
            sr = line["measures"]["sr"]
            assert (sr["low"], sr["high"]) == pytest.approx((own["sr_low"], own["sr_high"]))
    expert, broken = found["lines"][2:]
    assert expert["gain"] is None
    assert broken["gain"]["mean"] == pytest.approx(broken["measures"]["sr"]["mean"] - 1.0)
    assert broken["gain"]["high"] < 0
    text = (tmp_path / "out" / "compare.md").read_text()
    assert "| first | mesh | expert | 15 | 1.00 [1.00, 1.00] |" in text
    assert "houses val_unseen, mesh, success at 3 m, execution discrete" in text
    assert "first" in (shown := capsys.readouterr().out)
    assert "…" not in shown


def test_what_was_allowed_to_differ_stands_beneath_the_table(run, tmp_path, capsys):
    other = copied(run, tmp_path / "other", facts={"backend": "habitat"})
    options = ["compare.rows=[expert]"]
    assert command(tmp_path, run, other, options=options) == 2
    (line,) = [x for x in capsys.readouterr().err.splitlines() if x.startswith("vla-nav")]
    assert "backends: backend mesh in" in line
    assert not (tmp_path / "out" / "compare.json").exists()
    assert command(tmp_path, run, other, options=[*options, "compare.allow=[backends]"]) == 0
    text = (tmp_path / "out" / "compare.md").read_text()
    assert "NOT EQUAL, backends: backend mesh in" in text
    assert "houses val_unseen, habitat | mesh, success at 3 m" in text
    assert "| other | habitat | expert |" in text


def test_seeds_are_one_line_with_their_spread(world, run, tmp_path, capsys):
    seeds = tmp_path / "seeds"
    for seed in (0, 1, 2):
        rows = "evaluation.rows=[random]"
        config = evaluate_config(world, seeds / str(seed), f"seed={seed}", rows)
        assert evaluate_from(config) == 0
    options = ["compare.rows=[random]", "compare.labels=[chance,again]"]
    assert command(tmp_path, seeds, run, options=options) == 0
    chance, again = table(tmp_path)["lines"]
    assert (chance["num_runs"], chance["n"]) == (3, 45)
    own = [
        json.loads((seeds / str(seed) / "report.json").read_text())["rows"][0]["ne_m"]
        for seed in (0, 1, 2)
    ]
    ne = chance["measures"]["ne_m"]
    assert ne["by_run"] == pytest.approx(own)
    assert ne["mean"] == pytest.approx(sum(own) / 3)
    assert ne["std"] > 0
    assert ne["low"] < ne["mean"] < ne["high"]
    assert again["num_runs"] == 1
    assert " ± " in (tmp_path / "out" / "compare.md").read_text()
    assert "…" not in capsys.readouterr().out  # no number is cut off, however wide the table


def test_one_run_cannot_stand_in_a_line_twice(run, tmp_path):
    for name in ("0", "1"):
        copied(run, tmp_path / "seeds" / name, facts={"checkpoint": "c" * 32})
    with pytest.raises(UserError, match=r"seeds: .*have one seed and one checkpoint"):
        checked(tmp_path / "seeds")
    copied(run, tmp_path / "seeds" / "2", facts={"checkpoint": "c" * 32, "seed": 2})
    shutil.rmtree(tmp_path / "seeds" / "1")
    assert checked(tmp_path / "seeds")[1] == {}
    assert command(tmp_path, tmp_path / "seeds", options=["compare.rows=[expert]"]) == 0
    assert any("does the same for every seed" in note for note in table(tmp_path)["notes"])


def test_folders_of_seeds_are_read_in_the_order_of_their_numbers(run, tmp_path):
    for name in ("10", "2", "1"):
        copied(run, tmp_path / "seeds" / name)
    (group,) = read_groups([str(tmp_path / "seeds")])
    assert [one.folder.name for one in group.runs] == ["1", "2", "10"]


@pytest.mark.parametrize(
    ("counting", "n", "sr", "spl", "ne"),
    [
        ("exclude", 14, 1.0, 1.0, 1.0),
        ("failure", 15, 14 / 15, 14 / 15, 1.0),
        ("vlnce", 15, 14 / 15, "nan", "inf"),
        ("vlnce_2020", 15, 14 / 15, "nan", "inf"),
        ("internnav", 15, 14 / 15, 14 / 15, 1.0),
    ],
)
def test_every_line_is_counted_by_the_one_convention_asked_for(
    run, tmp_path, counting, n, sr, spl, ne
):
    def score(record):
        is_lost = record["episode_id"] == "0" or record["episode_id"].endswith("-0")
        value = None if is_lost else 1.0
        record.update(sr=value, osr=value, spl=value, ne_m=value, ndtw=value, sdtw=value)
        record["flag"] = "non_finite_geodesic" if is_lost else None
        record["public"] = {**PUBLIC, "sr": 0.0, "spl": "nan", "ne_m": "inf"} if is_lost else PUBLIC

    seen = {
        json.loads(x)["episode_id"] for x in next(run.glob("results-*")).read_text().splitlines()
    }
    assert sum(name == "0" or name.endswith("-0") for name in seen) == 1
    counted = copied(run, tmp_path / "counted", records=score)
    key = "flag_policy" if counting in ("exclude", "failure") else "convention"
    options = ["compare.rows=[expert]", f"compare.{key}={counting}"]
    assert command(tmp_path, counted, options=options) == 0
    (line,) = table(tmp_path)["lines"]
    assert (line["n"], line["num_flagged"]) == (n, 1)
    assert any(counting in note for note in table(tmp_path)["notes"])
    means = {name: value["mean"] for name, value in line["measures"].items()}
    assert means["sr"] == pytest.approx(sr)
    for name, wanted in (("spl", spl), ("ne_m", ne)):
        assert means[name] == (wanted if isinstance(wanted, str) else pytest.approx(wanted))


def test_an_unknown_way_of_counting_is_named(run, tmp_path, capsys):
    options = ["compare.rows=[expert]", "compare.convention=vlncee"]
    assert command(tmp_path, run, options=options) == 2
    assert "compare.convention 'vlncee' (did you mean 'vlnce'?)" in capsys.readouterr().err


def test_languages_have_lines_of_their_own_where_asked_for(run, tmp_path):
    names = ("en-US", "en-IN", "te-IN")

    def speak(record):
        record["language"] = names[len(record["episode_id"]) % 2]

    spoken = copied(run, tmp_path / "spoken", records=speak)
    groups, _ = checked(spoken)
    lines = compare(groups, ["expert"], counting="exclude", by_language=True, seed=0)
    by_name = {line.language: line.n for line in lines}
    assert by_name[""] == 15
    assert by_name["en"] == 15
    assert by_name["en-US"] + by_name["en-IN"] == 15
    plain = compare(groups, ["expert"], counting="exclude", by_language=False, seed=0)
    assert [line.language for line in plain] == [""]
