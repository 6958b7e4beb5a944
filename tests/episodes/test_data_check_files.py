"""The checks on files: what a reader refuses is counted, and the other episodes still checked."""

from __future__ import annotations

import gzip
import json
import math
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.episodes.checked_sets import episode
from tests.episodes.fixtures import lerobot_v3, navila
from tests.episodes.made_episodes import body, record
from vla_nav.episodes.checks import DataReport, check_source
from vla_nav.episodes.formats import open_source
from vla_nav.episodes.lerobot_finalise import finalise
from vla_nav.episodes.recorded import open_source as open_recorded

NUM = 12
Content = tuple[dict[str, Any], dict[str, Any]]


def content() -> Content:
    """An R2R-CE file and its ground truth, without a fault."""
    episodes, truths = [], {}
    for number in range(NUM):
        plain = episode(number)
        episodes.append(
            {
                "episode_id": number,
                "trajectory_id": number,
                "scene_id": "mp3d/a/a.glb",
                "start_position": list(plain.start_pose.position),
                "start_rotation": list(plain.start_pose.rotation),
                "info": dict(plain.metadata["info"]),
                "goals": [{"position": list(plain.goals[0].position), "radius": 0.3}],
                "instruction": {"instruction_text": plain.instruction},
                "reference_path": plain.reference_path.tolist(),
            }
        )
        truths[str(number)] = dict(plain.metadata["ground_truth"])
    return {"episodes": episodes, "instruction_vocab": {"word_list": ["<pad>"]}}, truths


def write(root: Path, made: Content, *, split: str = "val") -> Path:
    folder = root / split
    folder.mkdir(parents=True)
    for name, value in zip((split, f"{split}_gt"), made, strict=True):
        (folder / f"{name}.json.gz").write_bytes(gzip.compress(json.dumps(value).encode()))
    return root


def checked(root: Path, split: str = "val") -> DataReport:
    return check_source(open_source(root, split=split))


def counts(report: DataReport) -> dict[str, int]:
    return {finding.code: finding.count for finding in report.findings if finding.code != "D602"}


def set_episode(key: str, value: Any) -> Callable[[Content], None]:
    def change(made: Content) -> None:
        for number in (3, 8):
            made[0]["episodes"][number][key] = value

    return change


def set_truth(key: str, change_value: Callable[[Any], Any]) -> Callable[[Content], None]:
    def change(made: Content) -> None:
        for number in ("3", "8"):
            made[1][number][key] = change_value(made[1][number][key])

    return change


def drop_truth(made: Content) -> None:
    del made[1]["3"], made[1]["8"]


REFUSED = {
    "norm": ("D101", set_episode("start_rotation", [0.0, 0.6, 0.0, 0.6])),
    "not a number": ("D104", set_episode("start_position", [0.0, math.nan, 0.0])),
    "infinite extra": ("D104", set_episode("extra", {"a": [1.0, -math.inf]})),
    "infinite geodesic": ("D302", set_episode("info", {"geodesic_distance": math.inf})),
    "no truth": ("D201", drop_truth),
    "truth starts elsewhere": (
        "D203",
        set_truth("locations", lambda points: [[x + 1, y, z] for x, y, z in points]),
    ),
    "location missing": ("D204", set_truth("locations", lambda points: points[:-1])),
    "forward steps": ("D204", set_truth("forward_steps", lambda number: number + 1)),
    "not points": ("D204", set_truth("locations", lambda points: [1, 2])),
    "stop before the end": ("D205", set_truth("actions", lambda actions: [0, *actions])),
    "unknown action": ("D217", set_truth("actions", lambda actions: [7, *actions])),
    "infinite location": (
        "D104",
        set_truth("locations", lambda points: [[math.inf, 0, 0], *points[1:]]),
    ),
    "scene": ("D001", set_episode("scene_id", 7)),
}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_a_reader_refuses_is_counted_under_its_code(name: str, tmp_path: Path) -> None:
    code, change = REFUSED[name]
    made = content()
    change(made)
    report = checked(write(tmp_path, made))
    found = {finding.code: finding for finding in report.findings}
    assert found[code].count == 2
    assert [example.episode for example in found[code].examples] == ["3", "8"]
    assert report.facts["episodes"] == NUM - 2
    others = {"D602", "D210", "D212"}  # a file with odd ids is no known release
    assert set(found) <= {code} | others
    json.dumps(report.as_json(), allow_nan=False)


def test_a_file_without_a_fault_has_no_finding(tmp_path: Path) -> None:
    assert counts(checked(write(tmp_path, content()))) == {}


def test_ground_truth_joined_by_position_instead_of_id_is_found(tmp_path: Path) -> None:
    episodes, truths = content()
    shifted = {str((int(key) + 1) % NUM): value for key, value in truths.items()}
    assert counts(checked(write(tmp_path, (episodes, shifted)))) == {"D203": NUM, "D002": 1}


