"""The table of `vla-nav compare`: numbers, seeds as one line, conventions, languages."""

import json
import shutil

import pytest
from compared_runs import checked, command, copied, table
from worlds import evaluate_config

from vla_nav.errors import UserError
from vla_nav.evaluation.comparison_lines import compare
from vla_nav.evaluation.comparison_runs import read_groups
from vla_nav.evaluation.runs import evaluate_from

PUBLIC = dict.fromkeys(("sr", "osr", "osr_2020", "spl", "ne_m", "ndtw", "ndtw_2020"), 1.0)


@pytest.fixture(scope="module")
def run(world, tmp_path_factory):
    """A finished evaluation of two rows."""
    folder = tmp_path_factory.mktemp("compared") / "first"
    assert evaluate_from(evaluate_config(world, folder)) == 0
    return folder


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
