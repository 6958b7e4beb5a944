"""The throughput benchmark runs and writes what the report measured."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_the_benchmark_writes_rates_of_a_small_policy(tmp_path):
    command = [sys.executable, str(ROOT / "scripts/benchmark_evaluation.py"), f"output={tmp_path}"]
    command += ["workers=1", "size=32", "models=qwen3_tiny", "vision=vit_48", "tree=hidden_full"]
    command += ["episodes=4", "houses=2", "slots=4", "device=cpu", "decisions=5", "commit=none"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    timing = json.loads((tmp_path / "benchmark.json").read_text())["timing"]
    assert timing["num_episodes"] == 4
    assert timing["num_frames"] == timing["num_decisions"] >= 4
    assert timing["frames_per_s"] > 0
    assert 0 < timing["policy_share"] <= 1
    assert "frames/s" in done.stdout
