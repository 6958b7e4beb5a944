"""Prove that packed training equals per-path training on a model and data; exit 1 if not."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig


def main(cfg: DictConfig) -> int:
    import time
    from pathlib import Path

    from vla_nav.commands.compose import instantiate
    from vla_nav.files import write_json
    from vla_nav.verification.report import num_violated, render
    from vla_nav.verification.run import VerifyRecipe, verify

    recipe = VerifyRecipe(
        **(_configured(cfg) if cfg.checkpoint is None else _trained(cfg.checkpoint)),
        supervise=cfg.tree.supervise,
        group=cfg.tree.group,
        attention=cfg.attention.name,
        normalisation=cfg.losses.normalisation,
        precision=cfg.trainer.precision,
        data_path=cfg.data.path,
        split=cfg.data.split,
        settings=instantiate(cfg.verification),
        seed=cfg.seed,
    )
    begin = time.monotonic()

    def tell(line: str) -> None:
        print(f"{time.monotonic() - begin:6.1f} s  {line}", flush=True)

    verified = verify(recipe, progress=tell)
    seconds = round(time.monotonic() - begin, 1)
    shrunk = "; ".join(verified.summary["float64"]["shrunk"])
    source = "generated episodes" if recipe.data_path is None else recipe.data_path
    title = (
        f"packed tree against flat paths: {recipe.layout.name}, {source}\nfloat64 part: {shrunk}"
    )
    print(f"\n{render(verified.findings, title=title)}\n")
    target = Path(cfg.paths.output_dir) / "verify.json"
    write_json(target, {"command": "vla-nav verify", "seconds": seconds, **verified.as_json()})
    violated, count = num_violated(verified.findings), len(verified.findings)
    print(f"{violated} of {count} checks violated in {seconds} s; numbers in {target}")
    return 1 if violated else 0


def _configured(cfg: DictConfig) -> dict[str, Any]:
    """Model, encoder, actions and layout of the groups."""
    from vla_nav.commands.compose import encoder_keywords, instantiate, tree_layout

    return {
        "model": instantiate(cfg.models),
        "encoder": encoder_keywords(cfg.vision),
        "action_space": instantiate(cfg.actions),
        "layout": tree_layout(cfg.tree),
    }


def _trained(checkpoint: str) -> dict[str, Any]:
    """The same of a policy folder, with its body and weights."""
    from vla_nav.models.checkpoint import load_policy

    loaded = load_policy(checkpoint)
    parts = loaded.parts
    return {
        "model": parts.model,
        "encoder": dict(parts.encoder),
        "action_space": parts.action_space,
        "layout": parts.layout,
        "embodiment": parts.embodiment,
        "trained": loaded.model.state_dict(),
    }