def test_headings_of_v1_2_are_found_without_a_warning_of_the_reader(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    episodes, truths = content()
    for number, raw in enumerate(episodes["episodes"]):
        half = 0.3 + 0.71 * number
        raw["start_rotation"] = [0.0, math.sin(half), 0.0, math.cos(half)]
    source = open_source(write(tmp_path, (episodes, truths)), split="val")
    recwarn.clear()
    found = counts(check_source(source))
    assert found["D701"] == NUM
    assert found["D106"] >= NUM - 2
    assert not recwarn.list


def test_a_file_cut_short_ends_the_checks_with_its_name(tmp_path: Path) -> None:
    root = write(tmp_path, content())
    source = open_source(root, split="val")
    file = root / "val" / "val.json.gz"
    file.write_bytes(file.read_bytes()[:-200])
    report = check_source(source)
    found = {finding.code: finding for finding in report.findings}
    assert {"D001", "D003"} <= set(found)
    assert str(file) in found["D001"].examples[0].value


@pytest.mark.parametrize("storage", ["png", "video"])
def test_a_recorded_set_has_no_finding(storage: str, tmp_path: Path) -> None:
    body_ = body(size=(16, 12), depth=storage == "png")
    record(tmp_path, range(10), body_, storage=storage)
    finalise(tmp_path, [("made", "train", "", str(number)) for number in range(10)])
    report = check_source(open_recorded(tmp_path, split="train"))
    found = counts(report)
    # Its paths are random points and its goals the start's neighbours, on purpose.
    assert set(found) <= {"D206", "D304", "D305", "D402"}
    assert report.facts["frames_read"] > 0
    assert report.facts["inferred_step_m"] == 0.25


def test_texts_outside_the_grammar_are_found_in_the_annotations(tmp_path: Path) -> None:
    expected = navila.write(tmp_path)
    assert "D216" not in counts(checked(expected.root, expected.split))
    file = next(expected.root.rglob("annotations.json"))
    records = json.loads(file.read_text())
    assert records[0]["a"] != records[-1]["a"]
    records[0]["a"] = "go forward a bit"
    file.write_text(json.dumps(records))
    found = {f.code: f for f in checked(expected.root, expected.split).findings}
    assert found["D216"].count == 1
    assert "go forward a bit" in found["D216"].examples[0].value
    assert "D218" in found  # that step teaches nothing


def change_offsets(root: Path, column: str, value: Callable[[dict[str, Any]], Any]) -> None:
    """Write another column of `meta/episodes`."""
    for path in sorted((root / "meta/episodes").rglob("*.parquet")):
        table = pq.read_table(path)
        rows = [{**row, column: value(row)} for row in table.to_pylist()]
        pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)


def test_video_files_taken_from_the_data_files_index_are_found(tmp_path: Path) -> None:
    lerobot_v3.write(tmp_path)
    clean = {"D222": 1, "D307": 6}  # no poses, no goals
    assert counts(checked(tmp_path, "train")) == clean
    camera = f"videos/{lerobot_v3.FRONT}"
    change_offsets(tmp_path, f"{camera}/file_index", lambda row: row["data/file_index"])
    report = checked(tmp_path, "train")
    found = {finding.code: finding for finding in report.findings}
    assert found["D503"].count >= 3  # all but the first are read from the first one's video
    assert found["D503"].examples[0].episode == "1"
    assert found["D503"].examples[0].file == f"{camera}/chunk-000/file-000.mp4"
    assert found["D509"].count == 1  # the longest does not even fit into it


def test_offsets_that_do_not_fit_the_length_are_found(tmp_path: Path) -> None:
    lerobot_v3.write(tmp_path)
    column = f"videos/{lerobot_v3.LEFT}/from_timestamp"
    change_offsets(tmp_path, column, lambda row: max(0.0, row[column] - 0.2))
    found = {finding.code: finding for finding in checked(tmp_path, "train").findings}
    assert found["D509"].count >= 3


def test_stated_offsets_that_overlap_are_found_without_reading_the_episodes(
    tmp_path: Path,
) -> None:
    """Case 9, where no episode can be read: its data file and its videos are not there."""
    lerobot_v3.write(tmp_path)
    (tmp_path / "data/chunk-000/file-000.parquet").unlink()
    shutil.rmtree(tmp_path / "videos")
    assert counts(checked(tmp_path, "train")) == {"D001": 6, "D002": 1}
    camera = f"videos/{lerobot_v3.LEFT}"
    begin = f"{camera}/from_timestamp"
    earlier = {2: 0.1, 3: 0.6}  # seconds
    change_offsets(tmp_path, begin, lambda row: row[begin] - earlier.get(row["episode_index"], 0))
    found = {finding.code: finding for finding in checked(tmp_path, "train").findings}
    assert found["D503"].count == 2
    assert [example.episode for example in found["D503"].examples] == ["2", "3"]
    assert found["D503"].examples[0].file == f"{camera}/chunk-000/file-000.mp4"
    assert found["D503"].examples[0].value == "frames 7 to 11 are taken by another episode too"


_REAL = os.environ.get("VLA_NAV_REAL_DATA")


@pytest.mark.skipif(not _REAL, reason="VLA_NAV_REAL_DATA names no folder with real episodes")
@pytest.mark.parametrize(
    ("split", "expected"),
    [("train", {"D202": 10_819, "D303": 678}), ("val_unseen", {"D206": 780, "D303": 207})],
)
def test_real_splits_have_true_findings_only(split: str, expected: dict[str, int]) -> None:
    begin = time.process_time()
    report = checked(Path(str(_REAL)) / "r2r_ce_v1-3", split)
    assert time.process_time() - begin < 30  # 3 s where nothing else runs
    assert counts(report) == expected
    assert report.num_errors == 0
    assert report.facts["release"] == "r2r-ce v1-3"
    if split == "val_unseen":
        assert report.facts["inferred_turn_deg"] == 15.0
        assert report.facts["inferred_step_m"] == 0.25
        assert report.facts["actions_per_episode"] == pytest.approx(57.35)
        assert report.facts["episodes_bent"] == pytest.approx(0.424, abs=1e-3)
