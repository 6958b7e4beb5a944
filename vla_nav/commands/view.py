"""A browser page of a data set or an evaluation: frames, actions, maps, trees; no server needed."""

from __future__ import annotations

from omegaconf import DictConfig


def main(cfg: DictConfig) -> int:
    from pathlib import Path

    from vla_nav.commands.compose import plain
    from vla_nav.viewing.view_run import view_from

    recipe = _recipe(cfg) if cfg.view.num_trees else None
    page = view_from({key: plain(cfg[key]) for key in _PARTS}, recipe)
    print(f"open {page.resolve()}")
    if cfg.view.serve:
        from vla_nav.viewing.serve import serve

        serve(Path(cfg.paths.output_dir), port=cfg.view.port)
    return 0


_PARTS = ("view", "data", "simulators", "paths")


def _recipe(cfg: DictConfig):
    from vla_nav.commands.compose import encoder_keywords, instantiate, tree_layout
    from vla_nav.training.shapes import frame_tokens
    from vla_nav.verification.drawing_subject import DrawRecipe

    if cfg.checkpoint is None:
        model, space = instantiate(cfg.models), instantiate(cfg.actions)
        encoder, layout = encoder_keywords(cfg.vision), tree_layout(cfg.tree)
    else:
        from vla_nav.models.checkpoint import read_parts

        parts = read_parts(cfg.checkpoint)
        model, space, encoder, layout = (
            parts.model,
            parts.action_space,
            parts.encoder,
            parts.layout,
        )
    return DrawRecipe(
        model=model,
        frame_tokens=frame_tokens(encoder),
        action_space=space,
        layout=layout,
        supervise=cfg.tree.supervise,
        group="episode",
        seed=cfg.seed,
    )
