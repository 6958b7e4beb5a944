"""One table of several evaluations, refusing to mix what does not compare."""

from __future__ import annotations

from omegaconf import DictConfig


def main(cfg: DictConfig) -> int:
    from vla_nav.commands.compose import plain
    from vla_nav.evaluation.comparison_table import compare_from

    return compare_from(plain(cfg))
