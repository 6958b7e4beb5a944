"""The lines of a comparison: every measure of every group, afresh from the records.

    group x row (x language)  ->  Line: n, measures with spread and interval, gain over the first

All lines are counted alike: by a flag policy (`exclude`, `failure`) or by a public convention
(`vlnce`, ...), whatever the runs' own reports were counted by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from vla_nav.evaluation.comparison_runs import Group
from vla_nav.evaluation.conventions import CONVENTIONS, public_score
from vla_nav.evaluation.languages import language_groups
from vla_nav.evaluation.spread import Spread, Values, difference, spread

MEASURES = ("sr", "osr", "spl", "ne_m", "ndtw", "sdtw", "steps")


class Line(NamedTuple):
    """One line: which runs, row and language, how many episodes, and every measure."""

    label: str
    backend: str
    row: str
    language: str
    num_runs: int
    n: int
    num_flagged: int
    measures: dict[str, Spread]
    gain: Spread | None


def compare(
    groups: Sequence[Group],
    rows: Sequence[str],
    *,
    counting: str,
    by_language: bool,
    seed: int,
) -> list[Line]:
    """The lines: rows within groups, and where asked for the languages of each.

    counting: a flag policy (`exclude`, `failure`) or a public convention (`vlnce`, ...).
    """
    spoken = {language for group in groups for run in group.runs for language in run.languages}
    parts: dict[str, tuple[str, ...] | None] = {"": None}
    if by_language:
        parts |= language_groups(spoken)
    lines = []
    for row in rows:
        for language, members in parts.items():
            first: list[Values] | None = None
            for group in groups:
                chosen = [_chosen(run.records.get(row, {}), members) for run in group.runs]
                if not all(chosen):
                    continue
                measures = {
                    name: [_values(records, name, counting) for records in chosen]
                    for name in MEASURES
                }
                own = measures["sr"]
                gain = None if first is None else difference(first, own, seed=seed)
                first = own if first is None else first
                lines.append(
                    Line(
                        group.label,
                        group.shown("backend"),
                        row,
                        language,
                        len(group.runs),
                        sum(map(len, own)),
                        sum(r["flag"] is not None for records in chosen for r in records.values()),
                        {name: spread(values, seed=seed) for name, values in measures.items()},
                        gain,
                    )
                )
    return lines


def _chosen(
    records: Mapping[tuple[str, ...], Mapping[str, Any]], members: Sequence[str] | None
) -> Mapping[tuple[str, ...], Mapping[str, Any]]:
    if members is None:
        return records
    return {key: record for key, record in records.items() if record.get("language") in members}


def _values(
    records: Mapping[tuple[str, ...], Mapping[str, Any]], measure: str, counting: str
) -> Values:
    """Each episode's value of a measure as `counting` has it; those that it leaves out are not
    there."""
    values = {}
    for key, record in sorted(records.items()):
        value = _value(record, measure, counting)
        if value is not None:
            values[key] = (record["scene_id"], value)
    return values


def _value(record: Mapping[str, Any], measure: str, counting: str) -> float | None:
    if counting in CONVENTIONS:
        if measure == "steps":
            return float(record["steps"])
        return public_score(record.get("public") or {}, measure, counting)
    if record["flag"] is not None:
        if counting == "exclude":
            return None
        if measure not in ("ne_m", "steps"):
            return 0.0
    value = record[measure]
    return None if value is None else float(value)
