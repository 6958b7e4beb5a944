"""Evaluate a policy in closed loop and write the report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig

if TYPE_CHECKING:
    from vla_nav.commands.sweep import SweepJob


def main(cfg: DictConfig) -> int:
    from vla_nav.commands.compose import plain
    from vla_nav.evaluation.runs import evaluate_from

    return evaluate_from(plain(cfg))


def after_sweep(jobs: Sequence[SweepJob]) -> None:
    """Print one table of the sweep's evaluations; the shards of one are one."""
    from vla_nav.commands.sweep import SHARD
    from vla_nav.evaluation.sweep_report import print_sweep

    names: dict[Path, str] = {}
    for job in jobs:
        others = [text for text in job.values if not text.startswith(f"{SHARD}=")]
        names.setdefault(job.folder, " ".join(others))
    print_sweep(names)
