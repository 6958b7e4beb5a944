"""Encode every unique frame of a recorded split once, into the encoder's cache."""

from __future__ import annotations

from omegaconf import DictConfig


def main(cfg: DictConfig) -> int:
    from vla_nav.commands.compose import instantiate, plain
    from vla_nav.vision.encode_run import encode_split

    cache = encode_split(
        cfg.data.path,
        cfg.data.split,
        instantiate(cfg.vision),
        num_workers=cfg.num_workers,
        **plain(cfg.encode),
    )
    print(f"{cache.folder}: {len(cache)} frames, {cache.num_bytes / 2**20:.1f} MiB, complete")
    return 0
