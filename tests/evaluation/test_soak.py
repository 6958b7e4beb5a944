"""The soak at a small size: kills are survived, and what goes wrong is found."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vla_nav.evaluation.soak import Observed, Sample, verdict

ROOT = Path(__file__).parents[2]


def line(number):
    key = {"row": "expert", "dataset": "d", "split": "s", "role": ""}
    return json.dumps({**key, "episode_id": str(number), "attempts": 1}) + "\n"


def observed(memory=lambda part: 100.0, **changes):
    """A run of 100 lines whose main process takes memory(part of the run)."""
    samples = [Sample(lines, memory(lines / 100), 50.0, 9) for lines in range(101)]
    return Observed(**{"exit_code": 0, "samples": samples, **changes})


def faults(folder, seen, *, lines=100):
    (folder / "results-000-of-001.jsonl").write_text("".join(map(line, range(lines))))
    return verdict(seen, folder, num_lines=100)["faults"]


def test_a_sound_run_has_no_faults(tmp_path):
    assert faults(tmp_path, observed()) == []
    assert faults(tmp_path, observed(lambda part: 100.0 - 40.0 * part)) == []  # it may shrink


@pytest.mark.parametrize(
    ("seen", "lines", "named"),
    [
        (observed(lambda part: 100.0 + 30.0 * part), 100, "main: grew by"),
        (observed(exit_code=3), 100, "exit code 3"),
        (observed(), 99, "99 of 100 episodes"),
        (observed(leaked=[7]), 100, "left behind"),
        (observed(num_kills=2), 100, "2 kills, 0 restarts"),
        (observed(samples=[]), 100, "grew by +inf"),
    ],
)
def test_every_fault_is_named(tmp_path, seen, lines, named):
    assert any(named in fault for fault in faults(tmp_path, seen, lines=lines))


@pytest.mark.slow
def test_killed_workers_cost_no_episode_and_change_no_outcome(tmp_path):
    command = [sys.executable, str(ROOT / "scripts" / "soak_evaluation.py"), f"output={tmp_path}"]
    command += ["episodes=40", "kills=2", "houses=2", "workers=2", "compared=5", "commit=none"]
    run = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    found = json.loads((tmp_path / "soak.json").read_text())
    # Memory is not flat in so short a run; all else must hold.
    others = [fault for fault in found["faults"] if "grew" not in fault]
    assert others == [], run.stderr
    assert found["episodes"] == 40
    # A fast machine may be done before the second kill is due.
    assert 1 <= found["kills"] == found["restarts"] <= 2
    assert (found["compared"], found["different"], found["left_behind"]) == (10, 0, 0)
    assert found["processes"] >= 2 + found["kills"]
