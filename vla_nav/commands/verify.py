"""Prove that packed training equals per-path training on a model and data; exit 1 if not."""

from __future__ import annotations

from omegaconf import DictConfig


def main(cfg: DictConfig) -> int:
    from pathlib import Path

    from vla_nav.commands.compose import encoder_keywords, instantiate, tree_layout
    from vla_nav.files import write_json
    from vla_nav.verification.report import as_values, render
    from vla_nav.verification.run import VerifyRecipe, verify

    recipe = VerifyRecipe(
        model=instantiate(cfg.models),
        encoder=encoder_keywords(cfg.vision),
        action_space=instantiate(cfg.actions),
        layout=tree_layout(cfg.tree),
        supervise=cfg.tree.supervise,
        attention=cfg.attention.name,
        normalisation=cfg.losses.normalisation,
        data_path=cfg.data.path,
        split=cfg.data.split,
        settings=instantiate(cfg.verification),
        seed=cfg.seed,
    )
    findings = verify(recipe)
    source = "generated episodes" if recipe.data_path is None else f"{recipe.data_path}"
    print(
        render(
            findings,
            title=f"packed tree against flat paths, float64: {recipe.layout.name}, {source}",
        )
    )
    target = Path(cfg.paths.output_dir) / "verify.json"
    write_json(target, as_values(findings))
    violated = sum(not finding.is_ok for finding in findings)
    print(f"{violated} of {len(findings)} checks violated; numbers in {target}")
    return 1 if violated else 0
