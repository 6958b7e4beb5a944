"""The end of a sweep of evaluations: one table of all that it made, and where the reports are.

-m seed=0,1,2                            a line per seed and row
-m evaluation.shard=range(8)             one evaluation, whoever played it
-m evaluation.shard=range(8) seed=0,1    a line per seed and row
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from vla_nav.evaluation.report import bounded, number
from vla_nav.files import read_json

_COLUMNS = 124  # characters; a narrower terminal wraps lines rather than numbers
_MEASURES = {"OSR": "osr", "SPL": "spl", "NE m": "ne_m", "nDTW": "ndtw"}


def print_sweep(folders: Mapping[Path, str]) -> None:
    """Print the table. folders: of the evaluations, with what tells each from the others.

    One that has no report yet (a job failed, a shard is still to come) is named as such.
    """
    reports = {
        folder: read_json(folder / "report.json")
        for folder in folders
        if (folder / "report.json").is_file()
    }
    table = Table(title="the sweep's evaluations")
    for name in ("job", "row"):
        table.add_column(name, no_wrap=True)
    for name in ("n", "SR [95 %]", *_MEASURES, "steps", "flags"):
        table.add_column(name, justify="right", no_wrap=True)
    for folder, report in reports.items():
        for row in report["rows"]:
            table.add_row(
                folders[folder] or folder.name,
                row["name"],
                f"{row['n']}/{row['num_expected']}",
                bounded(row),
                *(number(row[name]) for name in _MEASURES.values()),
                number(row["steps"], 1),
                str(row["num_flagged"]),
            )
    if reports:
        console = Console()
        console.width = max(console.width, _COLUMNS)
        console.print(table)
    for folder in folders:
        print(f"report: {folder / 'report.html'}" if folder in reports else f"{folder}: no report")
