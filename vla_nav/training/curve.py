"""The curve of a run as one JSON line per logged step, continued without gaps or repeats.

    {"step": 20, "loss": 2.31, "learning_rate": 0.0004, ...}
    {"step": 500, "val/loss": 1.02, "val/action_accuracy": 0.61, ...}

A value that is no number (a rate without a single case, a loss that diverged) is null.
A continued run first drops the lines behind its checkpoint, because their steps are taken again.
"""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers.logger import Logger

from vla_nav.files import atomic_path


class CurveLogger(Logger):
    """Appends scalars to `path`; every line is flushed, a torn last line is dropped on reading."""

    def __init__(self, path: str | Path, *, resumed_step: int = 0) -> None:
        super().__init__()
        self.path = Path(path)
        kept = [row for row in read_curve(self.path) if row["step"] <= resumed_step]
        self._kept = {(row["step"], frozenset(row.keys() - {"step"})) for row in kept}
        if rank_zero_only.rank == 0:
            with atomic_path(self.path) as temporary:
                temporary.write_text("".join(json.dumps(row) + "\n" for row in kept))

    @property
    def name(self) -> str:
        """Lightning's name of this logger."""
        return "curve"

    @property
    def version(self) -> str:
        """Lightning's version of this logger."""
        return ""

    @rank_zero_only
    def log_hyperparams(self, params: Any, *_: Any, **__: Any) -> None:
        """Nothing: the configuration is stored with the run."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Append one line."""
        values = {
            name: float(value) if math.isfinite(value) else None
            for name, value in metrics.items()
            if name != "epoch"
        }
        if values and (step, frozenset(values)) not in self._kept:
            line = json.dumps({"step": step, **values}, allow_nan=False) + "\n"
            try:
                with open(self.path, "a", encoding="utf-8") as handle:
                    handle.write(line)
            except OSError as error:
                error.filename = str(self.path)  # a full disk says so without a name
                raise


def write_csv(curve: str | Path, target: str | Path) -> None:
    """The curve as a table: one column per value, empty where a step did not log it."""
    rows = read_curve(curve)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with atomic_path(target) as temporary, open(temporary, "w", newline="") as handle:
        writer = csv.DictWriter(handle, columns)
        writer.writeheader()
        writer.writerows(rows)


def read_curve(path: str | Path) -> list[dict[str, float | None]]:
    """The rows of a curve file, in order; a last line torn by a kill is left out."""
    rows: list[dict[str, float | None]] = []
    if not Path(path).exists():
        return rows
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows
