"""Rate and memory of trees in partitions, beside the same trees resident.

    python scripts/benchmark_partitions.py              # one GPU, the shapes of docs/benchmarks
    python scripts/benchmark_partitions.py size=tiny device=cpu attention=sdpa trees=6x20+3

Refuses to print a speed where gradients in partitions differ from resident ones by more than
bfloat16 rounding. Writes docs-style tables to `output` as JSON and Markdown.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import torch

from vla_nav.errors import UserError
from vla_nav.files import write_json
from vla_nav.profiling.partitions import partition_rows
from vla_nav.profiling.synthetic import TreeShape

DEFAULTS = {
    "size": "1.7b",
    "device": "cuda",
    "attention": "flex",
    "trees": "44x196+12,100x144+12,60x(68+204)",
    "counts": "2,4,8",
    "keep_share": "0.28",
    "output": "partitions.json",
}


def main(arguments: list[str]) -> int:
    options = dict(DEFAULTS)
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key not in options:
            raise UserError(f"unknown option '{key}'; allowed: {', '.join(options)}")
        options[key] = value
    counts = [int(count) for count in options["counts"].split(",")]
    found = []
    head = "tree | tokens | mode | partitions | step ms | rate | working GiB | memory | drift"
    print(head)
    for text in options["trees"].split(","):
        shape = TreeShape.parse(text)
        rows, resident = partition_rows(
            shape,
            options["size"],
            device=options["device"],
            attention=options["attention"],
            counts=counts,
            keep_share=float(options["keep_share"]) if shape.history else None,
        )
        for name, value in resident.items():
            gib = value.working_bytes / 2**30
            print(f"{shape} | resident {name} | {value.time_ms:.1f} ms | {gib:.2f} GiB", flush=True)
            found.append({"tree": str(shape), "resident": name, **value._asdict()})
        for row in rows:
            print(
                f"{row.tree} | {row.tokens} | {row.mode} | {row.partitions} | {row.step_ms:.1f} | "
                f"{row.rate:.3f} | {row.working_gib:.2f} | {row.memory or 0:.3f} | "
                f"{row.gradient_drift:.2g}",
                flush=True,
            )
            found.append(asdict(row))
    is_cuda = options["device"].startswith("cuda")
    about = {
        "options": options,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if is_cuda else "cpu",
        "commit": subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
        ).stdout.strip(),
    }
    write_json(Path(options["output"]), {**about, "rows": found})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
