"""Tokens a second of training on one to N ranks, ddp and fsdp, balanced and naive packs.

    python scripts/benchmark_ranks.py                    # 1.7B: ddp and fsdp on one GPU and on two
    python scripts/benchmark_ranks.py trees=44x196+12,60x64+16,100x144+12 budget=16384 \\
        assignment=cost,none ranks=2                           # balanced against naive
    python scripts/benchmark_ranks.py model=8b strategies=fsdp ranks=2 trees=155x196+12 \\
        budget=32768 checkpointing=true check=false            # trees of 32k tokens
    python scripts/benchmark_ranks.py model=tiny device=cpu attention=sdpa trees=6x16+3,3x16+3 \\
        budget=300 steps=3 compile=false

Starts its own ranks. `check=false`: the model does not fit on one GPU, where the reference of the
first step is taken. A row measured again takes the old one's place in `output`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from vla_nav.errors import UserError, unknown_name
from vla_nav.files import read_json, write_json
from vla_nav.profiling.bench_rows import RowFile, about, choice, parse_options, run, whole
from vla_nav.profiling.ranks_bench import (
    HEADING,
    STRATEGIES,
    RanksCase,
    line,
    measure_case,
    measure_reference,
    require_same_step,
)
from vla_nav.training.parallel_launch import start_ranks
from vla_nav.training.run_folder import process_rank

DEFAULTS = {
    "model": "1.7b",
    "strategies": "ddp,fsdp",
    "ranks": "1,2",
    "assignment": "cost",
    "trees": "44x196+12",
    "copies": "16",
    "budget": "18560",
    "accumulate": "1",
    "steps": "20",
    "attention": "flash",
    "device": "cuda",
    "compile": "layers",
    "checkpointing": "false",
    "partition": "0",
    "layers": "0",
    "check": "true",
    "commit": "",
    "output": "ranks.json",
}
BOOLS = {"true": True, "false": False}
KEYS = (
    "model",
    "strategy",
    "num_ranks",
    "assignment",
    "trees",
    "budget",
    "accumulate",
    "partition",
)


def cases(options: dict[str, str]) -> list[RanksCase]:
    """Every combination of strategies, ranks and assignments."""
    made = []
    for strategy in options["strategies"].split(","):
        if strategy not in STRATEGIES:
            raise unknown_name("value of strategies", strategy, STRATEGIES)
        for ranks in options["ranks"].split(","):
            for assignment in options["assignment"].split(","):
                choice({"assignment": assignment}, "assignment", {"cost": 0, "none": 0})
                made.append(
                    RanksCase(
                        strategy=strategy,
                        num_ranks=whole({"ranks": ranks}, "ranks"),
                        assignment=assignment,
                        checkpointing=choice(options, "checkpointing", BOOLS),
                        **{k: options[k] for k in ("model", "trees", "attention", "device")},
                        compile=options["compile"],
                        **{
                            k: whole(options, k)
                            for k in ("copies", "budget", "accumulate", "steps")
                        },
                        **{k: whole(options, k, least=0) for k in ("partition", "layers")},
                    )
                )
    return made


def started(kind: str, case: RanksCase, num_ranks: int) -> dict[str, float]:
    """What ranks of this script measure."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "row.json"
        words = [__file__, f"rank:{kind}", json.dumps(asdict(case)), str(found)]
        code = start_ranks(words, num_ranks)
        if code:
            raise UserError(f"{case.strategy} on {num_ranks} ranks: ended with code {code}")
        return dict(read_json(found))


def main(arguments: list[str]) -> int:
    if arguments and arguments[0].startswith("rank:"):
        case = RanksCase(**json.loads(arguments[1]))
        row = measure_case(case) if arguments[0] == "rank:row" else measure_reference(case)
        if process_rank() == 0:
            write_json(Path(arguments[2]), row)
        return 0
    options = parse_options(arguments, DEFAULTS)
    file = RowFile(options["output"], about(options), KEYS)
    print(HEADING)
    for case in cases(options):
        row = started("row", case, case.num_ranks)
        if choice(options, "check", BOOLS):
            require_same_step(case, row, started("reference", case, 1))
        file.add(row)
        print(line(row, file.rows), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
