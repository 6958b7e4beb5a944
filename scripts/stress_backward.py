"""Thousands of launches of an attention backward: no NaN, no difference beyond rounding.

    python scripts/stress_backward.py                        # one Hopper GPU, 10,000 launches
    python scripts/stress_backward.py backend=sdpa device=cpu launches=20 cases=6x20+3 heads=4 \\
        kv_heads=2 head_dim=32

Exits with 1 where a launch gives NaN, or differs from the pack's first launch by more than the
rounding of the dtype. `commit=` names the commit where there is no git.
"""

from __future__ import annotations

import sys
from dataclasses import asdict

import torch

from vla_nav.files import write_json
from vla_nav.profiling.attention_bench import Heads
from vla_nav.profiling.bench_rows import about, choice, head_sizes, parse_options, run, whole
from vla_nav.profiling.stress import stress_backward
from vla_nav.profiling.synthetic import Forest

DEFAULTS = {
    "backend": "flash",
    "cases": "60x64+16@256,44x196+12,2^5x40+12,60x(17+204)",
    "launches": "10000",
    "every": "1000",
    "device": "cuda",
    "dtype": "bfloat16",
    "heads": "16",
    "kv_heads": "8",
    "head_dim": "128",
    "commit": "",
    "output": "stress.json",
}
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def main(arguments: list[str]) -> int:
    options = parse_options(arguments, DEFAULTS)
    options["dtype"] = "float32" if options["device"] == "cpu" else options["dtype"]
    facts = about(options)
    print({key: value for key, value in facts.items() if key != "options"})
    is_sound = True
    for found in stress_backward(
        options["backend"],
        [Forest.parse(text) for text in options["cases"].split(",")],
        device=options["device"],
        dtype=choice(options, "dtype", DTYPES),
        heads=Heads(*head_sizes(options)),
        launches=whole(options, "launches"),
        every=whole(options, "every"),
    ):
        is_sound = found.is_sound
        worst = ", ".join(f"{name} {value:.2g}" for name, value in found.worst.items())
        print(
            f"{found.launches} launches, {found.seconds:.1f} s: {found.not_finite} with NaN, "
            f"{found.different} not bit-equal to the first, differences up to {worst} "
            f"(allowed {found.allowed:.2g})",
            flush=True,
        )
        write_json(options["output"], {**facts, **asdict(found), "is_sound": is_sound})
    return 0 if is_sound else 1


if __name__ == "__main__":
    sys.exit(run(main))
