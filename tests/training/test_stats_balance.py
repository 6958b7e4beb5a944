"""The table of `vla-nav stats`: how evenly ranks are loaded, packs as filled against balanced."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.training.test_balance import counts
from tests.training.tiny import ENCODER, OPTIONS, make_data
from vla_nav.actions.waypoint import WaypointSpace
from vla_nav.commands.compose import run
from vla_nav.files import read_json
from vla_nav.models.assembly import ModelConfig
from vla_nav.models.backbone import BackboneConfig
from vla_nav.models.prompt import Layout
from vla_nav.training.cost_model import CostModel
from vla_nav.training.data_stats import data_stats
from vla_nav.training.packing import epoch_packs
from vla_nav.training.stats_balance import balance_report, balance_table
from vla_nav.training.stats_table import stats_table


def test_rows_are_what_the_packs_of_an_epoch_cost() -> None:
    lengths = np.random.default_rng(0).integers(30, 400, 300)
    model = CostModel(per_token=1.0)
    found = balance_report(counts(lengths), model, pack_tokens=1000, seed=3)
    assert found is not None
    assert [row["ranks"] for row in found["rows"]] == [2, 4, 8]
    packs = epoch_packs(lengths, pack_tokens=1000, seed=3, epoch=0)
    for row in found["rows"]:
        num = row["ranks"]
        sums = np.array([lengths[list(pack)].sum() for pack in packs])
        steps = sums[: len(sums) // num * num].reshape(-1, num)
        assert row["none"]["steps"] == len(steps)
        assert row["none"]["mean"] == pytest.approx(steps.max(1).sum() / steps.mean(1).sum())
        assert row["none"]["worst"] == pytest.approx((steps.max(1) / steps.mean(1)).max())
        assert 1 <= row["cost"]["mean"] < row["none"]["mean"]
    table = balance_table(found).splitlines()
    assert len(table) == 2 + 3
    assert table[2].split()[1] == f"{found['rows'][0]['none']['mean']:.3f}"


def test_no_table_where_there_is_no_whole_step_or_a_tree_is_too_long() -> None:
    lengths = np.array([30, 40, 50])
    model = CostModel()
    assert balance_report(counts(lengths), model, pack_tokens=49) is None
    assert balance_report(counts(lengths), model, pack_tokens=1000) is None
    found = balance_report(counts(lengths), model, pack_tokens=50)
    assert found is not None
    assert [row["ranks"] for row in found["rows"]] == [2]
    many = balance_report(counts(lengths), model, pack_tokens=50, accumulate=2)
    assert many is None


def test_stats_show_the_table_of_the_data(tmp_path: Path) -> None:
    data = make_data(tmp_path, num_episodes=40, steps=(3, 12))
    found = data_stats(
        data,
        "train",
        model=ModelConfig(backbone=BackboneConfig(options=OPTIONS)),
        encoder=ENCODER,
        action_space=WaypointSpace(),
        layout=Layout("full", "hidden"),
        pack_tokens=300,
        accumulate=2,
    )
    balance = found["balance"]
    assert balance["accumulate"] == 2
    assert balance_table(balance) in stats_table(found)
    assert all(row["cost"]["mean"] <= row["none"]["mean"] + 0.02 for row in balance["rows"])


def test_the_command_counts_every_source_of_a_mixture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    roots = [make_data(tmp_path / name, num_episodes=num) for name, num in (("a", 6), ("b", 9))]
    words = [
        f"data.path={roots[0]}",
        f"data.mixture=[{{weight:2}},{{path:{roots[1]}}}]",
        "stats.frame_tokens=4",
        f"paths.output_dir={tmp_path / 'stats'}",
    ]
    assert run("stats", words) == 0
    found = [read_json(tmp_path / "stats" / name / "stats.json") for name in ("0_train", "1_train")]
    assert [one["episodes"] for one in found] == [6, 9]
    assert run("stats", [*words, "stats.splits=[train]"]) == 2
    assert "stats.splits and data.mixture" in capsys.readouterr().err
