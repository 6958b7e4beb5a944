"""`vla-nav compare`: one table of several evaluations, for the console, a paper and programs.

    compare.json   lines (every measure with its mean, spread and interval), what they share, what
                   was allowed to differ
    compare.md     the table with its conditions underneath

The records are aggregated afresh, under one flag policy or one public convention for all lines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as ConsoleTable

from vla_nav.errors import unknown_name
from vla_nav.evaluation.aggregate import FLAG_POLICIES
from vla_nav.evaluation.comparison import MARKED, refuse_mixing
from vla_nav.evaluation.comparison_lines import MEASURES, Line, compare
from vla_nav.evaluation.comparison_runs import Group, read_groups, rows_of
from vla_nav.evaluation.conventions import CONVENTIONS, DEFINITIONS
from vla_nav.evaluation.spread import Spread
from vla_nav.files import atomic_path, write_json

TITLES = {"sr": "SR", "osr": "OSR", "spl": "SPL", "ne_m": "NE m", "ndtw": "nDTW", "sdtw": "SDTW"}
TITLES |= {"steps": "steps"}
_WIDEST = 1000  # characters
_NUM_TEXTS = 3  # columns of names, before those of numbers


def compare_from(config: Mapping[str, Any]) -> int:
    """Compare as the composed configuration `conf/compare.yaml` says; the exit code."""
    options = config["compare"]
    counting = options["convention"] or options["flag_policy"]
    if counting not in (*FLAG_POLICIES, *CONVENTIONS):
        key = "convention" if options["convention"] else "flag_policy"
        raise unknown_name(
            f"compare.{key}", counting, CONVENTIONS if key[0] == "c" else FLAG_POLICIES
        )
    groups = read_groups(options["runs"], options["labels"])
    rows = rows_of(groups, options["rows"])
    mixed = refuse_mixing(groups, rows, options["allow"])
    lines = compare(
        groups, rows, counting=counting, by_language=options["by_language"], seed=config["seed"]
    )
    folder = Path(config["paths"]["output_dir"])
    write_comparison(folder, lines, groups, counting=counting, mixed=mixed)
    return 0


def write_comparison(
    folder: Path,
    lines: Sequence[Line],
    groups: Sequence[Group],
    *,
    counting: str,
    mixed: Mapping[str, Sequence[str]],
) -> None:
    """Write compare.json and compare.md, print the table."""
    notes = list(_notes(groups, counting, mixed))
    heads, cells = _cells(lines)
    write_json(
        folder / "compare.json",
        {
            "lines": [_plain(line) for line in lines],
            "counting": counting,
            "allowed_differences": {kind: list(texts) for kind, texts in mixed.items()},
            "runs": {group.label: [str(run.folder) for run in group.runs] for group in groups},
            "facts": dict(groups[0].runs[0].facts),
            "notes": notes,
        },
    )
    rule = ["---"] * _NUM_TEXTS + ["---:"] * (len(heads) - _NUM_TEXTS)
    text = "\n".join("| " + " | ".join(part) + " |" for part in (heads, rule, *cells))
    with atomic_path(folder / "compare.md") as temporary:
        temporary.write_text(f"{text}\n\n" + "\n".join(f"- {x}" for x in notes) + "\n", "utf-8")
    table = ConsoleTable()
    for place, head in enumerate(heads):
        table.add_column(head, justify="left" if place < _NUM_TEXTS else "right", no_wrap=True)
    for part in cells:
        table.add_row(*part)
    console = Console()
    console.width = _WIDEST
    console.width = console.measure(table).maximum  # a narrow terminal wraps lines, not numbers
    console.print(table)
    for note in notes:
        print(note)
    print(f"written to {folder / 'compare.md'} and compare.json")


def _cells(lines: Sequence[Line]) -> tuple[list[str], list[list[str]]]:
    """Heads and cells of the table; columns that no line has a value for are left out."""
    shown = [
        name for name in MEASURES if any(line.measures[name].mean is not None for line in lines)
    ]
    has_language = any(line.language for line in lines)
    has_seeds = any(line.num_runs > 1 for line in lines)
    has_gain = any(line.gain is not None for line in lines)
    heads = [
        *("run", "backend", "row"),
        *(["language"] if has_language else []),
        *(["runs"] if has_seeds else []),
    ]
    heads += ["n", "SR [95 %]", *(TITLES[name] for name in shown if name != "sr"), "flagged"]
    heads += ["SR - first [95 %]"] if has_gain else []
    cells = []
    for line in lines:
        part = [line.label, line.backend, line.row]
        part += [line.language or "all"] if has_language else []
        part += [str(line.num_runs)] if has_seeds else []
        sr = line.measures["sr"]
        part += [str(line.n), f"{_number(sr)} {_bounds(sr)}".strip()]
        part += [
            _number(line.measures[name], 1 if name == "steps" else 2)
            for name in shown
            if name != "sr"
        ]
        part.append(str(line.num_flagged))
        if has_gain:
            gain = line.gain
            part.append("" if gain is None else f"{_number(gain, sign='+')} {_bounds(gain, '+')}")
        cells.append(part)
    return heads, cells


def _notes(
    groups: Sequence[Group], counting: str, mixed: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    runs = [run.facts for group in groups for run in group.runs]

    def said(of: Callable[[Mapping[str, Any]], str]) -> str:
        return " | ".join(sorted({of(facts) for facts in runs}))

    yield ", ".join(
        (
            said(lambda facts: f"{facts['dataset']} {facts['split']} {facts['role']}".strip()),
            said(lambda facts: facts["backend"]),
            f"success at {said(lambda facts: format(facts['success']['success_m'], 'g'))} m",
            f"execution {said(lambda facts: facts['execution'])}",
        )
    )
    if counting in CONVENTIONS:
        yield f"counted by the public convention {counting}: {DEFINITIONS[counting]}"
    else:
        yield f"episodes without a finite geodesic: {counting}"
    if len(runs) > len(groups):
        yield (
            "several runs: mean and standard deviation over them; intervals resample scenes and "
            "runs (95 % bootstrap)"
        )
    else:
        yield "intervals: 95 % bootstrap, whole scenes resampled; differences paired by episode"
    for group in groups:
        policies = {(run.facts["checkpoint"], run.facts["temperature"]) for run in group.runs}
        (checkpoint, temperature), *others = policies
        if len(group.runs) > 1 and checkpoint and temperature == 0 and not others:
            yield (
                f"{group.label}: one checkpoint at temperature 0 does the same for every seed; "
                "only its rows `random` and `swapped_instruction` can scatter"
            )
    for key in MARKED:
        values = said(lambda facts, key=key: str(facts.get(key)))
        if " | " in values:
            yield f"{key} differs, which is allowed: {values}"
    for kind, texts in sorted(mixed.items()):
        yield f"NOT EQUAL, {kind}: {'; '.join(texts)}"


def _plain(line: Line) -> dict[str, Any]:
    def of(value: Spread) -> dict[str, Any]:
        return {
            name: [_json(x) for x in item] if isinstance(item, tuple) else _json(item)
            for name, item in value._asdict().items()
        }

    return {
        **line._asdict(),
        "measures": {name: of(value) for name, value in line.measures.items()},
        "gain": None if line.gain is None else of(line.gain),
    }


def _json(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else str(value)


def _number(value: Spread, digits: int = 2, sign: str = "") -> str:
    if value.mean is None:
        return "-"
    text = f"{value.mean:{sign}.{digits}f}"
    return text if value.std is None else f"{text} ± {value.std:.{digits}f}"


def _bounds(value: Spread, sign: str = "") -> str:
    return "" if value.low is None else f"[{value.low:{sign}.2f}, {value.high:{sign}.2f}]"
