"""What a user can get wrong in the benchmark scripts is one line, and costs nothing measured."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest

from tests.profiling.bench_scripts import load
from vla_nav.errors import UserError
from vla_nav.profiling.bench_rows import RowFile, run
from vla_nav.profiling.curve_file import SAME, CurveFile

KERNELS = ("attention", "compile", "device", "learning_rate")
STRESS = ["backend=sdpa", "device=cpu", "launches=2", "cases=2x4+3", "heads=2", "kv_heads=1"]
STRESS += ["head_dim=8"]


def told(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str]:
    """Status and last line on stderr of the stress script."""
    monkeypatch.setattr(sys, "argv", ["stress_backward.py", *STRESS, *words])
    status = run(load("stress_backward").main)
    return status, (capsys.readouterr().err.splitlines() or [""])[-1]


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("heads=3 kv_heads=2", "error: heads=3: allowed: multiples of kv_heads, 2"),
        ("device=abacus", "error: device=abacus: allowed: cpu, cuda, cuda:1, ..."),
        ("cases=0x4+4", "every number 1 or more"),
        ("output=file/rows.json", "file: File exists; give another path"),
        ("output=folder", "folder: Is a directory; give another path"),
    ],
)
def test_a_wrong_option_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    word: str,
    line: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    status, said = told(word.split(), monkeypatch, capsys)
    assert status == 2
    assert line in said


def test_ctrl_c_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(words: list[str]) -> int:
        raise KeyboardInterrupt

    assert run(interrupted) == 130
    assert capsys.readouterr().err == "interrupted; what was written is kept\n"


@pytest.mark.parametrize("text", ['{"rows": ', "[]", '{"rows": 3}', '{"curves": {}}'])
def test_another_file_is_neither_read_nor_replaced(tmp_path: Path, text: str) -> None:
    path = tmp_path / "table.json"
    path.write_text(text)
    options = dict.fromkeys(SAME, "1")
    with pytest.raises(UserError, match=r"table\.json"):
        RowFile(path, {"commit": "c"}, ("name",))
    with pytest.raises(UserError, match=r"table\.json"):
        CurveFile(path, {"options": options}, steps=3)
    assert path.read_text() == text


@pytest.mark.parametrize(
    ("key", "theirs"), [(key, "2") for key in KERNELS] + [("device", "another GPU")]
)
def test_curves_of_other_kernels_or_devices_are_not_joined(
    tmp_path: Path, key: str, theirs: str
) -> None:
    options = dict.fromkeys((*SAME, *KERNELS), "1")
    mine = {"options": options, "device": "a GPU"}
    other = {"options": {**options, key: theirs}, "device": "a GPU"}
    if key == "device":
        other = {"options": options, "device": theirs}
    path = tmp_path / "other.json"
    CurveFile(path, other, steps=1).put("tree", [2.0])
    with pytest.raises(UserError, match=rf"other\.json: its {key} is {theirs}, not"):
        CurveFile(tmp_path / "mine.json", mine, steps=1, read=[str(path)])
    assert CurveFile(tmp_path / "same.json", other, steps=1, read=[str(path)]).is_done("tree")


def test_a_row_file_that_cannot_be_written_is_known_before_anything_is_measured(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        RowFile(tmp_path / "file" / "rows.json", {"commit": "c"}, ("name",))


def test_a_loss_that_is_no_number_ends_the_curve_and_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "curves.json"
    file = CurveFile(path, {"options": dict.fromkeys(SAME, "1")}, steps=3)
    file.put("tree", [2.0, 1.0])
    with pytest.raises(UserError, match=r"tree: the loss of step 3 is nan; .*learning_rate"):
        file.put("tree", [2.0, 1.0, math.nan])
    assert json.loads(path.read_text())["curves"] == {"tree": [2.0, 1.0]}
