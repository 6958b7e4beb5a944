"""What doctor prints: findings of a data set, or probes of an installation, as plain lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vla_nav.episodes.checks import SEVERITIES, DataReport, Finding
from vla_nav.verification.probes import Probe

_PRINTED_EXAMPLES = 3
_FACTS = (
    "episodes",
    "scenes",
    "release",
    "actions_per_episode",
    "stated_turn_deg",
    "inferred_turn_deg",
    "stated_step_m",
    "inferred_step_m",
    "action_prior",
    "forward_steps_bent",
    "frames",
)


def data_text(report: DataReport) -> str:
    """Facts, then every finding with its first examples and remedy."""
    lines = [f"{report.path}: split '{report.split}', format {report.format}"]
    for name in _FACTS:
        value = report.facts.get(name)
        if value not in (None, {}, 0):
            lines.append(f"  {name.replace('_', ' ')}: {_plain(value)}")
    for finding in report.findings:
        lines += ["", *_finding(finding)]
    lines += ["", _count(report.findings)]
    return "\n".join(lines)


def installation_text(probes: Sequence[Probe]) -> str:
    """One line a probe, and the remedy of those that are not well."""
    lines = []
    for probe in probes:
        lines.append(f"{probe.code}  {probe.severity:<7}  {probe.name}: {probe.found}")
        if probe.remedy:
            lines.append(f"                 remedy: {probe.remedy}")
    counts = ", ".join(
        f"{sum(p.severity == severity for p in probes)} {severity}"
        for severity in (*SEVERITIES, "ok")
    )
    return "\n".join([*lines, "", counts])


def _finding(finding: Finding) -> list[str]:
    unit = "episode" if finding.count == 1 else "episodes"
    lines = [f"{finding.code}  {finding.severity:<7}  {finding.meaning}  ({finding.count} {unit})"]
    for example in finding.examples[:_PRINTED_EXAMPLES]:
        episode = f"episode {example.episode}: " if example.episode else ""
        key = f"{example.key}: " if example.key else ""
        text = f"{episode}{key}{example.value}"
        lines.append(f"        {text if example.file in text else f'{example.file}: {text}'}")
    return [*lines, f"        remedy: {finding.remedy}"]


def _count(findings: Sequence[Finding]) -> str:
    return ", ".join(
        f"{sum(f.severity == severity for f in findings)} {severity}" for severity in SEVERITIES
    )


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {share:.1%}" for name, share in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)
