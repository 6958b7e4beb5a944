"""Tokens, reuse and speed bounds of recorded episodes under a layout, before any training."""

from __future__ import annotations

from omegaconf import DictConfig


def main(cfg: DictConfig) -> int:
    print(cfg.data.path, cfg.data.split)
    return 0
