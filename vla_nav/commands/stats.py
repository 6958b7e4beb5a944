"""Tokens, reuse and speed bounds of a data set under one layout or all, before any training."""

from __future__ import annotations

from omegaconf import DictConfig


def main(cfg: DictConfig) -> int:
    from pathlib import Path

    from vla_nav.commands.compose import encoder_keywords, instantiate, plain, tree_layout
    from vla_nav.errors import UserError, unknown_name
    from vla_nav.files import write_json
    from vla_nav.training.data_stats import StatsOptions, data_stats
    from vla_nav.training.mixture import Source, read_sources
    from vla_nav.training.stats_cost import GpuSettings
    from vla_nav.training.stats_pictures import write_pictures
    from vla_nav.training.stats_table import stats_table

    options = plain(cfg.stats)
    layouts, splits = options.pop("layouts"), options.pop("splits")
    gpu = GpuSettings(**options.pop("gpu"))
    if layouts not in ("one", "all"):
        raise unknown_name("stats.layouts", str(layouts), ("one", "all"))
    folder = Path(cfg.paths.output_dir)
    mixed = read_sources(plain(cfg.data))
    if splits and cfg.data.mixture is not None:
        raise UserError("stats.splits and data.mixture both say what is counted; set one to null")
    sources = [Source(cfg.data.path, split) for split in splits] if splits else mixed
    for number, source in enumerate(sources):
        stats = data_stats(
            source.path,
            source.split,
            model=instantiate(cfg.models),
            encoder=encoder_keywords(cfg.vision),
            action_space=instantiate(cfg.actions),
            layout=tree_layout(cfg.tree),
            supervise=cfg.tree.supervise,
            group=cfg.tree.group,
            every=layouts == "all",
            options=StatsOptions(**options),
            gpu=gpu,
            pack_tokens=cfg.training.pack_tokens,
            partition=instantiate(cfg.training.partition),
            accumulate=cfg.training.accumulate,
            seed=cfg.seed,
            cost_profile=cfg.training.cost_profile,
            attention=cfg.attention.name,
        )
        own = source.split if splits else f"{number}_{source.split}"
        target = (folder / own if len(sources) > 1 or splits else folder) / "stats.json"
        write_json(target, stats)
        pictures = write_pictures(stats, target.parent)
        print(stats_table(stats))
        print(f"written to {target}, beside {', '.join(path.name for path in pictures)}\n")
    return 0
