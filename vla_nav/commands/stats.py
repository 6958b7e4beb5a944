"""Tokens, reuse and speed bounds of recorded episodes under a layout, before any training."""

from __future__ import annotations

from omegaconf import DictConfig


def main(cfg: DictConfig) -> int:
    from pathlib import Path

    from vla_nav.commands.compose import instantiate, plain
    from vla_nav.files import write_json
    from vla_nav.models.prompt import Layout
    from vla_nav.training.data_stats import data_stats, stats_table

    stats = data_stats(
        cfg.data.path,
        cfg.data.split,
        model=instantiate(cfg.models),
        encoder={key: value for key, value in plain(cfg.vision).items() if key[0] != "_"},
        action_space=instantiate(cfg.actions),
        layout=Layout(cfg.tree.history, cfg.tree.actions),
        supervise=cfg.tree.supervise,
        max_episodes=cfg.stats.max_episodes,
    )
    target = Path(cfg.paths.output_dir) / "stats.json"
    write_json(target, stats)
    print(stats_table(stats))
    print(f"written to {target}")
    return 0
