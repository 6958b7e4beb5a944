"""Write a policy as a Hugging Face folder that loads by path."""

from __future__ import annotations

from omegaconf import DictConfig


def main(cfg: DictConfig) -> int:
    from pathlib import Path

    from vla_nav.models.export import export_policy
    from vla_nav.models.hub_card import Card

    target = Path(cfg.paths.output_dir)
    done = export_policy(
        cfg.checkpoint,
        target,
        card=Card(cfg.export.name or target.resolve().name, cfg.export.license, cfg.export.report),
        max_shard_size=cfg.export.max_shard_size,
        overwrite=cfg.overwrite,
    )
    print(
        f"{done.folder}: {done.num_parameters:,} parameters, {done.num_files} files, "
        f"{done.num_bytes / 2**20:.1f} MiB; try: vla-nav evaluate checkpoint={done.folder} ..."
    )
    return 0
