"""One training step of a hybrid: trees packed to a token budget against their flat paths.

    python scripts/benchmark_hybrid.py                     # one Hopper GPU, 1.7B shape, fla kernels
    python scripts/benchmark_hybrid.py models=hybrid-1.7b,mamba-1.7b trees=44x196+12,60x64+16@256
    python scripts/benchmark_hybrid.py models=hybrid-tiny device=cpu attention=sdpa \\
        trees=6x16+3 budget=512 repeats=2 flat_repeats=1

Both sides run the same layers with the same kernels in one process, as in benchmark_step.py; the
kernels are held to their definition first, and gradients of both sides compared. A row also says
what the recurrence of one layer takes by itself (profiling/scan_bench.py): tree, flat, and
flash-linear-attention's public call on the flat packs.
"""

from __future__ import annotations

import sys
import time
from dataclasses import asdict

import torch

from vla_nav.profiling.bench_rows import RowFile, about, choice, parse_options, run, whole
from vla_nav.profiling.bounds import device_rates
from vla_nav.profiling.flat import flat_packs
from vla_nav.profiling.scan_bench import scan_times
from vla_nav.profiling.step_bench import StepBench
from vla_nav.profiling.step_row import HEADING
from vla_nav.profiling.synthetic import Forest
from vla_nav.tree import pack

DEFAULTS = {
    "models": "hybrid-1.7b",
    "trees": "44x196+12",
    "budget": "24576",
    "attention": "flex",
    "device": "cuda",
    "weights": "bfloat16",
    "layers": "0",
    "checkpointing": "false",
    "repeats": "10",
    "flat_repeats": "2",
    "commit": "",
    "output": "hybrid.json",
}
WEIGHTS = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def main(arguments: list[str]) -> int:
    options = parse_options(arguments, DEFAULTS)
    device, is_cpu = options["device"], options["device"] == "cpu"
    options["weights"] = "float32" if is_cpu else options["weights"]
    dtype = torch.float32 if is_cpu else torch.bfloat16
    facts = about(options) | device_rates(device, dtype)
    print({key: value for key, value in facts.items() if key != "options"})
    file = RowFile(options["output"], facts, ("model", "tree"))
    forests = [Forest.parse(text) for text in options["trees"].split(",")]
    budget, repeats = whole(options, "budget"), whole(options, "repeats")
    start = time.monotonic()
    print(HEADING)
    for size in options["models"].split(","):
        bench = StepBench(
            size,
            options["attention"],
            device=device,
            dtype=dtype,
            weights=choice(options, "weights", WEIGHTS),
            num_patches=max(forest.shape.frame + forest.shape.history for forest in forests),
            num_layers=whole(options, "layers", least=0) or None,
            is_checkpointed=choice(options, "checkpointing", {"true": True, "false": False}),
            log=lambda line: print(f"{time.monotonic() - start:7.1f} s {line}", file=sys.stderr),
        )
        for forest in forests:
            row = bench.row(
                forest,
                vision="cached",
                budget=budget,
                repeats=repeats,
                flat_repeats=whole(options, "flat_repeats"),
            )
            print(row.line(), flush=True)
            file.add(asdict(row))
            bench.model.zero_grad(set_to_none=True)
            trees = forest.trees(budget)
            scans = scan_times(
                bench.model.backbone.model,
                pack(trees).to(device),
                [flat.to(device) for flat in flat_packs(trees, budget)],
                device=device,
                dtype=dtype,
                repeats=repeats,
            )
            file.add(asdict(row) | scans)
            print({key: value for key, value in scans.items() if value is not None}, flush=True)
        del bench
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
