"""`vla-nav verify`: holds on generated and recorded episodes, and exits with 1 on a violation."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.training.recorded import DECISION, write_recorded
from vla_nav.actions.types import Stop
from vla_nav.commands.compose import compose_config, encoder_keywords, instantiate, tree_layout
from vla_nav.commands.overrides import check_overrides
from vla_nav.errors import UserError
from vla_nav.models.assembly import build_prompt
from vla_nav.tree import Layout, PrefixTree
from vla_nav.verification import full_size, run
from vla_nav.verification.generated import plain_embodiment, walked_episode
from vla_nav.verification.oracle import Sample
from vla_nav.verification.progress import Paced
from vla_nav.verification.recipe import VerifyRecipe, VerifySettings
from vla_nav.verification.report import Finding, as_values, num_violated, render
from vla_nav.verification.run import verify
from vla_nav.verification.samples import EpisodeSample
from vla_nav.verification.supervision import check_supervision

SMALL = [
    "models.backbone.options.hidden_size=32",
    "models.backbone.options.intermediate_size=48",
    "models.backbone.options.head_dim=8",
]
TRAINED = ["vision=vit_48", "vision.model_kwargs.embed_dim=16"]
FEATURES = [*TRAINED, "vision.freeze=true"]
QUICK = VerifySettings(
    num_episodes=2, max_steps=4, num_trees=1, num_probes=4, max_parts=0, drift_episodes=0
)


def recipe_of(*overrides: str, **changes: Any) -> VerifyRecipe:
    """The recipe of conf/verify.yaml, small."""
    cfg = compose_config("verify", [*SMALL, *overrides])
    recipe = VerifyRecipe(
        model=instantiate(cfg.models),
        encoder=encoder_keywords(cfg.vision),
        action_space=instantiate(cfg.actions),
        layout=tree_layout(cfg.tree),
        supervise=cfg.tree.supervise,
        group=cfg.tree.group,
        attention=cfg.attention.name,
        normalisation=cfg.losses.normalisation,
        precision=cfg.trainer.precision,
        data_path=cfg.data.path,
        split=cfg.data.split,
        settings=QUICK,
        seed=cfg.seed,
    )
    return replace(recipe, **changes)


def rows_of(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.check: finding for finding in findings}


@pytest.mark.parametrize(
    "overrides",
    [
        ("tree=hidden_full", "actions=discrete"),
        ("tree=hidden_pooled", "actions=pointing", "models.prompt.separator=true"),
        ("tree=visible_full", "actions=chunk", "tree.supervise=all"),
        ("tree=visible_pooled", "actions=waypoint", "models.head=full"),
        ("tree=instruction_last", "losses.normalisation=token_mean"),
        ("tree=window", "tree.window=2"),
        ("tree=uniform", "tree.uniform=3", "tree.actions=visible"),
        ("tree=summary", "tree.summary_keep=1", "losses.normalisation=step_sum"),
    ],
)
def test_layouts_and_action_spaces_hold(overrides):
    verified = verify(recipe_of(*FEATURES, *overrides))
    assert num_violated(verified.findings) == 0, render(verified.findings, title="verify")
    rows = rows_of(verified.findings)
    assert rows["probe: future frame"].note != "0 probes"
    assert "2 of them STOP" in rows["labels not supervised exactly once"].note or (
        "4 of them STOP" in rows["labels not supervised exactly once"].note
    )


def test_partitions_accumulation_and_drift_are_measured_beside_their_noise():
    recipe = recipe_of(*FEATURES, settings=replace(QUICK, max_parts=3, drift_episodes=1))
    told: list[str] = []
    verified = verify(recipe, progress=told.append)
    assert num_violated(verified.findings) == 0, render(verified.findings, title="verify")
    rows = rows_of(verified.findings)
    assert "in 1, 2, 3 partitions" in rows["recompute: gradients"].note
    assert rows["keep: parameters after a step"].relative <= 1e-9
    assert rows["1 x N = N x 1: gradients"].relative <= 1e-12
    noise = rows["logits: flat - flat in float32"].relative
    assert 0 < rows["logits: tree - flat"].relative <= 3 * noise
    assert any(line.startswith("full size") for line in told)
    assert verified.summary["bf16"]["model"]["layers"] == 4
    assert verified.summary["float64"]["model"]["layers"] == 2


def test_adapters_hold_and_their_updates_are_compared():
    overrides = ("models.lora={rank: 2, alpha: 4}", "models.prompt.separator=true")
    recipe = recipe_of(*FEATURES, *overrides, settings=replace(QUICK, max_parts=2))
    findings = verify(recipe).findings
    assert num_violated(findings) == 0, render(findings, title="verify")
    notes = [finding.note for finding in findings if finding.check.endswith("gradients")]
    # A and B of seven layers in two decoder layers; projector, own tables and head.
    assert len(notes) == 6
    assert all("worst of 37:" in note for note in notes)


def test_gradients_reach_a_trainable_encoder_and_agree():
    recipe = recipe_of(*TRAINED)
    rows = rows_of(verify(replace(recipe, settings=replace(QUICK, max_parts=2))).findings)
    assert rows["gradient reaches the encoder"].absolute > 0
    assert all(finding.is_ok for finding in rows.values())


def test_wide_models_are_shrunk_in_float64_and_the_report_says_so():
    wide = ["hidden_size=256", "num_attention_heads=8", "num_key_value_heads=4"]
    recipe = recipe_of(
        *FEATURES,
        *(f"models.backbone.options.{item}" for item in wide),
        "models.backbone.gradient_checkpointing=true",
        settings=replace(QUICK, max_width=64, num_episodes=1, max_parts=2),
    )
    summary = verify(recipe).summary["float64"]
    changes = "; ".join(summary["shrunk"])
    assert "num_hidden_layers 4 -> 2" in changes
    assert "hidden_size 256 -> 64" in changes
    assert "num_attention_heads 8 -> 4; num_key_value_heads 4 -> 2" in changes
    assert "text table 32768 ->" in changes
    assert (summary["model"]["hidden_size"], summary["model"]["kv_heads"]) == (64, 2)


def test_flex_is_proven_by_sdpa_on_a_cpu_and_the_report_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    settings = replace(QUICK, num_episodes=1, num_trees=0, drift_episodes=1)
    verified = verify(recipe_of(*FEATURES, "attention=flex", settings=settings))
    assert num_violated(verified.findings) == 0
    assert "attention flex -> sdpa" in verified.summary["float64"]["shrunk"]
    assert verified.summary["bf16"]["model"]["attention"] == "sdpa"


@pytest.mark.gpu
def test_flex_drifts_no_more_than_flat_paths_do_at_another_batch_shape():
    """On the GPU, under autocast and with bfloat16 weights; the table is the report."""
    for precision in ("bf16-mixed", "bf16-true"):
        recipe = recipe_of(
            *TRAINED,
            "attention=flex",
            f"trainer.precision={precision}",
            "models.backbone.options.head_dim=16",
            settings=replace(QUICK, max_steps=24, drift_episodes=2),
        )
        verified = verify(recipe)
        print(render(verified.findings, title=precision))
        assert num_violated(verified.findings) == 0, render(verified.findings, title=precision)
        assert verified.summary["bf16"]["model"]["attention"] == "flex"
        assert verified.summary["bf16"]["device"] != "cpu"


def test_recorded_trajectories_are_one_tree_and_every_label_counts_once(tmp_path):
    write_recorded(tmp_path, num_episodes=3, num_instructions=2)
    overrides = ["tree=instruction_last", f"data.path={tmp_path}", f"actions.decision='{DECISION}'"]
    overrides += ["actions.turn_deg=30", *TRAINED]
    verified = verify(recipe_of(*overrides))
    assert num_violated(verified.findings) == 0, render(verified.findings, title="verify")
    assert len(verified.summary["subject"]["episodes"]) == 4
    count = rows_of(verified.findings)["labels not supervised exactly once"]
    assert "4 of them STOP" in count.note
    assert verified.summary["subject"]["flat_tokens"] > verified.summary["subject"]["tree_tokens"]


def test_a_lost_stop_and_a_label_taught_twice_are_found():
    recipe = recipe_of("actions=discrete")
    builder = build_prompt(
        recipe.model,
        action_space=recipe.action_space,
        embodiment=plain_embodiment(15.0, 0.25, has_depth=False),
        layout=recipe.layout,
        num_full=3,
        num_pooled=1,
    )
    episode = walked_episode(0, num_steps=6, embodiment=builder.embodiment, seed=0)
    paths, keys = builder.paths(episode)
    sample = EpisodeSample((episode,), Sample(paths, torch.zeros(len(keys), 4, 8)), keys)
    stop = recipe.action_space.encode(Stop())

    def wrong_labels(chosen) -> float:
        trees = [PrefixTree.from_paths(chosen, num_frames=len(keys))]
        return check_supervision([sample], trees, builder, supervise="own")[0].absolute

    assert wrong_labels(paths) == 0
    kept = [path for path in paths if tuple(path.tokens().token_ids[-len(stop) :]) != stop]
    assert len(kept) == len(paths) - 1
    assert wrong_labels(kept) == 1
    assert wrong_labels([*paths, paths[0]]) == 1
    assert wrong_labels([*paths[:-1], replace(paths[-1], trunk=paths[0].trunk)]) == 2


def test_a_violation_is_found_and_exits_with_one(monkeypatch, tmp_path, capsys):
    from vla_nav.commands import verify as command

    stock = run.packed_forward

    def shifted(model, packed, frames):
        return stock(model, replace(packed, predictor_index=packed.target_index - 1), frames)

    monkeypatch.setattr(run, "packed_forward", shifted)
    changed = ["max_steps=3", "num_trees=0", "max_parts=0", "drift_episodes=0"]
    config = compose_config(
        "verify",
        [*SMALL, *FEATURES, f"paths.output_dir={tmp_path}"]
        + [f"verification.{item}" for item in changed],
    )
    assert command.main(config) == 1
    out = capsys.readouterr().out
    assert "VIOLATED" in out
    report = json.loads((tmp_path / "verify.json").read_text())
    rows = {row["check"]: row for row in report["findings"]}
    assert not rows["logits at every target"]["is_ok"]
    assert all(check in out for check in rows)
    assert report["violated"] == sum(not row["is_ok"] for row in report["findings"])
    assert report["versions"]["torch"] == torch.__version__
    assert report["subject"]["layout"]["history"] == "full"


def test_experiments_of_train_are_accepted():
    check_overrides("verify", ["experiment=house_gpu", "data.path=null"])
    config = compose_config("verify", ["experiment=house_gpu"])
    assert config.vision.name == "vit_small_patch16_224"
    assert config.attention.name == "flex"
    assert config.trainer.precision == "bf16-mixed"
    assert config.data.path is None


def test_faults_of_the_input_are_one_clear_line(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="recorded"):
        verify(recipe_of(data_path=str(tmp_path)))
    with pytest.raises(
        UserError, match=r"verification\.max_steps=0: allowed: integers of 1 and more"
    ):
        VerifySettings(max_steps=0)
    with pytest.raises(UserError, match=r"tree\.group"):
        recipe_of(group="walk")
    monkeypatch.setattr(full_size, "_free_bytes", lambda: 2**20)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match=r"verification\.drift_episodes=0"):
        verify(recipe_of(*FEATURES, settings=replace(QUICK, drift_episodes=1)))


def test_a_window_binds_without_being_asked_for():
    for history in ("window", "uniform", "summary"):
        assert VerifySettings().steps(Layout(history, window=32, uniform=32, summary_keep=32)) > 32
    assert VerifySettings().steps(Layout("full", window=32)) == 8


def test_long_work_tells_how_far_it_is(monkeypatch):
    clock = iter([0.0, 1.0, 11.0, 12.0, 30.0])
    monkeypatch.setattr("vla_nav.verification.progress.time.monotonic", lambda: next(clock))
    told: list[str] = []
    paced = Paced(told.append, "path", 4)
    for _ in range(4):
        paced.step()
    assert [line.strip() for line in told] == ["path 2 of 4", "path 4 of 4"]


def test_findings_never_pass_on_nan_and_free_rows_never_fail():
    assert not Finding("x", float("nan"), None, 1.0).is_ok
    assert not Finding("x", 0.0, float("nan"), 1.0).is_ok
    assert not Finding("x", 0.0, None, 0.0, must_differ=True).is_ok
    assert Finding("x", 0.1, None, 0.0, must_differ=True).is_ok
    free = Finding("x", 0.1, 0.2, float("inf"))
    assert free.is_ok
    assert as_values([free])[0]["bound"] is None
