"""Sweeps: a folder per job, one for all shards of an evaluation, every job run, the exit code."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from omegaconf import DictConfig

from vla_nav.commands import overrides
from vla_nav.commands.compose import compose_config, run
from vla_nav.errors import UserError
from vla_nav.files import write_json

SHARDS = ["data.path=x", "-m", "evaluation.num_shards=3", "evaluation.shard=range(3)"]


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[DictConfig], Any]], None]:
    """Let `vla-nav evaluate` call a function."""

    def put(body: Callable[[DictConfig], Any]) -> None:
        module = ModuleType("vla_nav.commands.evaluate")
        module.main = body  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "vla_nav.commands.evaluate", module)

    return put


def test_shards_share_one_folder_and_other_values_have_one_each(install, tmp_path) -> None:
    seen = []
    install(lambda c: seen.append((c.seed, c.evaluation.shard, c.paths.output_dir)))
    assert run("evaluate", SHARDS) == 0
    assert seen == [(0, shard, str(tmp_path / "runs/evaluate")) for shard in range(3)]
    seen.clear()
    assert run("evaluate", [*SHARDS, "seed=1,2", "paths.output_dir=out"]) == 0
    expected = {(s, n, str(tmp_path / f"out/seed={s}")) for s in (1, 2) for n in range(3)}
    assert (set(seen), len(seen)) == (expected, 6)
    seen.clear()
    more = ["simulators=mesh,mesh_64", "data.split=val_seen,val_unseen", "evaluation.num_slots=9"]
    assert run("evaluate", [*SHARDS, *more, "paths.output_dir=out"]) == 0
    folders = {Path(folder).name for _, _, folder in seen}
    assert folders == {
        f"data.split={split},simulators={simulator}"
        for split in ("val_seen", "val_unseen")
        for simulator in ("mesh", "mesh_64")
    }


def test_a_sweep_without_shards_has_a_folder_per_job(install) -> None:
    seen = []
    install(lambda config: seen.append(config.paths.output_dir))
    assert run("evaluate", ["data.path=x", "-m", "seed=1,2"]) == 0
    assert [Path(folder).name for folder in seen] == ["0", "1"]


def test_the_command_is_told_of_every_job_with_its_folder(install, tmp_path, monkeypatch) -> None:
    seen, told = [], []
    install(lambda config: seen.append(config.paths.output_dir))
    monkeypatch.setattr(
        sys.modules["vla_nav.commands.evaluate"], "after_sweep", told.extend, raising=False
    )
    more = ["-m", "seed=1,2", "simulators=mesh,mesh_64", "paths.output_dir=out"]
    for words, values in (
        ([*more, "data.path=x"], ("seed=2", "simulators=mesh")),
        ([*more, *SHARDS], ("seed=1", "simulators=mesh_64", "evaluation.shard=2")),
        (["-m", "data.path=a,b", "paths.output_dir='o t/${seed}'"], ("data.path=b",)),
    ):
        seen.clear()
        told.clear()
        assert run("evaluate", words) == 0
        assert [str(job.folder) for job in told] == seen
        assert len(set(told)) == len(told)
        assert any(set(job.values) == set(values) for job in told)
    told.clear()
    assert run("evaluate", ["data.path=x"]) == 0
    assert told == []


def test_a_sweep_of_trainings_ends_with_a_table_of_its_runs(monkeypatch, capsys, tmp_path) -> None:
    best = {"step": 6, "sr": 0.25, "policy": "best/of/one"}

    def main(config: DictConfig) -> int:
        rate, folder = config.training.optimiser.learning_rate, Path(config.paths.output_dir)
        if rate == 3e-3:
            raise UserError("does not fit")
        result = {"steps": 8, "policy": str(folder / "policy")}
        result["validation"] = {"loss": 100 * rate, "action_accuracy": None}
        if rate == 1e-3:
            result["closed_loop"] = {"best": best}
        write_json(folder / "result.json", result)
        return 0

    monkeypatch.setattr("vla_nav.commands.train.main", main)
    key = "training.optimiser.learning_rate"
    words = ["data.path=x", "paths.output_dir=out", "-m", f"{key}=1e-3,2e-3,3e-3"]
    assert run("train", words) == 2
    shown = capsys.readouterr().out.splitlines()
    first, second = (
        [text.strip() for text in line.split("│")[2:-1]]
        for rate in ("0.001", "0.002")
        for line in shown
        if line.startswith(f"│ {key}={rate}")
    )
    assert first == ["8", "0.100", "-", "0.250 (6)"]
    assert second == ["8", "0.200", "-", "-"]
    assert shown[-3:] == [
        "policy: best/of/one",
        f"policy: {tmp_path / 'out/1/policy'}",
        f"{tmp_path / 'out/2'}: no result",
    ]
    capsys.readouterr()
    monkeypatch.setattr("vla_nav.commands.train.main", lambda config: 0)
    assert run("train", ["data.path=x", "paths.output_dir=none", "-m", "seed=1,2"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"{tmp_path / 'none/1'}: no result"


def test_a_folder_name_from_values_stays_below_the_run(install, tmp_path) -> None:
    seen = []
    install(lambda config: seen.append(config.paths.output_dir))
    assert run("evaluate", [*SHARDS, "data.split='../../a b','c/d'", "paths.output_dir=out"]) == 0
    assert len(set(seen)) == 2
    assert all(Path(folder).parent == tmp_path / "out" for folder in seen)


def test_every_job_runs_and_the_first_failure_is_the_exit_code(install, capsys) -> None:
    seen = []

    def main(config: DictConfig) -> int:
        seen.append(config.evaluation.shard)
        if config.evaluation.shard == 1:
            return 3
        if config.evaluation.shard == 2:
            raise UserError("no such thing")
        return 0

    install(main)
    before = dict(os.environ)
    assert run("evaluate", SHARDS) == 3
    assert seen == [0, 1, 2]
    shown = capsys.readouterr().err
    assert "vla-nav evaluate: no such thing" in shown
    assert "a job of the sweep ended with code 3" in shown
    assert dict(os.environ) == before


def test_the_first_fault_of_a_job_is_told_at_the_end(install, capsys) -> None:
    def main(config: DictConfig) -> int:
        raise UserError(f"shard {config.evaluation.shard} finds no such thing")

    install(main)
    assert run("evaluate", SHARDS) == 2
    end = capsys.readouterr().err.splitlines()[-1]
    assert end.endswith("a job of the sweep ended with code 2: shard 0 finds no such thing")


def test_an_interrupt_ends_the_sweep(install) -> None:
    seen = []

    def main(config: DictConfig) -> None:
        seen.append(config.evaluation.shard)
        raise KeyboardInterrupt

    install(main)
    assert run("evaluate", SHARDS) == 130
    assert seen == [0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["hydra/launcher=processes"], "add -m"),
        (["-m", "seed=1,2", "hydra/launcher=slrm"], "hydra/launcher=slrm"),
        (["-m", "seed=1,2", "hydra/launcher=slurm"], "no srun on this machine"),
    ],
)
def test_launchers_that_cannot_work_are_refused(words, message, install, capsys, monkeypatch):
    monkeypatch.setattr(overrides.shutil, "which", lambda name: None)
    install(lambda config: pytest.fail("must not run"))
    assert run("evaluate", ["data.path=x", *words]) == 2
    line = capsys.readouterr().err
    assert message in line
    assert line.count("\n") == 1


def test_a_missing_plugin_is_named_with_its_extra(install, capsys, monkeypatch) -> None:
    monkeypatch.setattr(overrides.importlib.util, "find_spec", lambda name: None)
    assert run("evaluate", ["data.path=x", "-m", "hydra/launcher=processes", "seed=1,2"]) == 2
    assert "pip install 'vla_nav[slurm]'" in capsys.readouterr().err


@pytest.mark.skipif(
    importlib.util.find_spec("submitit") is None, reason="needs the extra slurm (submitit)"
)
def test_the_launchers_compose_and_take_their_values() -> None:
    node = compose_config(
        "evaluate",
        ["data.path=x", "hydra/launcher=slurm", "hydra.launcher.partition=gpu"],
        hydra=True,
    ).hydra.launcher
    assert node._target_.endswith("SlurmLauncher")
    assert (node.partition, node.gpus_per_node, node.max_num_timeout) == ("gpu", 1, 3)
    node = compose_config("evaluate", ["data.path=x", "hydra/launcher=processes"], hydra=True)
    assert node.hydra.launcher._target_.endswith("LocalLauncher")


@pytest.mark.parametrize("key", ["num_replays", "max_worker_mib", "num_threads"])
def test_what_a_comment_says_of_null_can_be_said_on_the_command_line(key, install) -> None:
    seen = []
    install(lambda config: seen.append(config.evaluation[key]))
    assert run("evaluate", ["data.path=x", f"evaluation.{key}=null"]) == 0
    assert seen == [None]
