"""The benchmark of hybrids: a tiny one on the CPU, by the torch path."""

from __future__ import annotations

import json

import pytest

from tests.profiling.bench_scripts import load


@pytest.mark.parametrize("model", ["hybrid-tiny", "mamba-tiny"])
def test_the_script_writes_steps_and_scans(model, tmp_path, capsys):
    target = tmp_path / "hybrid.json"
    arguments = [f"models={model}", "device=cpu", "attention=sdpa", "trees=3x9+3@5"]
    arguments += ["budget=96", "repeats=1", "flat_repeats=1", "commit=abc1234", f"output={target}"]
    assert load("benchmark_hybrid").main(arguments) == 0
    (row,) = json.loads(target.read_text())["rows"]
    assert (row["model"], row["tree"], row["commit"]) == (model, "3x9+3@5", "abc1234")
    assert row["measured"] == pytest.approx(row["flat_ms"] / row["tree_ms"])
    assert row["of_flop_bound"] == pytest.approx(row["measured"] / row["flop_bound"])
    assert row["gradient_drift"] < 1e-5
    assert (row["kernels"], row["rounds"], row["runs"]) == ("torch", 2, 6)  # two trees of 41
    assert min(row["tree_scan_ms"], row["flat_scan_ms"]) > 0
    assert row["public_scan_ms"] is None
    assert model in capsys.readouterr().out
