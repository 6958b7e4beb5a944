"""Loss curves of tree and flat training on each other, beside two flat runs of other batch shapes.

    python scripts/compare_curves.py                     # one Hopper GPU, 0.6B, 60x64+16, 200 steps
    python scripts/compare_curves.py sides=tree output=a.json      # one side a call, then together
    python scripts/compare_curves.py sides=flat output=b.json read=a.json
    python scripts/compare_curves.py size=tiny device=cpu attention=sdpa compile=false \\
        tree=6x16+3 steps=8 budget=512 smaller_budget=256

Sides that `output` or the files of `read` hold whole are not trained again. Writes `output` (JSON)
as it goes, and pictures of the same name (.png, .svg) once a side is done. `commit=` names the
commit where there is no git.
"""

from __future__ import annotations

import json
import sys
import time

import torch

from vla_nav.profiling.bench_rows import about, choice, parse_options, positive, run, whole
from vla_nav.profiling.curve_file import CurveFile
from vla_nav.profiling.curves import CurveSettings, train_curve
from vla_nav.profiling.synthetic import TreeShape

DEFAULTS = {
    "size": "0.6b",
    "tree": "60x64+16@256",
    "sides": "tree,flat,smaller",
    "steps": "200",
    "episodes": "16",
    "learning_rate": "3e-4",
    "budget": "24576",
    "smaller_budget": "12288",
    "attention": "flash",
    "compile": "layers",
    "device": "cuda",
    "read": "",
    "commit": "",
    "output": "curves.json",
}
NAMES = {"tree": "tree", "flat": "flat", "smaller": "flat, smaller"}
COMPILE = {"false": False, "layers": "layers", "joined": "joined"}
EVERY = 10  # steps between two lines of progress


def main(arguments: list[str]) -> int:
    options = parse_options(arguments, DEFAULTS)
    settings = CurveSettings(
        size=options["size"],
        shape=TreeShape.parse(options["tree"]),
        device=options["device"],
        attention=options["attention"],
        dtype=torch.float32 if options["device"] == "cpu" else torch.bfloat16,
        compile_layers=choice(options, "compile", COMPILE),
        num_episodes=whole(options, "episodes"),
        steps=whole(options, "steps"),
        learning_rate=positive(options, "learning_rate"),
        budget=whole(options, "budget"),
        smaller_budget=whole(options, "smaller_budget"),
    )
    facts = about(options)
    read = list(filter(None, options["read"].split(",")))
    file = CurveFile(options["output"], facts, steps=settings.steps, read=read)
    print({key: value for key, value in facts.items() if key != "options"})
    for short in options["sides"].split(","):
        side = choice({"sides": short}, "sides", NAMES)
        losses: list[torch.Tensor] = []
        start = time.monotonic()
        for loss in () if file.is_done(side) else train_curve(side, settings):
            losses.append(loss)
            if len(losses) % EVERY == 0 or len(losses) == settings.steps:
                file.put(side, torch.stack(losses).tolist())
                took = time.monotonic() - start
                print(f"{side}: step {len(losses)}, {took:.1f} s, loss {loss:.4f}", flush=True)
        file.write()
        file.draw(f"{options['size']}, {options['tree']}, AdamW at {options['learning_rate']}")
    print(json.dumps(file.compared()))
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
