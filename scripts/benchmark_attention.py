"""Attention over trees beside plain causal attention at equal live pairs, forward and backward.

    python scripts/benchmark_attention.py           # one Hopper GPU, the shapes of docs/benchmarks
    python scripts/benchmark_attention.py device=cpu backends=sdpa cases=6x20+3,2*6x20+3 \\
        heads=4 kv_heads=2 head_dim=32

A backend first passes the parity gate, then every case is held to a dense evaluation; otherwise
nothing is printed. `commit=` names the commit where there is no git.
"""

from __future__ import annotations

import sys
from dataclasses import asdict

import torch

from vla_nav.profiling.attention_bench import CASES, AttentionBench, Heads
from vla_nav.profiling.bench_rows import (
    RowFile,
    about,
    choice,
    head_sizes,
    parse_options,
    run,
    whole,
)
from vla_nav.profiling.bounds import device_rates
from vla_nav.profiling.synthetic import Forest

DEFAULTS = {
    "backends": "flash",
    "cases": ",".join(CASES),
    "device": "cuda",
    "dtype": "bfloat16",
    "heads": "16",
    "kv_heads": "8",
    "head_dim": "128",
    "repeats": "20",
    "calls": "5",
    "flat": "true",
    "commit": "",
    "output": "attention.json",
}
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def main(arguments: list[str]) -> int:
    options = parse_options(arguments, DEFAULTS)
    options["dtype"] = "float32" if options["device"] == "cpu" else options["dtype"]
    heads = Heads(*head_sizes(options))
    dtype = choice(options, "dtype", DTYPES)
    facts = about(options)
    facts |= device_rates(options["device"], dtype)
    print({key: value for key, value in facts.items() if key != "options"}, heads, options["dtype"])
    file = RowFile(options["output"], facts, ("tree", "backend"))
    print(
        "| tree | backend | forward TFLOP/s | causal | ratio | both TFLOP/s | causal | ratio "
        "| tree ms | flat ms | tokens | full + partial blocks | density | off by |\n"
        + "|---" * 14
        + "|"
    )
    for name in options["backends"].split(","):
        bench = AttentionBench(
            name,
            device=options["device"],
            dtype=dtype,
            heads=heads,
            repeats=whole(options, "repeats"),
            calls=whole(options, "calls"),
        )
        for text in options["cases"].split(","):
            with_flat = choice(options, "flat", {"true": True, "false": False})
            row = bench.row(Forest.parse(text), with_flat=with_flat)
            file.add(asdict(row))
            flat = "" if row.flat_ms is None else f"{row.flat_ms:.2f}"
            print(
                f"| {row.tree} | {row.backend} "
                f"| {row.fwd_tflops:.0f} | {row.causal_fwd_tflops:.0f} | {row.fwd_ratio:.2f} "
                f"| {row.fwd_bwd_tflops:.0f} | {row.causal_tflops:.0f} ({row.causal_kernel}) "
                f"| {row.ratio:.3f} | {row.tree_ms:.3f} | {flat} | {row.tokens} "
                f"| {row.full_blocks} + {row.partial_blocks} | {row.density:.2f} "
                f"| {row.worst_difference:.1e} |",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
