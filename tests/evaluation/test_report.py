"""The report's files: keys that programs rely on, and text that cannot break the page."""

import json
import re

from vla_nav.evaluation.report import write_report
from vla_nav.evaluation.slots import Timing

FACTS = {
    "dataset": "houses <b>",
    "split": "val_unseen",
    "backend": "mesh",
    "success": {"success_m": 3.0},
    "differs_from_training": [],
    "differs_from_task_or_data": [],
}


def record(episode_id, sr, *, row="policy", scene="a", remark=None, flag=None):
    scores = ("sr", "sr_1m", "sr_2m", "osr", "osr_public", "spl", "ndtw", "ndtw_public", "sdtw")
    return {
        "row": row,
        "dataset": "houses",
        "split": "val_unseen",
        "role": "",
        "episode_id": episode_id,
        "scene_id": scene,
        "flag": flag,
        **dict.fromkeys(scores, None if flag else sr),
        "ne_m": None if flag else 2.0,
        "geodesic_m": 8.0,
        "path_m": 9.0,
        "steps": 40,
        "num_decisions": 16,
        "collisions": 0,
        "remark": remark,
    }


def write(folder, records, *, rows=("policy",), num_expected=2):
    return write_report(
        folder,
        records,
        rows=list(rows),
        num_expected=num_expected,
        flag_policy="exclude",
        seed=0,
        facts=FACTS,
        timing=Timing(wall_s=2.0, policy_s=1.0, num_calls=3, num_decisions=20, num_episodes=2),
    )


def test_rows_have_the_agreed_keys_and_the_file_is_plain_json(tmp_path, capsys):
    write(tmp_path, [record("1", 1.0), record("2", 0.0, scene="b")])
    report = json.loads((tmp_path / "report.json").read_text())
    (row,) = report["rows"]
    assert {"name", "n", "sr", "sr_low", "sr_high", "spl", "ne_m", "ndtw"} <= row.keys()
    assert (row["name"], row["n"], row["sr"], row["num_scenes"]) == ("policy", 2, 0.5, 2)
    assert report["is_complete"]
    assert report["timing"]["policy_share"] == 0.5
    assert report["timing"]["episodes_per_s"] == 1.0
    shown = capsys.readouterr().out
    assert "policy" in shown
    assert "2/2" in shown
    assert "…" not in shown  # no number is cut off


def test_a_missing_episode_makes_the_report_incomplete(tmp_path):
    assert not write(tmp_path, [record("1", 1.0)])["is_complete"]
    assert "Incomplete" in (tmp_path / "report.html").read_text()
    flagged = [record("1", 1.0), record("2", None, flag="non_finite_geodesic")]
    report = write(tmp_path, flagged)
    assert report["is_complete"]
    assert (report["rows"][0]["n"], report["rows"][0]["num_flagged"]) == (1, 1)
    assert "Incomplete" not in (tmp_path / "report.html").read_text()


def test_the_order_in_which_episodes_ended_does_not_change_a_digit(tmp_path):
    records = [record(str(i), 0.1 * i, scene=f"s{i % 3}") for i in range(9)]
    first = write(tmp_path, records, num_expected=9)
    assert write(tmp_path, records[::-1], num_expected=9) == first


def test_text_from_data_cannot_become_markup(tmp_path):
    write(tmp_path, [record("<script>alert(1)</script>", 1.0, remark="<img src=x>")])
    page = (tmp_path / "report.html").read_text()
    assert "<script" not in page
    assert "<img" not in page
    assert "houses &lt;b&gt;" in page


def test_the_page_needs_no_network(tmp_path):
    write(tmp_path, [record("1", 1.0)])
    page = (tmp_path / "report.html").read_text()
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//", page)
