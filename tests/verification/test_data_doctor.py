"""Doctor on a folder: scenes, goals that cannot be reached, other splits, and the command."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import trimesh

from tests.episodes.checked_sets import BODY, episode
from vla_nav.commands.compose import run
from vla_nav.episodes.checks import DataReport
from vla_nav.episodes.types import Episode, Goal, Pose
from vla_nav.episodes.vlnce import write_vlnce
from vla_nav.simulators.opening import SimulatorSetup
from vla_nav.verification.data_doctor import examine
from vla_nav.verification.doctor_report import data_text
from vla_nav.verification.reachability import Reachability

ISLANDS = "islands/islands.glb"
TRY = Reachability(BODY, SimulatorSetup("mesh", {"cell_m": 0.1}))


def scene(root: Path) -> None:
    """Two floors of 3 x 3 m at x = 0 and x = 10 with nothing between them."""
    path = root / "scenes" / ISLANDS
    path.parent.mkdir(parents=True)
    parts = [trimesh.creation.box((3.0, 0.1, 3.0)) for _ in range(2)]
    for part, x in zip(parts, (0.0, 10.0), strict=True):
        part.apply_translation((x, -0.05, 0.0))
    trimesh.Scene(parts).export(path)


def standing(number: int, start_x: float, goal_x: float) -> Episode:
    """An episode from one place to another in the scene of islands."""
    return replace(
        episode(number),
        scene_id=ISLANDS,
        start_pose=Pose.from_yaw((start_x, 0.0, 1.0), 0.0),
        goals=(Goal((goal_x, 0.0, -1.0), 0.2),),
        reference_path=episode(number).reference_path[:0],
        metadata={"info": {"geodesic_distance": 12.0}},
    )


def write(root: Path, split: str, episodes: list[Episode]) -> None:
    (root / split).mkdir(parents=True)
    write_vlnce(root / split / f"{split}.json.gz", episodes)


def codes(report: DataReport) -> dict[str, int]:
    return {finding.code: finding.count for finding in report.findings}


def look(root: Path, split: str = "val_unseen", **options: object) -> DataReport:
    return examine({"path": root, "split": split}, **options)


def test_a_goal_on_another_island_is_found_by_walking(tmp_path: Path) -> None:
    scene(tmp_path)
    write(tmp_path, "val_unseen", [standing(1, 0.0, 0.5), standing(2, 0.0, 10.0)])
    report = look(tmp_path, reachability=TRY)
    assert codes(report) == {"D202": 2, "D604": 1}
    assert report.findings[0].examples[0].episode == "2"
    assert report.facts["reachability_tried"] == 2
    assert "D604" not in codes(look(tmp_path))


def test_a_start_off_the_floor_is_no_unreachable_goal(tmp_path: Path) -> None:
    scene(tmp_path)
    write(tmp_path, "val_unseen", [standing(1, 5.0, 0.5)])
    assert codes(look(tmp_path, reachability=TRY)) == {"D202": 1, "D605": 1}


def test_a_damaged_scene_is_a_finding(tmp_path: Path) -> None:
    scene(tmp_path)
    file = tmp_path / "scenes" / ISLANDS
    file.write_bytes(file.read_bytes()[:100])
    write(tmp_path, "val_unseen", [standing(1, 0.0, 0.5)])
    report = look(tmp_path, reachability=TRY)
    assert codes(report) == {"D202": 1, "D605": 1}
    assert ISLANDS in report.findings[0].examples[0].value


def test_a_scene_that_is_not_there_is_missing_and_not_tried(tmp_path: Path) -> None:
    (tmp_path / "scenes").mkdir()
    write(tmp_path, "val_unseen", [standing(1, 0.0, 0.5)])
    assert codes(look(tmp_path, reachability=TRY)) == {"D202": 1, "D601": 1}


def test_for_habitat_navmeshes_are_looked_for_and_a_worker_is_asked(tmp_path: Path) -> None:
    scene(tmp_path)
    write(tmp_path, "val_unseen", [standing(1, 0.0, 0.5), standing(2, 0.0, 0.6)])
    nowhere = Reachability(BODY, SimulatorSetup("habitat", {}, "/nowhere/python"))
    report = look(tmp_path, reachability=nowhere)
    assert codes(report) == {"D202": 2, "D605": 1, "D606": 2}
    (tried,) = (finding for finding in report.findings if finding.code == "D605")
    assert "/nowhere/python" in tried.examples[0].value
    (tmp_path / "scenes" / ISLANDS).with_suffix(".navmesh").write_bytes(b"found, not read here")
    assert codes(look(tmp_path, reachability=nowhere)) == {"D202": 2, "D605": 1}


@pytest.mark.habitat
def test_habitat_finds_what_cannot_be_reached(tmp_path: Path) -> None:
    scene(tmp_path)
    write(tmp_path, "val_unseen", [standing(1, 0.0, 0.5), standing(2, 0.0, 10.0)])
    python = os.environ["VLA_NAV_HABITAT_PYTHON"]
    report = look(tmp_path, reachability=Reachability(BODY, SimulatorSetup("habitat", {}, python)))
    assert codes(report) == {"D202": 2, "D604": 1, "D606": 2}
    assert report.facts["reachability_tried"] == 2


def test_train_beside_a_split_is_compared_with_it(tmp_path: Path) -> None:
    write(tmp_path, "train", [standing(1, 0.0, 0.5)])
    write(tmp_path, "val_unseen", [standing(1, 0.0, 0.5), standing(2, 0.0, 0.7)])
    assert codes(look(tmp_path)) == {"D202": 2, "D408": 1, "D409": 1, "D602": 2}
    assert codes(look(tmp_path, compare=[])) == {"D202": 2, "D602": 2}


def doctor(root: Path, out: Path, *overrides: str) -> int:
    return run("doctor", [f"data.path={root}", f"paths.output_dir={out}", *overrides])


def test_the_command_says_by_its_exit_code_whether_there_are_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scene(tmp_path)
    write(tmp_path, "train", [standing(1, 0.0, 0.5)])
    write(tmp_path, "bad", [standing(1, 0.0, 0.5), standing(2, 0.0, 10.0)])
    assert doctor(tmp_path, tmp_path / "out", "data.split=train") == 0
    assert "0 error" in capsys.readouterr().out
    assert doctor(tmp_path, tmp_path / "out", "data.split=bad", "doctor.compare=[]") == 1
    text = capsys.readouterr().out
    assert "D604  error" in text
    assert "remedy: " in text
    found = json.loads((tmp_path / "out" / "doctor.json").read_text())
    assert found["findings"][0]["code"] == "D604"
    assert found["findings"][0]["examples"][0]["episode"] == "2"
    assert doctor(tmp_path, tmp_path / "out", "data.split=nowhere") == 2
    off = ["data.split=bad", "doctor.reachability.num_scenes=0", "doctor.compare=[]"]
    assert doctor(tmp_path, tmp_path / "out", *off) == 0


@pytest.mark.skipif(find_spec("habitat_sim") is not None, reason="habitat-sim is in this one")
def test_data_for_habitat_is_not_checked_without_habitat(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scene(tmp_path)
    write(tmp_path, "train", [standing(1, 0.0, 0.5)])
    words = ["simulators=habitat", "data.split=train"]
    assert doctor(tmp_path, tmp_path / "out", *words) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert "I413 habitat-sim: the interpreter has no habitat_sim" in line
    assert doctor(tmp_path, tmp_path / "out", *words, "simulators.python=/nowhere/python") == 2
    line = capsys.readouterr().err
    assert "I411" in line
    assert "/nowhere/python does not exist; set simulators.python to" in line
    alone = [*words, "doctor.reachability.num_scenes=0"]
    assert doctor(tmp_path, tmp_path / "out", *alone) == 0
    assert "D606" in capsys.readouterr().out  # what needs no simulator is said all the same


def test_the_command_checks_the_installation_where_no_data_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = "simulators.python=/nowhere/python"
    assert run("doctor", [f"paths.output_dir={tmp_path}", wrong]) == 1
    assert "I401  error" in capsys.readouterr().out
    found = json.loads((tmp_path / "doctor.json").read_text())
    severities = {probe["code"]: probe["severity"] for probe in found["installation"]}
    assert severities.pop("I401") == "error"
    assert {"I101", "I102", "I201", "I301", "I601"} <= severities.keys()
    assert "error" not in severities.values()


def test_hostile_text_stays_on_its_line(tmp_path: Path) -> None:
    text = "go\x1b[2J\n\nD999  error   made up"
    write(tmp_path, "val_unseen", [replace(standing(1, 0.0, 0.5), scene_id=f"../{text}")])
    lines = data_text(look(tmp_path)).splitlines()
    assert not any(line.startswith("D999") for line in lines)
    assert not any("\x1b" in line for line in lines)
