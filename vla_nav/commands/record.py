"""Record expert episodes into a LeRobot v3 data set."""

from __future__ import annotations

from omegaconf import DictConfig


def main(cfg: DictConfig) -> int:
    from vla_nav.commands.compose import plain
    from vla_nav.evaluation.record_run import record_from

    return record_from(plain(cfg))
