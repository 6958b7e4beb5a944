"""Which evaluations may stand in one table: what must not be mixed is refused.

Two numbers compare where everything but the policy is equal. Each kind of difference has a name;
`compare.allow=[sensors]` lets that kind pass, and the table then says so:

    sensors      cameras                          backends    simulator and its options
    bodies       size, turn, step, sliding        executions  discrete steps or shortest path
    datasets     data set, role                   radii       success distance, strictness
    splits       split, episode file              limits      primitive actions per episode
    decoding     temperature (of network rows)
    episodes     which of the file's episodes     languages   of the instructions
    references   what nDTW compares with          incomplete  episodes without a result
    seeds        a run that stands in one line twice
    conditions   otherwise than the task, the data or the checkpoint's training
    other        anything else that run.json holds
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from vla_nav.errors import UserError, unknown_name
from vla_nav.evaluation.comparison_runs import Group, Run
from vla_nav.evaluation.conditions import CONDITIONS, Actor

KINDS = {  # key of run.json (of its embodiment, success, simulator) -> kind of difference
    "backend": "backends",
    "simulator": "backends",
    "simulator_version": "backends",
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
    "temperature": "decoding",
    "differs_from_training": "conditions",
    "differs_from_task_or_data": "conditions",
}
ALLOWED = (*sorted(set(KINDS.values())), "episodes", "languages", "incomplete", "seeds", "other")
# What makes one policy another, or moves no number but by rounding: it may differ. Of these, MARKED
# stand beneath the table where they do.
MARKED = ("decision", "deterministic")
FREE = {"checkpoint", "seed", *MARKED, "task", "success.further_m"}
OF_ROWS = {  # keys that matter to some rows alone
    "chance_stop_probability": {"random"},
    "expert_stop_radius_m": {"expert"},
    "temperature": {row.name for row in CONDITIONS if row.actor is Actor.NETWORK},
}


def refuse_mixing(
    groups: Sequence[Group], rows: Sequence[str], allow: Sequence[str]
) -> dict[str, list[str]]:
    """Refuse what must not stand in one table; kind -> what differs, for the kinds allowed."""
    for kind in allow:
        if kind not in ALLOWED:
            raise unknown_name("compare.allow entry", kind, ALLOWED)
    runs = [run for group in groups for run in group.runs]
    found: dict[str, list[str]] = {}
    for kind, text in [*_within(groups), *_each(runs, rows), *_between(runs, rows)]:
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


def _within(groups: Sequence[Group]) -> Iterator[tuple[str, str]]:
    """Runs of one line that are one run."""
    for group in groups:
        seen: dict[tuple[Any, Any], Path] = {}
        for run in group.runs:
            key = run.facts["seed"], run.facts["checkpoint"]
            if key in seen:
                yield "seeds", f"{seen[key]} and {run.folder} have one seed and one checkpoint"
            seen[key] = run.folder


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
    free = FREE | {key for key, of in OF_ROWS.items() if not of.intersection(rows)}
    for one, other in pairwise(runs):
        first, second = _flat(one.facts), _flat(other.facts)
        for key in sorted({*first, *second} - free):
            mine, yours = first.get(key), second.get(key)
            if mine != yours:
                text = f"{key} {_shown(mine)} in {one.folder}, {_shown(yours)} in {other.folder}"
                yield KINDS.get(key) or KINDS.get(key.partition(".")[0], "other"), text
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
    """run.json with the keys of its embodiment, success rule and simulator one by one."""
    flat = {}
    for key, value in facts.items():
        if key in ("embodiment", "success", "simulator"):
            flat.update({f"{key}.{name}": item for name, item in value.items()})
        else:
            flat[key] = value
    return flat


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 160 else text[:157] + "..."
