"""Public conventions: what VLN-CE and InternNav make of the same episodes (case 5)."""

import gzip
import json
import math

import numpy as np
import pytest
from worlds import evaluate_config, results_of

from vla_nav.evaluation.aggregate import aggregate
from vla_nav.evaluation.conventions import public_aggregate, public_scores
from vla_nav.evaluation.metrics import NON_FINITE, SuccessRule, episode_metrics
from vla_nav.evaluation.runs import evaluate_from

RULE = SuccessRule()


def scored(positions, distances, *, has_stopped, reference=((0, 0, 0), (0, 0, 5)), rule=RULE):
    return episode_metrics(
        np.array(positions, dtype=float),
        distances,
        np.array(reference, dtype=float).reshape(-1, 3),
        has_stopped=has_stopped,
        num_collisions=0,
        rule=rule,
    )


def record_of(metrics, scene="a"):
    return {**metrics.as_dict(), "scene_id": scene, "num_decisions": 3}


def row_of(records, policy="exclude"):
    return aggregate("x", records, num_expected=len(records), flag_policy=policy, seed=0)


def straight(num_steps, *, step=0.25):
    return [(0.0, 0.0, step * i) for i in range(num_steps + 1)]


def test_the_unreachable_episode_of_401_steps_is_flagged_and_nan_under_the_public_convention():
    places = straight(20) + [(0.0, 0.0, 5.0)] * 380  # it turned on the spot for long
    lost = scored(places, [math.inf] * 401, has_stopped=True)
    assert lost.steps == 401  # 400 moves and STOP
    assert (lost.flag, lost.sr, lost.spl, lost.ne_m) == (NON_FINITE, None, None, None)
    assert lost.public["sr"] == 0.0
    assert lost.public["osr"] == 0.0
    assert lost.public["ne_m"] == "inf"
    assert lost.public["spl"] == "nan"  # 0 * (inf / inf)
    assert 0 < lost.public["ndtw"] < 1
    json.dumps(lost.as_dict(), allow_nan=False)

    won = scored(straight(20), [5 - 0.25 * i for i in range(21)], has_stopped=True)
    row = row_of([record_of(won), record_of(won, "b"), record_of(lost, "b")])
    assert (row["n"], row["num_flagged"], row["sr"], row["ne_m"]) == (2, 1, 1.0, 0.0)
    vlnce, internnav = row["public"]["vlnce"], row["public"]["internnav"]
    assert (vlnce["n"], vlnce["sr"]) == (3, pytest.approx(2 / 3))
    assert (vlnce["spl"], vlnce["ne_m"]) == ("nan", "inf")
    assert (internnav["n"], internnav["sr"]) == (3, pytest.approx(2 / 3))
    assert internnav["spl"] == pytest.approx(2 / 3)  # NaN counted as 0, the others are 1
    assert internnav["ne_m"] == 0.0  # over the two finite ones
    # Calling it a failure gives the public SR, without turning the distance into a number.
    failures = row_of([record_of(won), record_of(lost)], policy="failure")
    assert (failures["sr"], failures["spl"], failures["ne_m"]) == (0.5, 0.5, 0.0)


def test_an_end_off_the_mesh_is_a_failure_and_an_infinite_error_there():
    ended = scored(straight(2), [5.0, 2.0, math.inf], has_stopped=True)
    assert ended.flag == NON_FINITE
    assert ended.public == {
        "sr": 0.0,
        "osr": 1.0,  # it was within 3 m on the way
        "osr_2020": 1.0,
        "spl": 0.0,  # 0 * 5 / max(5, 0.5)
        "ne_m": "inf",
        "ndtw": ended.public["ndtw"],
        "ndtw_2020": ended.public["ndtw_2020"],
    }


def test_finite_episodes_agree_with_our_own_scores_and_without_the_start_before_2021():
    positions = straight(20)
    distances = [5 - 0.25 * i for i in range(21)]
    behind = ((0, 0, -1), (0, 0, 5))  # the start is off the reference by a metre
    own = scored(positions, distances, has_stopped=True, reference=behind)
    assert own.public == {
        "sr": own.sr,
        "osr": own.osr,
        "osr_2020": own.osr_public,
        "spl": own.spl,
        "ne_m": own.ne_m,
        "ndtw": own.ndtw,
        "ndtw_2020": own.ndtw_public,
    }
    assert own.ndtw != own.ndtw_public
    public = row_of([record_of(own)])["public"]
    assert (public["vlnce"]["ndtw"], public["vlnce"]["sdtw"]) == (own.ndtw, own.sdtw)
    assert public["vlnce_2020"]["ndtw"] == public["vlnce_2020"]["sdtw"] == own.ndtw_public
    assert public["internnav"] == public["vlnce"]
    away = scored(straight(8), [2.9 + 0.25 * i for i in range(9)], has_stopped=False)
    assert (away.osr, away.public["osr"]) == (1.0, 1.0)
    assert away.public["osr_2020"] == 0.0  # only the start was within 3 m


