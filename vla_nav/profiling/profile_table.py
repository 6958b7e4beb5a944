"""The numbers of `vla-nav profile` as text for people.

part                 forward  backward  recompute    step      ms   share  predicted
vision                  12.1      24.0        0.0     0.0    36.1   21.4 %
backbone                31.0      66.2        0.0     0.0    97.2   57.7 %
  backbone attention     8.2      19.5                       27.7   16.4 %      11.0
  ...
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vla_nav.profiling.profile_report import GROUPS
from vla_nav.profiling.regions import PHASES
from vla_nav.training.stats_cost import hours_text


def profile_table(result: Mapping[str, Any]) -> str:
    """Groups with their parts, then what they are held against."""
    lines = [
        f"{'part':<22}{'forward':>10}{'backward':>10}{'recompute':>10}{'step':>10}"
        f"{'ms':>10}{'share':>9}{'predicted':>11}"
    ]
    for group in result["groups"]:
        lines.append(_line(group["name"], group, ""))
        regions = GROUPS[group["name"]]
        rows = region_rows(result)
        if regions != (group["name"],):
            lines += [
                _line(f"  {region}", rows[region], _ms(rows[region]["predicted_ms"]))
                for region in regions
                if region in rows
            ]
    facts = fact_rows(result)
    width = max(len(name) for name, _ in facts)
    lines += ["", *(f"{name:<{width}}  {text}" for name, text in facts)]
    lines += [f"note: {text}" for text in result["notes"]]
    return "\n".join(lines)


def region_rows(result: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The parts by region: ms of every pass and in all, share, predicted."""
    found: dict[str, dict[str, Any]] = {}
    for part in result["parts"]:
        row = found.setdefault(
            part["region"],
            {f"{phase}_ms": 0.0 for phase in PHASES}
            | {"ms": 0.0, "share": 0.0, "predicted_ms": None},
        )
        row[f"{part['phase']}_ms"] += part["ms"]
        row["ms"] += part["ms"]
        row["share"] += part["share"]
        if part["predicted_ms"] is not None:
            row["predicted_ms"] = (row["predicted_ms"] or 0.0) + part["predicted_ms"]
    return found


def fact_rows(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name and text of everything beside the parts."""
    steps, check, overhead = result["steps"], result["check"], result["overhead"]
    made, memory, mfu = result["structure"], result["memory"], result["mfu"]
    prediction, epoch, costs = result["prediction"], result["epoch"], result["costs"]
    verdict = "within" if check["adds_up"] else "NOT within"
    transfer = prediction["transfer_gb_per_s"]
    rows = [
        (
            "sum of the parts",
            f"{100 * (1 + check['difference']):.2f} % of the wall time, {verdict} "
            f"{100 * check['tolerance']:.0f} %; unattributed "
            f"{100 * check['unattributed_share']:.1f} %",
        ),
        (
            "step",
            f"{steps['bare_ms']:.1f} ms bare ({steps['bare']} steps), "
            f"{steps['profiled_ms']:.1f} ms profiled ({steps['profiled']}); "
            f"{steps['tokens_per_s']:,.0f} tokens/s, "
            f"{steps['trees_per_s']:.3g} trees/s",
        ),
        (
            "cost of profiling",
            f"{100 * overhead['profiling']:+.1f} % per FLOP (bare blocks alone differ by "
            f"{100 * overhead['bare_spread']:.1f} %)",
        ),
        (
            "predicted step",
            f"{prediction['step_ms']:.1f} ms at {prediction['matmul_tflops']:.3g} TFLOP/s, "
            f"{prediction['copy_gb_per_s']:.3g} GB/s"
            + (f", {transfer:.3g} GB/s to the device" if transfer else "")
            + f" (measured); the step takes {prediction['measured_over_predicted']:.2f} times that",
        ),
        (
            "MFU",
            f"{mfu['mfu']:.3f} of {mfu['peak_source']}; {mfu['flops_per_step']:.3g} FLOPs a step",
        ),
        (
            "an epoch",
            f"{epoch['steps']:,} steps, {hours_text(epoch['hours'])}; "
            f"{hours_text(epoch['device_hours'])} of one device",
        ),
        (
            "data wait",
            f"{steps['host_data_wait_ms']:.2f} ms a step in the main thread "
            f"({100 * steps['host_data_wait_ms'] / steps['profiled_ms']:.1f} %)",
        ),
        (
            "cost model",
            f"{100 * costs['error']:.1f} % off fitted to {len(costs['steps'])} steps, "
            f"{100 * costs['error_of_flops']:.1f} % by FLOPs alone (training.cost_profile)",
        ),
        ("POR", f"{made['por']:.3f}, token bound {made['token_bound']:.2f} x"),
        (
            "blocks",
            f"{made['live_block_ratio']:.3f} of a causal mask's are live, {made['density']:.3f} of "
            f"their cells visible, {made['partial_share']:.2f} of them partial",
        ),
        ("memory peak", _memory(memory)),
    ]
    return rows


def bytes_text(count: float) -> str:
    """`3.2 GiB`, `450 MiB`."""
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def _memory(memory: Mapping[str, Any]) -> str:
    parts = [f"{name} {bytes_text(value)}" for name, value in memory["classes_bytes"].items()]
    text = f"{bytes_text(memory['peak_bytes'])}: {', '.join(parts)}"
    if memory.get("peak_region"):
        text += f"; reached in {memory['peak_region']}"
    if memory["device_peak_bytes"]:
        text += f"; {bytes_text(memory['device_peak_bytes'])} by the device's count"
    return text


def _line(name: str, row: Mapping[str, Any], predicted: str) -> str:
    phases = "".join(f"{_ms(row[f'{phase}_ms'] or None):>10}" for phase in PHASES)
    return f"{name:<22}{phases}{row['ms']:>10.2f}{100 * row['share']:>7.1f} %{predicted:>11}"


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
