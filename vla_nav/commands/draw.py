"""Draw what training makes of an episode: tree, pack, weights and mask, as PNG, SVG and a page."""

from __future__ import annotations

from omegaconf import DictConfig


def main(cfg: DictConfig) -> int:
    from pathlib import Path

    from vla_nav.commands.compose import encoder_keywords, instantiate, plain, tree_layout
    from vla_nav.training.shapes import frame_tokens
    from vla_nav.verification.drawing_page import write_drawing
    from vla_nav.verification.drawing_subject import DrawRecipe, drawing_of

    options = plain(cfg.draw)
    recipe = DrawRecipe(
        model=instantiate(cfg.models),
        frame_tokens=frame_tokens(
            encoder_keywords(cfg.vision),
            full=options["frame_tokens"],
            pooled=options["pooled_tokens"],
        ),
        action_space=instantiate(cfg.actions),
        layout=tree_layout(cfg.tree),
        supervise=cfg.tree.supervise,
        group=cfg.tree.group,
        data_path=cfg.data.path,
        split=cfg.data.split,
        role=options["role"],
        turn_deg=options["turn_deg"],
        episode=options["episode"],
        num_steps=options["steps"],
        block_size=options["block_size"],
        partition=instantiate(cfg.training.partition),
        seed=cfg.seed,
    )
    drawing = drawing_of(recipe)
    print(drawing.title)
    print(drawing.headline)
    for path in write_drawing(drawing, Path(cfg.paths.output_dir)):
        print(f"written to {path}")
    return 0
