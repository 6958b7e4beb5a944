"""The end of a sweep of trainings: one table of all jobs, whichever process trained them.

vla-nav train ... -m training.optimiser.learning_rate=1e-3,2e-3

job                                    steps   loss  accuracy  SR (step)     policy
training.optimiser.learning_rate=1e-3    500  0.812     0.734  0.410 (400)  .../0/policy
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from vla_nav.files import read_json

_COLUMNS = 124  # characters; a narrower terminal wraps lines rather than numbers


def print_sweep(folders: Mapping[Path, str]) -> None:
    """Print the table. folders: of the runs, with what tells each from the others.

    A run without a result (it failed, or was ended) is named as such.
    """
    results = {
        folder: read_json(folder / "result.json")
        for folder in folders
        if (folder / "result.json").is_file()
    }
    is_simulated = any("closed_loop" in result for result in results.values())
    table = Table(title="the sweep's runs; loss and accuracy of the validation")
    table.add_column("job", no_wrap=True)
    for name in ("steps", "loss", "action accuracy", *["best SR (step)"] * is_simulated):
        table.add_column(name, justify="right", no_wrap=True)
    for folder, result in results.items():
        validation = result["validation"]
        cells = [_number(validation.get(name)) for name in ("loss", "action_accuracy")]
        if is_simulated:
            cells.append(_best(result))
        table.add_row(folders[folder] or folder.name, str(result["steps"]), *cells)
    if results:
        console = Console()
        console.width = max(console.width, _COLUMNS)
        console.print(table)
    for folder in folders:
        print(
            f"policy: {_policy(results[folder])}" if folder in results else f"{folder}: no result"
        )


def _best(result: Mapping[str, Any]) -> str:
    best = result.get("closed_loop", {}).get("best")
    return "-" if best is None else f"{best['sr']:.3f} ({best['step']})"


def _policy(result: Mapping[str, Any]) -> str:
    """The best one in closed loop where there is one."""
    best = result.get("closed_loop", {}).get("best")
    return str(result["policy"] if best is None else best["policy"])


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