@pytest.mark.parametrize(
    ("distances", "path_m", "has_stopped"),
    [
        ([8.0, 5.0, 2.0], 6.0, True),
        ([2.0, 5.0, 4.0], 6.0, True),
        ([8.0, 5.0, 2.0], 9.5, True),
        ([8.0, 5.0, 3.0], 6.0, True),  # exactly at the threshold: a failure there
        ([8.0, 2.0, 2.0], 6.0, False),
        ([math.inf, math.inf, math.inf], 6.0, True),
        ([math.inf, 2.0, 2.0], 6.0, True),
        ([8.0, 2.0, math.inf], 6.0, True),
    ],
)
def test_scores_are_those_of_the_published_formulas(distances, path_m, has_stopped):
    got = public_scores(
        np.array(distances), path_m, 0.5, 0.25, has_stopped=has_stopped, success_m=3.0
    )
    success = 1.0 if has_stopped and distances[-1] < 3.0 else 0.0
    with np.errstate(invalid="ignore"):
        quotient = np.float64(distances[0]) / max(distances[0], path_m)
        spl = success * quotient
    oracle, later = 0, 0
    for number, distance in enumerate(distances):
        oracle = 1 if oracle or distance < 3.0 else 0
        later = 1 if later or (number > 0 and distance < 3.0) else 0
    assert (got["sr"], got["osr"], got["osr_2020"]) == (success, oracle, later)
    assert (got["ne_m"], got["ndtw"], got["ndtw_2020"]) == (distances[-1], 0.5, 0.25)
    assert got["spl"] == pytest.approx(spl, nan_ok=True)


def test_a_tie_is_a_failure_in_public_code_whatever_is_strict_says():
    rule = SuccessRule(3.0, (), is_strict=False)
    tie = scored(straight(8), [5 - 0.25 * i for i in range(9)], has_stopped=True, rule=rule)
    assert (tie.ne_m, tie.sr, tie.public["sr"]) == (3.0, 1.0, 0.0)


def test_a_task_without_a_reference_path_has_no_ndtw_and_no_mean_of_it():
    found = scored(straight(2), [0.5, 0.3, 0.05], has_stopped=True, reference=())
    lost = scored(straight(2), [math.inf] * 3, has_stopped=True, reference=())
    assert (found.sr, found.ndtw, found.sdtw, found.public["ndtw"]) == (1.0, None, None, None)
    for policy in ("exclude", "failure"):
        row = row_of([record_of(found), record_of(lost, "b")], policy)
        assert (row["ndtw"], row["sdtw"], row["public"]["vlnce"]["ndtw"]) == (None, None, None)
        assert row["sr"] == (1.0 if policy == "exclude" else 0.5)


def test_nothing_has_no_public_scores_and_old_records_neither():
    assert public_aggregate([]) is None
    assert public_aggregate([{"sr": 1.0}]) is None


def test_a_goal_on_another_island_is_counted_in_every_convention_of_the_report(
    world, tmp_path, capsys
):
    source = world / "episodes" / "val_unseen" / "val_unseen.json.gz"
    content = json.loads(gzip.decompress(source.read_bytes()))
    content["episodes"][0]["goals"][0]["position"] = [500.0, 0.0, 500.0]
    episodes = tmp_path / "val_unseen.json.gz"
    episodes.write_bytes(gzip.compress(json.dumps(content).encode()))
    out = tmp_path / "out"
    options = [f"data.episodes={episodes}", "evaluation.rows=[expert]"]
    assert evaluate_from(evaluate_config(world, out, *options)) == 0
    report = json.loads((out / "report.json").read_text())
    (expert,) = report["rows"]
    assert (expert["n"], expert["num_flagged"], expert["sr"]) == (14, 1, 1.0)
    assert expert["public"]["vlnce"]["n"] == 15
    assert expert["public"]["vlnce"]["sr"] == pytest.approx(14 / 15)
    assert expert["public"]["vlnce"]["ne_m"] == "inf"
    assert expert["public"]["vlnce"]["spl"] == "nan"
    assert math.isfinite(expert["public"]["internnav"]["ne_m"])
    assert (
        "expert: 1 of 15 episodes have no finite geodesic (exclude); as VLN-CE counts all: "
        "SR 0.93, OSR 0.93, SPL nan, NE inf, nDTW"
    ) in capsys.readouterr().out
    flagged = [record for record in results_of(out).values() if record["flag"]]
    assert [record["public"]["ne_m"] for record in flagged] == ["inf"]
    page = (out / "report.html").read_text()
    assert "As public code counts" in page
    assert "<td>nan</td>" in page
    assert "<td>inf</td>" in page
