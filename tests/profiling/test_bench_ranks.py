"""The benchmark of ranks measures, compares, and refuses a step that is another one's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.training.ranks import as_rank, run_ranks
from vla_nav.errors import UserError
from vla_nav.files import read_json, write_json
from vla_nav.profiling.ranks_bench import (
    RanksCase,
    line,
    measure_case,
    measure_reference,
    require_same_step,
)

CASE = RanksCase(
    model="tiny",
    strategy="fsdp",
    num_ranks=2,
    assignment="cost",
    trees="5x7+3@9,2x7+3@9",
    copies=4,
    budget=90,
    accumulate=1,
    steps=2,
    attention="sdpa",
    device="cpu",
    compile="false",
    checkpointing=False,
    layers=1,
)


def measured(case: RanksCase, folder: Path) -> dict[str, Any]:
    def rank(number: int, port: int) -> None:
        as_rank(number, case.num_ranks, port)
        row = measure_case(case)
        if number == 0:
            write_json(folder / "row.json", row)

    assert run_ranks(rank, case.num_ranks) == [0] * case.num_ranks
    return dict(read_json(folder / "row.json"))


def test_ranks_take_the_step_of_one_rank_and_are_timed(tmp_path: Path) -> None:
    row = measured(CASE, tmp_path)

    def reference(number: int, port: int) -> None:
        as_rank(number, 1, port)
        write_json(tmp_path / "one.json", measure_reference(CASE))

    assert run_ranks(reference, 1) == [0]
    one = read_json(tmp_path / "one.json")
    require_same_step(CASE, row, one)
    with pytest.raises(UserError, match="one rank has"):
        require_same_step(CASE, row, {**one, "loss": one["loss"] * 1.01})
    assert row["tokens_per_s"] > 0
    assert 1.0 <= row["cost_over_mean"] < 1.5
    alone = {**row, "num_ranks": 1, "tokens_per_s": row["tokens_per_s"] / 2}
    assert "2.00x" in line(row, [alone, row])


@pytest.mark.slow
def test_naive_packs_are_less_even(tmp_path: Path) -> None:
    case = replace(CASE, budget=150)  # room for other pairs than a long tree and a short one
    rows = [measured(replace(case, assignment=name), tmp_path) for name in ("cost", "none")]
    assert rows[0]["cost_over_mean"] < rows[1]["cost_over_mean"]
