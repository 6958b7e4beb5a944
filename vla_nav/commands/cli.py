"""`vla-nav <command> [hydra overrides]`: the one command line of the project.

    vla-nav train experiment=quickstart data.path=demo/data training.budget.max_minutes=7
            |     `-- overrides of conf/train.yaml, as Hydra reads them
            `-- vla_nav/commands/train.py: main(cfg) -> exit code

A command is a file of this folder with `def main(cfg) -> int` beside a `conf/<command>.yaml`.
Nothing heavy is imported before the command is known, so that `vla-nav --help` answers at once.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from pathlib import Path

from vla_nav.errors import UserError, unknown_name

_FOLDER = Path(__file__).parent
_NOT_COMMANDS = {"__init__", "cli", "compose", "overrides", "sweep", "value_kinds"}


def command_names() -> tuple[str, ...]:
    """Every command, in alphabetical order: the modules of this folder that have a `main`."""
    return tuple(
        sorted(path.stem for path in _FOLDER.glob("*.py") if path.stem not in _NOT_COMMANDS)
    )


def summary(command: str) -> str:
    """The first line of a command module's docstring, read without importing it."""
    tree = ast.parse((_FOLDER / f"{command}.py").read_text(encoding="utf-8"))
    return (ast.get_docstring(tree) or "").split("\n", 1)[0]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code (0 done, 2 a fault of the input, 130 interrupted)."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0
    if words[0] == "--version":
        from vla_nav import __version__

        print(f"vla_nav {__version__}")
        return 0
    command, *overrides = words
    try:
        if command not in command_names():
            raise unknown_name("command", command, command_names())
    except UserError as error:
        print(f"vla-nav: {error}", file=sys.stderr)
        return 2
    from vla_nav.commands.compose import run

    return run(command, overrides)


def _usage() -> str:
    names = command_names()
    width = max(map(len, names), default=0)
    lines = ["usage: vla-nav <command> [key=value ...]", "", "commands:"]
    lines += [f"  {name:<{width}}  {summary(name)}" for name in names]
    lines += [
        "",
        "vla-nav <command> --help       the keys of a command and the options of its groups",
        "vla-nav <command> --cfg job    the composed configuration, nothing is run",
        "vla-nav <command> -m a=1,2     one run per value",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
