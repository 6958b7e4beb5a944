"""The main job end to end: houses, expert episodes, frames, training, closed-loop evaluation.

    python scripts/demo.py [output=demo] [override ...]        (`make demo` calls it)

Runs, in this order, the commands that a user would run by hand, each with `experiment=quickstart`:

    houses -> record (train) -> encode (train) -> train -> evaluate (val_unseen)

Every step resumes where an interrupted one stopped, so a second start finishes the first.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from vla_nav.commands.compose import run


def plan(output: Path, overrides: Sequence[str]) -> list[tuple[str, list[str]]]:
    """The commands of the demo with their overrides, in order."""
    common = ["experiment=quickstart", f"data.path={output / 'data'}"]
    trained = output / "train"
    return [
        ("houses", [*common, f"paths.output_dir={output / 'houses'}"]),
        ("record", [*common, "data.split=train", f"paths.output_dir={output / 'record'}"]),
        ("encode", [*common, "data.split=train", f"paths.output_dir={output / 'encode'}"]),
        ("train", [*common, "data.split=train", f"paths.output_dir={trained}", *overrides]),
        (
            "evaluate",
            [
                *common,
                "data.split=val_unseen",
                f"checkpoint={trained / 'policy'}",
                f"paths.output_dir={output}",
            ],
        ),
    ]


def main(arguments: Sequence[str]) -> int:
    """Run the demo; return the exit code of the first command that fails, or 0."""
    outputs = [word.removeprefix("output=") for word in arguments if word.startswith("output=")]
    overrides = [word for word in arguments if not word.startswith("output=")]
    output = Path(outputs[-1] if outputs else "demo").resolve()
    start = time.monotonic()
    for command, words in plan(output, overrides):
        began = time.monotonic()
        print(f"== vla-nav {command} {' '.join(words)}", flush=True)
        code = run(command, words)
        if code:
            return code
        print(f"== {command}: {time.monotonic() - began:.0f} s", flush=True)
    print(f"demo finished in {(time.monotonic() - start) / 60:.1f} minutes")
    print(f"report: {output / 'report.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
