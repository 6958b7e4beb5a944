"""One training step: trees packed to a token budget against their flat paths.

    python scripts/benchmark_step.py                       # one Hopper GPU, 1.7B, the caterpillars
    python scripts/benchmark_step.py models=8b vision=cached,trained
    python scripts/benchmark_step.py models=0.6b trees=sweep output=sweep.json    # and pictures
    python scripts/benchmark_step.py models=tiny device=cpu attention=sdpa trees=6x16+3 \\
        budget=512 repeats=2

Refuses to report where the gradients of both sides differ. `commit=` names the commit where there
is no git; a row measured again takes the old one's place in `output`.
"""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from pathlib import Path

import torch

from vla_nav.profiling.bench_rows import RowFile, about, choice, parse_options, run, whole
from vla_nav.profiling.bounds import device_rates
from vla_nav.profiling.step_bench import StepBench
from vla_nav.profiling.step_row import HEADING
from vla_nav.profiling.sweep import draw_sweep, sweep_cases
from vla_nav.profiling.synthetic import Forest

DEFAULTS = {
    "models": "1.7b",
    "trees": "44x196+12,60x64+16@256,100x144+12",
    "vision": "cached",
    "budget": "24576",
    "attention": "flash",
    "device": "cuda",
    "weights": "bfloat16",
    "compile": "layers",
    "head": "actions",
    "layers": "0",
    "checkpointing": "false",
    "tower": "vit_base_patch16_224",
    "feature_width": "768",
    "repeats": "10",
    "flat_repeats": "2",
    "commit": "",
    "output": "step.json",
}
COMPILE = {"false": False, "layers": "layers", "joined": "joined"}
WEIGHTS = {"bfloat16": torch.bfloat16, "float32": torch.float32}
VISION = {"cached": "cached", "trained": "trained", "trained-once": "trained, flat caches"}


def main(arguments: list[str]) -> int:
    options = parse_options(arguments, DEFAULTS)
    is_cpu = options["device"] == "cpu"
    options["weights"] = "float32" if is_cpu else options["weights"]
    dtype = torch.float32 if is_cpu else torch.bfloat16
    facts = about(options) | device_rates(options["device"], dtype)
    print({key: value for key, value in facts.items() if key != "options"})
    file = RowFile(options["output"], facts, ("model", "tree", "vision"))
    texts = sweep_cases() if options["trees"] == "sweep" else options["trees"].split(",")
    forests = [Forest.parse(text) for text in texts]
    kinds = [choice({"vision": kind}, "vision", VISION) for kind in options["vision"].split(",")]
    start = time.monotonic()
    print(HEADING)
    for size in options["models"].split(","):
        bench = StepBench(
            size,
            options["attention"],
            device=options["device"],
            dtype=dtype,
            weights=choice(options, "weights", WEIGHTS),
            compile_layers=choice(options, "compile", COMPILE),
            num_patches=max(forest.shape.frame + forest.shape.history for forest in forests),
            head=options["head"],
            num_layers=whole(options, "layers", least=0) or None,
            is_checkpointed=choice(options, "checkpointing", {"true": True, "false": False}),
            tower=options["tower"],
            feature_width=whole(options, "feature_width"),
            log=lambda line: print(f"{time.monotonic() - start:7.1f} s {line}", file=sys.stderr),
        )
        for forest in forests:
            for vision in kinds:
                row = bench.row(
                    forest,
                    vision=vision,
                    budget=whole(options, "budget"),
                    repeats=whole(options, "repeats"),
                    flat_repeats=whole(options, "flat_repeats"),
                )
                file.add(asdict(row))
                print(row.line(), flush=True)
        del bench
        if options["trees"] == "sweep":
            target = Path(options["output"])
            rows = [row for row in file.rows if row["model"] == size]
            pictures = [str(target.with_suffix(end)) for end in (".png", ".svg")]
            draw_sweep(rows, f"{size}, {facts['device']}", pictures)
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
