"""Tokens, reuse and speed bounds of recorded episodes under a layout, before any training."""

from __future__ import annotations

from omegaconf import DictConfig


def main(cfg: DictConfig) -> int:
    from pathlib import Path

    from vla_nav.commands.compose import encoder_keywords, instantiate, tree_layout
    from vla_nav.errors import UserError
    from vla_nav.files import write_json
    from vla_nav.training.data_stats import data_stats, stats_table

    count = cfg.stats.max_episodes
    if count is not None and count < 1:
        raise UserError(f"stats.max_episodes={count}: allowed: 1 and more, or null for all")
    stats = data_stats(
        cfg.data.path,
        cfg.data.split,
        model=instantiate(cfg.models),
        encoder=encoder_keywords(cfg.vision),
        action_space=instantiate(cfg.actions),
        layout=tree_layout(cfg.tree),
        supervise=cfg.tree.supervise,
        max_episodes=count,
    )
    target = Path(cfg.paths.output_dir) / "stats.json"
    write_json(target, stats)
    print(stats_table(stats))
    print(f"written to {target}")
    return 0
