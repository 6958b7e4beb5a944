"""Findings of a check: a number, its bound, whether it holds; as a table and as plain values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Finding:
    """One row: `absolute` largest difference, `relative` by norm, held to `bound` on the relative
    (or on the absolute where there is no relative). `must_differ`: the difference has to be > 0.
    An infinite bound is information: it holds for every number. `section`: rows of one kind."""

    check: str
    absolute: float
    relative: float | None
    bound: float
    must_differ: bool = False
    note: str = ""
    section: str = ""

    @property
    def is_ok(self) -> bool:
        """Whether the bound holds; a NaN never does."""
        value = self.absolute if self.relative is None else self.relative
        return value > 0 if self.must_differ else value <= self.bound


def compare(
    check: str, found: torch.Tensor, expected: torch.Tensor, bound: float, *, note: str = ""
) -> Finding:
    """||found - expected|| / ||expected||, and the largest absolute difference."""
    if found.shape != expected.shape:
        return Finding(check, math.inf, None, bound, note=f"{found.shape} vs {expected.shape}")
    return Finding(check, *difference(found, expected), bound, note=note)


def difference(found: torch.Tensor, expected: torch.Tensor) -> tuple[float, float]:
    """(largest absolute, relative by norm) difference; 0 relative where both are zero."""
    if found.numel() == 0:
        return 0.0, 0.0
    gap = (found.detach().double() - expected.detach().double()).abs()
    norm = float(expected.detach().double().norm())
    distance = float(gap.norm())
    if distance == 0:
        return 0.0, 0.0
    return float(gap.max()), distance / norm if norm > 0 else math.inf


def excess(finding: Finding) -> float:
    """A finding's value over its bound; infinite for not a number, which `max` would drop."""
    value = finding.absolute if finding.relative is None else finding.relative
    if math.isnan(value):
        return math.inf
    return value / finding.bound if finding.bound else math.inf * value if value else 0.0


def largest(values: Iterable[float]) -> float:
    """The largest value, 0 for none; not a number where any is not one."""
    values = list(values)
    return math.nan if any(map(math.isnan, values)) else max(values, default=0.0)


def worst(check: str, findings: Sequence[Finding]) -> Finding:
    """The finding furthest over its bound, under the name `check`."""
    top = max(findings, key=excess)
    note = f"worst of {len(findings)}: {top.check}"
    return Finding(check, top.absolute, top.relative, top.bound, top.must_differ, note)


def render(findings: Sequence[Finding], *, title: str) -> str:
    """A plain table, one row per finding, a line above each section's first."""
    head = ("check", "absolute", "relative", "bound", "", "note")
    rows = [
        (
            finding.check,
            f"{finding.absolute:.3g}",
            "-" if finding.relative is None else f"{finding.relative:.3g}",
            _bound(finding),
            _verdict(finding),
            finding.note,
        )
        for finding in findings
    ]
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = [title, _line(head, widths)]
    section = ""
    for finding, row in zip(findings, rows, strict=True):
        if finding.section != section:
            section = finding.section
            lines += ["", f"[{section}]"]
        lines.append(_line(row, widths))
    return "\n".join(lines)


def as_values(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """Plain values for a JSON file; infinities and NaN as text, no bound as null."""
    rows = []
    for finding in findings:
        row = asdict(finding) | {"is_ok": finding.is_ok}
        for key in ("absolute", "relative"):
            value = row[key]
            row[key] = str(value) if value is not None and not math.isfinite(value) else value
        row["bound"] = finding.bound if math.isfinite(finding.bound) else None
        rows.append(row)
    return rows


def num_violated(findings: Sequence[Finding]) -> int:
    """Findings whose bound does not hold."""
    return sum(not finding.is_ok for finding in findings)


def _bound(finding: Finding) -> str:
    if finding.must_differ:
        return "> 0"
    if math.isinf(finding.bound):
        return "-"
    return f"{finding.bound:.0e}" if finding.bound else "0"


def _verdict(finding: Finding) -> str:
    if not finding.is_ok:
        return "VIOLATED"
    return "" if math.isinf(finding.bound) else "ok"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
    return "  ".join(padded).rstrip()
