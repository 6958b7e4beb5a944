"""Where a training step's time and memory go, on your configuration, data and device."""

from __future__ import annotations

from omegaconf import DictConfig


def main(cfg: DictConfig) -> int:
    from pathlib import Path

    from vla_nav.commands.compose import encoder_keywords, instantiate, plain, tree_layout
    from vla_nav.profiling.profile_run import profile
    from vla_nav.profiling.profile_table import profile_table
    from vla_nav.training.mixture import read_sources
    from vla_nav.training.recipe import Recipe

    recipe = Recipe(
        data_path=cfg.data.path,
        split=cfg.data.split,
        model=instantiate(cfg.models),
        encoder=encoder_keywords(cfg.vision),
        action_space=instantiate(cfg.actions),
        layout=tree_layout(cfg.tree),
        settings=instantiate(cfg.training, normalisation=cfg.losses.normalisation),
        supervise=cfg.tree.supervise,
        group=cfg.tree.group,
        attention=cfg.attention.name,
        seed=cfg.seed,
        num_workers=cfg.num_workers,
        num_threads=cfg.num_threads,
        mixture=() if cfg.data.mixture is None else read_sources(plain(cfg.data)),
    )
    callbacks = {
        name: node
        for name, node in cfg.callbacks.items()
        if node is not None and name not in ("checkpoint", "progress")
    }
    result = profile(
        recipe,
        instantiate(cfg.profile),
        output_dir=cfg.paths.output_dir,
        make_trainer=lambda **keywords: instantiate(cfg.trainer, **keywords),
        callbacks=[instantiate(node) for node in callbacks.values()],
        progress=lambda line: print(line, flush=True),
    )
    print(f"\n{profile_table(result)}\n")
    print(f"written to {Path(cfg.paths.output_dir) / 'profile.json'}")
    return 0 if result["check"]["adds_up"] else 1
