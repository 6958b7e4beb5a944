"""Rate and memory of trees in partitions, beside the same trees resident.

    python scripts/benchmark_partitions.py              # one GPU, the shapes of docs/benchmarks
    python scripts/benchmark_partitions.py size=tiny device=cpu attention=sdpa \\
        recompute=6x20+3 keep='6x(8+20)'

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
from vla_nav.profiling.partitions import (
    PartitionBench,
    PartitionRow,
    keep_rows,
    recompute_rows,
)
from vla_nav.profiling.synthetic import TreeShape
from vla_nav.profiling.timing import Measured

DEFAULTS = {
    "size": "1.7b",
    "device": "cuda",
    "attention": "flex",
    "recompute": "150x196+12,120x(68+204)",
    "counts": "2,4,8",
    "keep": "60x(68+204)",
    "shares": "0.28,0.34",
    "output": "partitions.json",
}


def main(arguments: list[str]) -> int:
    options = dict(DEFAULTS)
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key not in options:
            raise UserError(f"unknown option '{key}'; allowed: {', '.join(options)}")
        options[key] = value
    found = []
    print("tree | tokens | mode | partitions | step ms | rate | working GiB | memory | drift")
    for mode in ("recompute", "keep"):
        for text in filter(None, options[mode].split(",")):
            bench = PartitionBench(
                TreeShape.parse(text),
                options["size"],
                device=options["device"],
                attention=options["attention"],
            )
            if mode == "recompute":
                rows = recompute_rows(bench, [int(n) for n in options["counts"].split(",")])
            else:
                rows = keep_rows(bench, [float(share) for share in options["shares"].split(",")])
            for name, row in rows:
                found.append({"tree": text, "what": name, **_values(row)})
                print(_line(bench, name, row), flush=True)
            del bench
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


def _values(row: Measured | PartitionRow) -> dict[str, object]:
    return asdict(row) if isinstance(row, PartitionRow) else row._asdict()


def _line(bench: PartitionBench, name: str, row: Measured | PartitionRow) -> str:
    head = f"{bench.shape} | {bench.tree.num_tokens} | {name}"
    if isinstance(row, PartitionRow):
        return (
            f"{head} | {row.partitions} | {row.step_ms:.1f} | {row.rate:.3f} | "
            f"{row.working_gib:.2f} | {row.memory or 0:.3f} | {row.gradient_drift:.2g}"
        )
    return f"{head} | 1 | {row.time_ms:.1f} | | {row.working_bytes / 2**30:.2f} | |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
