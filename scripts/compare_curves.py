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
from pathlib import Path
from typing import Any

import torch

from vla_nav.errors import UserError
from vla_nav.files import write_json
from vla_nav.profiling.bench_rows import about, choice, parse_options, run, whole
from vla_nav.profiling.curves import SIDES, CurveSettings, differences, draw_curves, train_curve
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
SAME = ("size", "tree", "steps", "episodes", "learning_rate", "budget", "smaller_budget")
EVERY = 10  # steps between two lines of progress


def main(arguments: list[str]) -> int:
    options = parse_options(arguments, DEFAULTS)
    facts = about(options)
    curves = _known(options)
    settings = CurveSettings(
        size=options["size"],
        shape=TreeShape.parse(options["tree"]),
        device=options["device"],
        attention=options["attention"],
        dtype=torch.float32 if options["device"] == "cpu" else torch.bfloat16,
        compile_layers=choice(options, "compile", COMPILE),
        num_episodes=whole(options, "episodes"),
        steps=whole(options, "steps"),
        learning_rate=float(options["learning_rate"]),
        budget=whole(options, "budget"),
        smaller_budget=whole(options, "smaller_budget"),
    )
    print({key: value for key, value in facts.items() if key != "options"})
    for short in options["sides"].split(","):
        side = choice({"sides": short}, "sides", NAMES)
        if len(curves.get(side, ())) < settings.steps:
            start, losses = time.monotonic(), []
            for loss in train_curve(side, settings):
                losses.append(loss)
                if len(losses) % EVERY == 0 or len(losses) == settings.steps:
                    curves[side] = torch.stack(losses).tolist()
                    _write(options, facts, curves)
                    took = time.monotonic() - start
                    print(
                        f"{side}: step {len(losses)}, {took:.1f} s, loss {curves[side][-1]:.4f}",
                        flush=True,
                    )
        _write(options, facts, curves, with_pictures=True)
    print(json.dumps(_compared(curves, settings.steps)))
    return 0


def _known(options: dict[str, str]) -> dict[str, list[float]]:
    """The curves of `output` and of the files of `read`. Raises `UserError` for other settings."""
    curves: dict[str, list[float]] = {}
    for name in filter(None, (options["output"], *options["read"].split(","))):
        path = Path(name)
        if name == options["output"] and not path.exists():
            continue
        if not path.exists():
            raise UserError(f"read={name}: there is no such file")
        found = json.loads(path.read_text())
        for key in SAME:
            if found["options"][key] != options[key]:
                raise UserError(
                    f"{name}: its {key} is {found['options'][key]}, not {options[key]}; give "
                    "another output, or the same options"
                )
        curves.update(found["curves"])
    return curves


def _compared(curves: dict[str, list[float]], steps: int) -> dict[str, Any]:
    """Differences between the curves that are there whole."""
    whole_ones = [side for side in SIDES if len(curves.get(side, ())) == steps]
    pairs = (("tree", "flat"), ("flat, smaller", "flat"), ("tree", "flat, smaller"))
    return {
        f"{a} - {b}": differences(curves[a], curves[b])._asdict()
        for a, b in pairs
        if a in whole_ones and b in whole_ones
    }


def _write(
    options: dict[str, str],
    facts: dict[str, Any],
    curves: dict[str, list[float]],
    *,
    with_pictures: bool = False,
) -> None:
    compared = _compared(curves, int(options["steps"]))
    write_json(options["output"], {**facts, "differences": compared, "curves": curves})
    if with_pictures:
        stem = Path(options["output"])
        title = (
            f"{options['size']}, {options['tree']}, AdamW, learning rate {options['learning_rate']}"
        )
        whole_ones = {n: c for n, c in curves.items() if len(c) == int(options["steps"])}
        draw_curves(whole_ones, title, [str(stem.with_suffix(end)) for end in (".png", ".svg")])


if __name__ == "__main__":
    sys.exit(run(main))
