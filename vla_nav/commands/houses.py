"""Generate procedural houses with routes and instructions."""

from __future__ import annotations

from omegaconf import DictConfig


def main(cfg: DictConfig) -> int:
    from vla_nav.commands.compose import plain
    from vla_nav.simulators.houses.dataset import write_dataset
    from vla_nav.simulators.houses.dataset_options import dataset_options

    options = dataset_options(plain(cfg.houses))
    counts = write_dataset(cfg.data.path, options, run_seed=cfg.seed, num_workers=cfg.num_workers)
    for split, num_episodes in counts.items():
        asked = options.num_houses(split) * options.episodes_per_house
        short = (
            f" of {asked} asked for: these houses have no more routes that differ, take more of "
            f"them (houses.num_{split})"
        )
        where = f"{cfg.data.path}/episodes/{split}"
        print(f"{split}: {num_episodes} episodes in {where}{short if num_episodes < asked else ''}")
    return 0
