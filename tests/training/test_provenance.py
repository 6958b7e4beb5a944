"""Every start of a run is on record, other software is told, nothing is thrown away unsaid."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.tiny import in_child, make_data, recipe, settings, train
from vla_nav.errors import UserError
from vla_nav.training import provenance, run_folder
from vla_nav.training.provenance import FILE, differences, git_state, read_starts, record_start
from vla_nav.training.run_folder import RunFolder
from vla_nav.training.schedule import Budget


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    done = subprocess.run(
        ["git", "-C", str(folder), *identity, *words], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def test_git_state_names_the_commit_and_tells_changed_files(tmp_path: Path) -> None:
    assert git_state(tmp_path) is None
    git(tmp_path, "init", "-q")
    (tmp_path / "a").write_text("1")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-q", "-m", "a")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert git_state(tmp_path) == {"commit": commit, "dirty": False}
    (tmp_path / "a").write_text("2")
    assert git_state(tmp_path) == {"commit": commit, "dirty": True}


def test_a_start_has_versions_and_no_name_of_the_machine(tmp_path: Path) -> None:
    assert record_start(tmp_path, overrides=["seed=1"], num_ranks=1, data="x") == []
    (entry,) = read_starts(tmp_path)
    assert entry["overrides"] == ["seed=1"]
    assert entry["versions"]["torch"] == torch.__version__
    assert None not in (entry["versions"]["lightning"], entry["versions"]["transformers"])
    assert {"driver", "cuda", "flash-attn-4"} <= entry["versions"].keys()
    text = (tmp_path / FILE).read_text()
    assert os.uname().nodename not in text
    assert str(tmp_path) not in text


def test_a_continuation_by_other_software_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_start(tmp_path, num_ranks=1)
    assert record_start(tmp_path, num_ranks=1) == []
    monkeypatch.setattr(torch, "__version__", "0.0.1")
    monkeypatch.setattr(provenance, "_PACKAGES", ())
    changed = record_start(tmp_path, num_ranks=4)
    assert "num_ranks 1 -> 4" in changed
    assert any(line.startswith("torch ") and line.endswith("-> 0.0.1") for line in changed)
    assert any(line.startswith("timm ") and line.endswith("-> none") for line in changed)
    assert len(read_starts(tmp_path)) == 3


def test_a_dirty_checkout_differs_from_its_commit() -> None:
    clean: dict[str, Any] = {"git": {"commit": "a" * 40, "dirty": False}}
    assert differences(clean, clean) == []
    dirty = {"git": {"commit": "a" * 40, "dirty": True}}
    assert differences(clean, dirty) == [f"commit {'a' * 12} -> {'a' * 12} (changed)"]


def test_a_damaged_record_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"a": 1}\n{"b":')
    with pytest.raises(UserError, match="restore the file, or delete it"):
        read_starts(tmp_path)


def test_training_records_every_start_and_says_what_changed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data, run = make_data(tmp_path / "data"), tmp_path / "run"
    short = recipe(data, settings=settings(budget=Budget(max_steps=2), dry_run=False))
    assert in_child(lambda: train(short, run)) == 0
    (first,) = read_starts(run)
    assert (first["from_step"], first["num_ranks"], first["changed"]) == (0, 1, {})
    assert first["data"] == json.loads((run / "run.json").read_text())["data"]
    (run / "result.json").unlink()  # the end of the run was not reached
    (run / FILE).write_text(json.dumps({**first, "versions": {"torch": "0.0.1"}}) + "\n")
    capfd.readouterr()
    config = {"seed": 0, "num_workers": 3}
    assert in_child(lambda: train(short, run, config=config)) == 0
    told = capfd.readouterr().err
    assert f"{run / FILE}: the run continues from step 2 with " in told
    assert f"torch 0.0.1 -> {torch.__version__}" in told
    assert read_starts(run)[1]["changed"] == {"num_workers": 3}
    assert in_child(lambda: train(short, run, config=config)) == 0
    assert len(read_starts(run)) == 2  # a finished run is reported, not started


def test_what_is_thrown_away_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    RunFolder(tmp_path, {"a": 1}, data="x", overwrite=True).finish({})
    assert capsys.readouterr().err == ""
    (tmp_path / "notes.txt").write_text("mine")
    held = RunFolder(tmp_path, {"a": 2}, data="x", overwrite=True)
    assert capsys.readouterr().err.strip() == (
        f"{tmp_path}: overwrite=true throws away the run that was here: run.json, result.json"
    )
    assert held.result() is None
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_other_ranks_wait_until_the_old_run_is_thrown_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "first")
    RunFolder(tmp_path, {"a": 1}, data="x", overwrite=True).finish({"steps": 7})
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "second")
    opened: list[RunFolder] = []
    other = threading.Thread(
        target=lambda: opened.append(
            RunFolder(tmp_path, {"a": 2}, data="x", overwrite=True, rank=1)
        )
    )
    other.start()
    other.join(0.3)
    assert not opened  # neither the finished run's result nor its configuration was looked at
    RunFolder(tmp_path, {"a": 2}, data="x", overwrite=True)
    other.join(10)
    assert opened[0].result() is None


def test_a_rank_whose_disk_is_another_one_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_folder, "_WAIT_S", 0.1)
    with pytest.raises(UserError, match="all ranks share"):
        RunFolder(tmp_path, {}, data="x", overwrite=True, rank=1)


def test_only_rank_0_makes_the_folder(tmp_path: Path) -> None:
    RunFolder(tmp_path / "run", {"a": 1}, data="x", rank=1)
    assert not (tmp_path / "run").exists()
