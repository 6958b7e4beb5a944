"""Train a policy on recorded episodes, or continue the run in paths.output_dir."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from vla_nav.errors import UserError

if TYPE_CHECKING:
    from vla_nav.commands.sweep import SweepJob

_SET_BY_THE_RUN = {  # keys of Lightning's Trainer, and where a run has them
    "max_steps": "training.budget.max_steps",
    "max_epochs": "training.budget.max_epochs",
    "max_time": "training.budget.max_minutes",
    "accumulate_grad_batches": "training.accumulate",
    "gradient_clip_val": "training.optimiser.clip_norm",
    "gradient_clip_algorithm": "training.optimiser.clip_norm",
    "val_check_interval": "training.validation.every_steps",
    "check_val_every_n_epoch": "training.validation.every_steps",
    "limit_val_batches": "training.validation.max_episodes",
}


def main(cfg: DictConfig) -> int:
    from vla_nav.commands.compose import (
        command_overrides,
        encoder_keywords,
        instantiate,
        plain,
        same_command,
        tree_layout,
    )
    from vla_nav.training.fit import fit, quiet
    from vla_nav.training.mixture import read_sources
    from vla_nav.training.parallel_launch import num_to_start, start_ranks
    from vla_nav.training.recipe import Recipe
    from vla_nav.training.run_folder import describe, process_rank

    quiet()
    require_trainer_keys(cfg.trainer)
    num_ranks = num_to_start(instantiate(cfg.trainer, logger=False, enable_checkpointing=False))
    if num_ranks:
        return start_ranks(same_command("train", cfg), num_ranks)
    checkpoint, closed_loop, callbacks = divided(cfg.callbacks)
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
    result = fit(
        recipe,
        output_dir=cfg.paths.output_dir,
        config=plain(cfg),
        make_trainer=lambda **keywords: instantiate(cfg.trainer, **keywords),
        callbacks=[instantiate(node) for node in callbacks.values()],
        loggers=[instantiate(node) for node in cfg.logger.values()],
        checkpoint=plain(checkpoint),
        closed_loop=None if closed_loop is None else evaluated(plain(closed_loop), seed=cfg.seed),
        overwrite=cfg.overwrite,
        resume=cfg.resume,
        overrides=command_overrides(),
    )
    if process_rank() == 0:
        print(describe(result))
    return 0


def require_trainer_keys(node: DictConfig) -> None:
    """Raise `UserError` for a key of the trainer that the run sets itself: it would be ignored."""
    for key, own in _SET_BY_THE_RUN.items():
        if node.get(key) is not None:
            raise UserError(f"trainer.{key}={node[key]}: the run sets it itself; set {own} instead")


def divided(node: DictConfig) -> tuple[DictConfig, DictConfig | None, dict[str, DictConfig]]:
    """The nodes of `callbacks`: checkpoint, closed_loop (None: switched off) and the others."""
    given = {str(name): part for name, part in node.items() if part is not None}
    if "checkpoint" not in given:
        raise UserError(
            "callbacks.checkpoint=null: a run without checkpoints could not continue; write fewer "
            "of them with callbacks.checkpoint.every_minutes or every_steps"
        )
    checkpoint, closed_loop = given.pop("checkpoint"), given.pop("closed_loop", None)
    if closed_loop is None or (OmegaConf.is_dict(closed_loop) and "every_steps" in closed_loop):
        return checkpoint, closed_loop, given
    raise UserError(
        f"callbacks.closed_loop={closed_loop}: its keys come with callbacks=closed_loop, which "
        "switches it on; null switches it off"
    )


def after_sweep(jobs: Sequence[SweepJob]) -> None:
    """Print one table of the sweep's runs."""
    from vla_nav.training.sweep_report import print_sweep

    print_sweep({job.folder: " ".join(job.values) for job in jobs})


def evaluated(node: Mapping[str, Any], *, seed: int) -> dict[str, Any]:
    """The keywords of `ClosedLoop` by `callbacks.closed_loop`, with its evaluator."""
    from vla_nav.evaluation.training_run import TrainingEvaluator

    own = ("every_steps", "patience")
    rest = {key: value for key, value in node.items() if key not in own}
    evaluator = TrainingEvaluator(**rest, seed=seed)
    return {"evaluator": evaluator, **{key: node[key] for key in own}}
