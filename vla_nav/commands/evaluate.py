"""Evaluate a policy in closed loop and write the report."""

from __future__ import annotations

from omegaconf import DictConfig


def main(cfg: DictConfig) -> int:
    from vla_nav.commands.compose import plain
    from vla_nav.evaluation.runs import evaluate_from

    return evaluate_from(plain(cfg))
