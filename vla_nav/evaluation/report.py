"""The report of a run: report.json for programs, a table for the console, report.html for people.

report.json   {"rows": [{"name", "n", "sr", "sr_low", "sr_high", "spl", "ne_m", "ndtw", ...,
                         "public": {"vlnce": {...}, "internnav": {...}}}],
               "languages": the same per language, with "language" (RxR-CE; else empty),
               "run": what was evaluated, "definitions": ..., "timing": ...}
report.html   the same and every episode, in one file that needs no network
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jinja2
from rich.console import Console
from rich.table import Table as ConsoleTable

from vla_nav.evaluation import replays, throughput
from vla_nav.evaluation.aggregate import aggregate
from vla_nav.evaluation.approach import execution_text
from vla_nav.evaluation.conventions import DEFINITIONS as CONVENTIONS
from vla_nav.evaluation.languages import language_groups
from vla_nav.evaluation.metrics import DEFINITIONS
from vla_nav.evaluation.pictures import MAPS, VIDEOS
from vla_nav.evaluation.results import key_of
from vla_nav.files import atomic_path, write_json

_TEMPLATE = "report.html.j2"
_TABLE_COLUMNS = 124  # characters; a narrower terminal wraps lines rather than numbers
_AS_PUBLIC = {"SR": "sr", "OSR": "osr", "SPL": "spl", "NE": "ne_m", "nDTW": "ndtw"}
_EMBED_BYTES = 24 * 2**20  # pictures inside the HTML up to this much; the rest stay files


def write_report(
    folder: Path,
    records: Sequence[Mapping[str, Any]],
    *,
    rows: Sequence[str],
    num_expected: int,
    flag_policy: str,
    seed: int,
    facts: Mapping[str, Any],
    timing: throughput.Timing,
    languages: Mapping[str, int] = MappingProxyType({}),
    batching: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Aggregate `records`, write report.json and report.html, print the table; the report.

    num_expected: episodes per row, and of these with a stated language, `languages`. facts: what
    the results have in common (run.json). batching: what `vla_nav.evaluation.replays` found.
    """
    # In one order, so that sums do not depend on the order in which episodes ended.
    ordered = sorted(records, key=lambda record: (rows.index(record["row"]), key_of(record)))
    table = [
        aggregate(
            name,
            [record for record in ordered if record["row"] == name],
            num_expected=num_expected,
            flag_policy=flag_policy,
            seed=seed,
        )
        for name in rows
    ]
    report = {
        "rows": table,
        "languages": [
            {
                "language": group,
                **aggregate(
                    name,
                    [
                        record
                        for record in ordered
                        if record["row"] == name and record["language"] in members
                    ],
                    num_expected=sum(languages[member] for member in members),
                    flag_policy=flag_policy,
                    seed=seed,
                ),
            }
            for name in rows
            for group, members in language_groups(languages).items()
        ],
        "is_complete": len(records) == num_expected * len(rows),
        "flag_policy": flag_policy,
        "run": dict(facts),
        "definitions": {
            **DEFINITIONS,
            "intervals": "95 % bootstrap, whole scenes resampled",
            "threshold_m": facts["success"]["success_m"],
            "flagged": f"episodes without a finite geodesic: policy '{flag_policy}'",
            "execution": execution_text(facts.get("execution", "discrete"), ordered),
            **{f"public: {name}": text for name, text in CONVENTIONS.items()},
        },
        "timing": throughput.with_rates(timing),
        "batching": None if batching is None else dict(batching),
    }
    write_json(folder / "report.json", report)
    page = (
        _environment()
        .get_template(_TEMPLATE)
        .render(
            report=report,
            records=ordered,
            pictures=_pictures(folder),
            throughput=throughput.sentence(report["timing"]),
            batching=_batching_line(report),
        )
    )
    with atomic_path(folder / "report.html") as temporary:
        temporary.write_text(page, encoding="utf-8")
    console = Console()
    console.width = max(console.width, _TABLE_COLUMNS)
    console.print(console_table(report))
    told = (*_flag_lines(report), throughput.sentence(report["timing"]), _batching_line(report))
    for line in told:
        if line:
            print(line)
    print(f"report: {folder / 'report.html'}")
    return report


def console_table(report: Mapping[str, Any]) -> ConsoleTable:
    """The rows as a console table."""
    run = report["run"]
    further = sorted(
        name for name in report["rows"][0] if name.startswith("sr_") and name.endswith("m")
    )
    threshold = run["success"]["success_m"]
    table = ConsoleTable(
        title=f"{run['dataset']} {run['split']}, {run['backend']}, success at {threshold:g} m, "
        f"execution {run.get('execution', 'discrete')}"
    )
    table.add_column("row", no_wrap=True)
    for name in ("n", "SR [95 %]", *(name.upper().replace("_", " ") for name in further)):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("OSR", "SPL", "NE m", "nDTW", "steps", "flags"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in [*report["rows"], *report["languages"]]:
        table.add_row(
            f"{row['name']} {row['language']}" if "language" in row else row["name"],
            f"{row['n']}/{row['num_expected']}",
            bounded(row),
            *(number(row[name]) for name in further),
            *(number(row[name]) for name in ("osr", "spl", "ne_m", "ndtw")),
            number(row["steps"], 1),
            str(row["num_flagged"]),
        )
    return table


def bounded(row: Mapping[str, Any]) -> str:
    """The success rate of a row with its interval."""
    return f"{number(row['sr'])} [{number(row['sr_low'])}, {number(row['sr_high'])}]"


def number(value: float | str | None, digits: int = 2) -> str:
    """A number with its digits; "inf" and "nan" of the public conventions as they are."""
    return "-" if value is None else f"{float(value):.{digits}f}"


def _batching_line(report: Mapping[str, Any]) -> str:
    said = report["batching"]
    return "" if said is None else replays.sentence(said)


def _pictures(folder: Path) -> list[dict[str, str]]:
    """Videos and maps with their data inside, as far as they are small enough together."""
    found = []
    left = _EMBED_BYTES
    for kind, mime in ((MAPS, "image/png"), (VIDEOS, "video/mp4")):
        for path in sorted((folder / kind).rglob("*.*")):
            size = path.stat().st_size
            left -= size
            source = str(path.relative_to(folder))
            if left >= 0:
                source = f"data:{mime};base64,{base64.b64encode(path.read_bytes()).decode()}"
            name = str(path.relative_to(folder / kind))
            found.append({"kind": kind, "name": name, "source": source})
    return found


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = number
    environment.filters["pretty"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment


def _flag_lines(report: Mapping[str, Any]) -> list[str]:
    """Of rows with flagged episodes: what is done with them, and what public code makes of them."""
    lines = []
    for row in report["rows"]:
        if row["num_flagged"] and row["public"]:
            vlnce = row["public"]["vlnce"]
            shown = (f"{name} {number(vlnce[key])}" for name, key in _AS_PUBLIC.items())
            lines.append(
                f"{row['name']}: {row['num_flagged']} of {row['num_expected']} episodes have no "
                f"finite geodesic ({report['flag_policy']}); as VLN-CE counts all: "
                f"{', '.join(shown)}"
            )
    return lines
