"""Generate procedural houses with routes and instructions."""

from __future__ import annotations

from omegaconf import DictConfig


def main(cfg: DictConfig) -> int:
    from vla_nav.commands.compose import plain
    from vla_nav.simulators.houses.dataset import write_dataset
    from vla_nav.simulators.houses.dataset_options import dataset_options

    counts = write_dataset(
        cfg.data.path,
        dataset_options(plain(cfg.houses)),
        run_seed=cfg.seed,
        num_workers=cfg.num_workers,
    )
    for split, num_episodes in counts.items():
        print(f"{split}: {num_episodes} episodes in {cfg.data.path}/episodes/{split}")
    return 0
