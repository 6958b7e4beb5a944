"""`vla-nav verify`: holds on generated and recorded episodes, and exits with 1 on a violation."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from vla_nav.commands.compose import compose_config, instantiate, plain
from vla_nav.errors import UserError
from vla_nav.models.prompt import Layout
from vla_nav.verification import run
from vla_nav.verification.report import Finding, render
from vla_nav.verification.run import VerifyRecipe, VerifySettings, verify

SMALL = [
    "models.backbone.options.hidden_size=32",
    "models.backbone.options.intermediate_size=48",
    "models.backbone.options.head_dim=8",
]


def recipe_of(*overrides: str, **changes) -> VerifyRecipe:
    """The recipe of conf/verify.yaml, small."""
    cfg = compose_config("verify", [*SMALL, *overrides])
    recipe = VerifyRecipe(
        model=instantiate(cfg.models),
        encoder={key: value for key, value in plain(cfg.vision).items() if key[0] != "_"},
        action_space=instantiate(cfg.actions),
        layout=Layout(cfg.tree.history, cfg.tree.actions),
        supervise=cfg.tree.supervise,
        attention=cfg.attention.name,
        normalisation=cfg.losses.normalisation,
        data_path=cfg.data.path,
        split=cfg.data.split,
        settings=VerifySettings(num_episodes=2, max_steps=4, num_trees=1, num_probes=4),
        seed=cfg.seed,
    )
    return replace(recipe, **changes)


@pytest.mark.parametrize(
    "overrides",
    [
        ("tree=hidden_full", "actions=discrete"),
        ("tree=hidden_pooled", "actions=pointing", "models.prompt.separator=true"),
        ("tree=visible_full", "actions=chunk"),
        ("tree=visible_pooled", "actions=waypoint", "models.head=full"),
    ],
)
def test_layouts_and_action_spaces_hold(overrides):
    findings = verify(recipe_of(*overrides))
    assert all(finding.is_ok for finding in findings), render(findings, title="verify")
    probes = {f.check: f.note for f in findings if f.check.startswith("probe: ")}
    assert probes["probe: future frame"] != "0 probes"


def test_a_violation_is_found_and_exits_with_one(monkeypatch, tmp_path, capsys):
    from vla_nav.commands import verify as command

    stock = run.packed_forward

    def shifted(model, packed, frames):
        return stock(model, replace(packed, predictor_index=packed.target_index - 1), frames)

    monkeypatch.setattr(run, "packed_forward", shifted)
    config = compose_config(
        "verify",
        [
            *SMALL,
            "verification.max_steps=3",
            "verification.num_trees=0",
            f"paths.output_dir={tmp_path}",
        ],
    )
    assert command.main(config) == 1
    out = capsys.readouterr().out
    assert "VIOLATED" in out
    rows = json.loads((tmp_path / "verify.json").read_text())
    assert not {row["check"]: row["is_ok"] for row in rows}["logits at every target"]


def test_flex_and_missing_data_are_refused(tmp_path):
    with pytest.raises(UserError, match="use attention=sdpa"):
        verify(recipe_of(attention="flex"))
    with pytest.raises(UserError, match="recorded"):
        verify(recipe_of(data_path=str(tmp_path)))
    with pytest.raises(UserError, match=r"verification.max_steps=0"):
        VerifySettings(max_steps=0)


def test_findings_never_pass_on_nan():
    assert not Finding("x", float("nan"), None, 1.0).is_ok
    assert not Finding("x", 0.0, float("nan"), 1.0).is_ok
    assert not Finding("x", 0.0, None, 0.0, must_differ=True).is_ok
    assert Finding("x", 0.1, None, 0.0, must_differ=True).is_ok
