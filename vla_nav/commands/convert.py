"""Convert episodes of any format into a LeRobot v3 data set with a card."""

from __future__ import annotations

from omegaconf import DictConfig


def main(cfg: DictConfig) -> int:
    from vla_nav.commands.compose import plain
    from vla_nav.evaluation.convert_run import convert_from

    return convert_from(plain(cfg))
