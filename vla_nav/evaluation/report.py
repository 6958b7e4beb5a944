"""The report of a run: report.json for programs, a table for the console, report.html for people.

report.json   {"rows": [{"name", "n", "sr", "sr_low", "sr_high", "spl", "ne_m", "ndtw", ...}],
               "run": what was evaluated, "definitions": ..., "timing": ...}
report.html   the same and every episode, in one file that needs no network
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jinja2
from rich.console import Console
from rich.table import Table as ConsoleTable

from vla_nav.evaluation.aggregate import aggregate
from vla_nav.evaluation.metrics import DEFINITIONS
from vla_nav.evaluation.pictures import MAPS, VIDEOS
from vla_nav.evaluation.results import key_of
from vla_nav.evaluation.slots import Timing
from vla_nav.files import atomic_path, write_json

_TEMPLATE = "report.html.j2"
_TABLE_COLUMNS = 124  # characters; a narrower terminal wraps lines rather than numbers
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
    timing: Timing,
) -> dict[str, Any]:
    """Aggregate `records`, write report.json and report.html, print the table; the report.

    num_expected: episodes per row. facts: what the results have in common (run.json).
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
        "is_complete": len(records) == num_expected * len(rows),
        "flag_policy": flag_policy,
        "run": dict(facts),
        "definitions": {
            **DEFINITIONS,
            "intervals": "95 % bootstrap, whole scenes resampled",
            "threshold_m": facts["success"]["success_m"],
            "flagged": f"episodes without a finite geodesic: policy '{flag_policy}'",
        },
        "timing": _timing(timing),
    }
    write_json(folder / "report.json", report)
    page = (
        _environment()
        .get_template(_TEMPLATE)
        .render(report=report, records=ordered, pictures=_pictures(folder))
    )
    with atomic_path(folder / "report.html") as temporary:
        temporary.write_text(page, encoding="utf-8")
    console = Console()
    console.width = max(console.width, _TABLE_COLUMNS)
    console.print(console_table(report))
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
        title=f"{run['dataset']} {run['split']}, {run['backend']}, success at {threshold:g} m"
    )
    table.add_column("row", no_wrap=True)
    for name in ("n", "SR [95 %]", *(name.upper().replace("_", " ") for name in further)):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("OSR", "SPL", "NE m", "nDTW", "steps", "flags"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in report["rows"]:
        table.add_row(
            row["name"],
            f"{row['n']}/{row['num_expected']}",
            f"{_number(row['sr'])} [{_number(row['sr_low'])}, {_number(row['sr_high'])}]",
            *(_number(row[name]) for name in further),
            *(_number(row[name]) for name in ("osr", "spl", "ne_m", "ndtw")),
            _number(row["steps"], 1),
            str(row["num_flagged"]),
        )
    return table


def _timing(timing: Timing) -> dict[str, Any]:
    """Seconds and rates of this start (not of what earlier starts had finished)."""
    values = asdict(timing)
    wall = timing.wall_s
    values["policy_share"] = timing.policy_s / wall if wall else None
    values["episodes_per_s"] = timing.num_episodes / wall if wall else None
    values["frames_per_s"] = timing.num_decisions / wall if wall else None
    return {
        key: round(value, 4) if isinstance(value, float) else value for key, value in values.items()
    }


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
    environment.filters["number"] = _number
    environment.filters["pretty"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
