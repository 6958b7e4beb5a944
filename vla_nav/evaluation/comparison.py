"""Which evaluations may stand in one table: they are read, and what must not be mixed is refused.

    compare.runs=[runs/a, runs/b]         a line for each entry
      runs/a/run.json                     one run
      runs/b/{0,1,2}/run.json             a run per seed (evaluate -m seed=0,1,2): one line

Two numbers compare where everything but the policy is equal. Each kind of difference has a name;
`compare.allow=[sensors]` lets that kind pass, and the table then says so:

    sensors      cameras                          backends    simulator and its options
    bodies       size, turn, step, sliding        executions  discrete steps or shortest path
    datasets     data set, role                   radii       success distance, strictness
    splits       split, episode file              limits      primitive actions per episode
    episodes     which of the file's episodes     languages   of the instructions
    references   what nDTW compares with          incomplete  episodes without a result
    conditions   otherwise than the task, the data or the checkpoint's training
    other        anything else that run.json holds
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from vla_nav.errors import UserError, unknown_name
from vla_nav.evaluation.results import read_results
from vla_nav.files import read_json

KINDS = {  # key of run.json (of its embodiment, success) -> kind of difference
    "backend": "backends",
    "simulator": "backends",
    "dataset": "datasets",
    "role": "datasets",
    "split": "splits",
    "episodes": "splits",
    "ground_truth": "references",
    "embodiment.cameras": "sensors",
    "embodiment.radius_m": "bodies",
    "embodiment.height_m": "bodies",
    "embodiment.turn_deg": "bodies",
    "embodiment.step_m": "bodies",
    "embodiment.is_sliding": "bodies",
    "success.success_m": "radii",
    "success.is_strict": "radii",
    "max_primitives": "limits",
    "execution": "executions",
    "differs_from_training": "conditions",
    "differs_from_task_or_data": "conditions",
}
ALLOWED = (*sorted(set(KINDS.values())), "episodes", "languages", "incomplete", "other")
# What makes one policy another, or is written down and moves no number.
FREE = {"checkpoint", "seed", "decision", "deterministic", "temperature", "task"}
FREE |= {"success.further_m", "chance_stop_probability", "expert_stop_radius_m"}
_BEFORE = {"execution": "discrete", "task": None, "differs_from_task_or_data": []}  # older runs


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
    found = sorted((path.parent for path in folder.glob("*/run.json")), key=_natural)
    if not found:
        raise UserError(
            f"compare.runs: {folder} is no folder of an evaluation, nor has it folders of several "
            "(run.json); name what evaluate wrote as paths.output_dir"
        )
    return found


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


def refuse_mixing(
    groups: Sequence[Group], rows: Sequence[str], allow: Sequence[str]
) -> dict[str, list[str]]:
    """Refuse what must not stand in one table; kind -> what differs, for the kinds allowed."""
    for kind in allow:
        if kind not in ALLOWED:
            raise unknown_name("compare.allow entry", kind, ALLOWED)
    runs = [run for group in groups for run in group.runs]
    found: dict[str, list[str]] = {}
    for kind, text in [*_each(runs, rows), *_between(runs, rows)]:
        if text not in (texts := found.setdefault(kind, [])):
            texts.append(text)
    refused = {kind: texts for kind, texts in found.items() if kind not in allow}
    if refused:
        told = "; ".join(f"{kind}: {texts[0]}" for kind, texts in sorted(refused.items()))
        raise UserError(
            f"compare.runs: these do not belong in one table ({told}); compare runs that agree, or "
            f"set compare.allow=[{','.join(sorted({*allow, *refused}))}]"
        )
    return found


def _each(runs: Sequence[Run], rows: Sequence[str]) -> Iterator[tuple[str, str]]:
    """What is wrong with a run by itself."""
    for run in runs:
        for row in rows:
            number = len(run.records.get(row, {}))
            if run.num_expected is None:
                yield "incomplete", f"{run.folder} has no report.json: it has not finished"
            elif number < run.num_expected:
                text = f"{run.folder} has {number} of {run.num_expected} episodes of row '{row}'"
                yield "incomplete", text
            elif number > run.num_expected:
                text = f"{run.folder} reports {run.num_expected} of its {number} results of a row"
                yield "incomplete", text


def _between(runs: Sequence[Run], rows: Sequence[str]) -> Iterator[tuple[str, str]]:
    """What differs between each run and the one before it."""
    for one, other in pairwise(runs):
        first, second = _flat(one.facts), _flat(other.facts)
        for key in sorted({*first, *second} - FREE):
            mine, yours = first.get(key), second.get(key)
            if mine != yours:
                text = f"{key} {_shown(mine)} in {one.folder}, {_shown(yours)} in {other.folder}"
                yield KINDS.get(key, "other"), text
        if one.languages != other.languages:
            mine, yours = (", ".join(run.languages) or "none" for run in (one, other))
            yield "languages", f"{mine} in {one.folder}, {yours} in {other.folder}"
        for row in rows:
            mine, yours = (set(run.records.get(row, {})) for run in (one, other))
            if mine != yours:
                text = f"{len(mine - yours)} only in {one.folder}, {len(yours - mine)} only in "
                yield "episodes", f"{text}{other.folder}"
                break


def _flat(facts: Mapping[str, Any]) -> dict[str, Any]:
    """run.json with the keys of its embodiment and success rule one by one."""
    flat = {}
    for key, value in facts.items():
        if key in ("embodiment", "success"):
            flat.update({f"{key}.{name}": item for name, item in value.items()})
        else:
            flat[key] = value
    return flat


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 160 else text[:157] + "..."


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
