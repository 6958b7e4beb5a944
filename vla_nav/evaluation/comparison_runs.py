"""The evaluations of a comparison, read back: a group of runs for each line of the table.

compare.runs=[runs/a, runs/b]         a line for each entry
  runs/a/run.json                     one run
  runs/b/{0,1,2}/run.json             a run per seed (evaluate -m seed=0,1,2): one line
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vla_nav.errors import UserError
from vla_nav.evaluation.results import read_results
from vla_nav.files import read_json

_BEFORE = {  # what older runs did not state
    "execution": "discrete",
    "task": None,
    "differs_from_task_or_data": [],
    "temperature": 0.0,
    "simulator_version": "",
}


@dataclass(frozen=True)
class Run:
    """One evaluation that was read back. records: row -> its records, by episode key."""

    folder: Path
    facts: Mapping[str, Any]
    records: Mapping[str, Mapping[tuple[str, ...], Mapping[str, Any]]]
    num_expected: int | None
    order: tuple[str, ...]

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages of its episodes, sorted; () where none is stated."""
        found = {r.get("language") for rows in self.records.values() for r in rows.values()}
        return tuple(sorted(language for language in found if language))


@dataclass(frozen=True)
class Group:
    """One line of the table: a run, or the runs of several seeds."""

    label: str
    runs: tuple[Run, ...]

    def shown(self, key: str) -> str:
        """The value of a fact, or the values where its runs differ."""
        return "/".join(sorted({str(run.facts[key]) for run in self.runs}))


def read_groups(entries: Sequence[str], labels: Sequence[str] = ()) -> tuple[Group, ...]:
    """The groups of `compare.runs`. Raises `UserError` where an entry holds no evaluation."""
    if not entries:
        raise UserError("compare.runs=[]: names no evaluation; give folders that evaluate wrote")
    if labels and len(labels) != len(entries):
        raise UserError(
            f"compare.labels: {len(labels)} labels for {len(entries)} runs; give one for each"
        )
    names = [str(label) for label in labels] or _short_names(entries)
    if len(set(names)) < len(names):
        raise UserError(f"compare.labels={names}: give every run a name of its own")
    pairs = zip(names, entries, strict=True)
    return tuple(Group(name, tuple(map(read_run, folders_of(entry)))) for name, entry in pairs)


def folders_of(entry: str) -> list[Path]:
    """The folder itself where it is an evaluation, else its subfolders that are, 2 before 10."""
    folder = Path(entry)
    if (folder / "run.json").is_file():
        return [folder]
    found = runs_below(folder)
    if not found:
        raise UserError(
            f"compare.runs: {folder} is no folder of an evaluation, nor has it folders of several "
            "(run.json); name what evaluate wrote as paths.output_dir"
        )
    return found


def runs_below(folder: Path) -> list[Path]:
    """The subfolders that hold something with a run.json, 2 before 10."""
    return sorted((path.parent for path in folder.glob("*/run.json")), key=_natural)


def read_run(folder: Path) -> Run:
    """One evaluation. Raises `UserError` for a folder of something else."""
    facts = read_json(folder / "run.json")
    if not isinstance(facts, dict) or "success" not in facts or "embodiment" not in facts:
        raise UserError(f"{folder / 'run.json'}: not of an evaluation; name a folder of evaluate")
    records: dict[str, dict[tuple[str, ...], Any]] = {}
    for (row, *key), record in read_results(folder).items():
        records.setdefault(row, {})[tuple(key)] = record
    report = folder / "report.json"
    rows = read_json(report)["rows"] if report.is_file() else []
    return Run(
        folder,
        {**_BEFORE, **facts},
        records,
        rows[0]["num_expected"] if rows else None,
        tuple(row["name"] for row in rows),
    )


def rows_of(groups: Sequence[Group], wanted: Sequence[str] | None) -> tuple[str, ...]:
    """The rows to show: those asked for, or all that every run has. Raises `UserError`."""
    runs = [run for group in groups for run in group.runs]
    if wanted:
        for run in runs:
            for row in wanted:
                if row not in run.records:
                    has = ", ".join(run.records) or "no results"
                    raise UserError(f"compare.rows: {run.folder} has no row '{row}'; it has {has}")
        return tuple(wanted)
    shared = set.intersection(*(set(run.records) for run in runs))
    rows = tuple(row for row in runs[0].order or runs[0].records if row in shared)
    if not rows:
        raise UserError("compare.runs: they have no row in common; name runs that share one")
    return rows


def _short_names(entries: Sequence[str]) -> list[str]:
    """The last parts of the folders' paths, as few as tell them apart."""
    parts = [Path(entry).parts for entry in entries]
    for count in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-count:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    raise UserError(f"compare.runs={list(entries)}: names a folder twice; name each once")


def _natural(path: Path) -> list[tuple[int, str]]:
    return [
        (int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path.name)
    ]
