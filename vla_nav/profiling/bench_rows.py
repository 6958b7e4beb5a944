"""Rows of a benchmark: options from the command line, what they ran on, a file that grows.

    key=value key=value ...  ->  options  ->  rows, each written at once: a killed run keeps them

A row that is measured again (same values of the key columns) takes the place of the old one, so a
table may be made by several calls.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from vla_nav.errors import UserError, unknown_name
from vla_nav.files import read_json, write_json

_PACKAGES = ("triton", "transformers", "flash-attn-4")


def parse_options(arguments: Sequence[str], defaults: Mapping[str, str]) -> dict[str, str]:
    """`defaults` with the `key=value` arguments in place. Raises `UserError` for unknown keys."""
    options = dict(defaults)
    for argument in arguments:
        key, sign, value = argument.partition("=")
        if key not in options:
            raise unknown_name("option", key, options)
        if not sign:
            raise UserError(f"option '{argument}'; allowed: {key}=value")
        options[key] = value
    return options


def whole(options: Mapping[str, str], key: str, *, least: int = 1) -> int:
    """A whole number of at least `least` among the options. Raises `UserError`."""
    value = options[key]
    if not value.isdecimal() or int(value) < least:
        raise UserError(f"{key}={value}: allowed: whole numbers from {least} on")
    return int(value)


def positive(options: Mapping[str, str], key: str) -> float:
    """A number above 0 among the options. Raises `UserError`."""
    try:
        value = float(options[key])
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise UserError(f"{key}={options[key]}: allowed: numbers above 0")
    return value


def head_sizes(options: Mapping[str, str]) -> tuple[int, int, int]:
    """Query heads, key heads and their width among the options. Raises `UserError`."""
    heads, kv_heads, head_dim = (whole(options, k) for k in ("heads", "kv_heads", "head_dim"))
    if heads % kv_heads:
        raise UserError(f"heads={heads}: allowed: multiples of kv_heads, {kv_heads}")
    return heads, kv_heads, head_dim


def choice(options: Mapping[str, str], key: str, allowed: Mapping[str, Any]) -> Any:
    """What the option's name stands for. Raises `UserError` for a name that is not `allowed`."""
    if options[key] not in allowed:
        raise unknown_name(f"value of {key}", options[key], allowed)
    return allowed[options[key]]


def about(options: Mapping[str, str]) -> dict[str, Any]:
    """Options, device, versions and commit: what a table has to say about itself. `UserError`
    for a device that is not there."""
    try:
        is_cuda = torch.device(options["device"]).type == "cuda"
    except RuntimeError:
        raise UserError(f"device={options['device']}: allowed: cpu, cuda, cuda:1, ...") from None
    if is_cuda and not torch.cuda.is_available():
        raise UserError(f"device={options['device']}: torch finds no GPU here; try device=cpu")
    return {
        "command": f"python scripts/{Path(sys.argv[0]).name} {' '.join(sys.argv[1:])}".strip(),
        "options": dict(options),
        "device": torch.cuda.get_device_name() if is_cuda else "cpu",
        "torch": torch.__version__,
        **{name: _version(name) for name in _PACKAGES},
        "commit": options.get("commit") or commit(),
    }


def commit() -> str:
    """The checkout's commit, or "unknown" outside of one."""
    try:
        found = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        return "unknown"
    return found.stdout.strip() or "unknown"


def read_table(path: Path, *keys: str) -> dict[str, Any]:
    """The JSON object of an earlier call, of which `keys` are named. `UserError` for another."""
    found = read_json(path)
    if not isinstance(found, dict) or any(not isinstance(found.get(k), list | dict) for k in keys):
        raise UserError(f"{path}: holds no {' and '.join(keys)}; give another output")
    return found


class RowFile:
    """A JSON file {about..., rows: [...]} that is whole from the beginning and after every row:
    where it cannot be written nothing is measured."""

    def __init__(self, path: str | Path, facts: Mapping[str, Any], keys: Sequence[str]) -> None:
        self.path, self.facts, self.keys = Path(path), dict(facts), tuple(keys)
        self.rows: list[dict[str, Any]] = []
        if self.path.exists():
            self.rows = list(read_table(self.path, "rows")["rows"])
        self._write()

    def add(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Put the row in (in place of one with the same keys), with the commit; write the file."""
        full = {**row, "commit": self.facts["commit"]}
        same = [self._key(old) == self._key(full) for old in self.rows]
        if any(same):
            self.rows[same.index(True)] = full
        else:
            self.rows.append(full)
        self._write()
        return full

    def _write(self) -> None:
        write_json(self.path, {**self.facts, "rows": self.rows})

    def _key(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(row.get(key) for key in self.keys)


def run(main: Callable[[list[str]], int]) -> int:
    """A script's exit status: what the user can mend is one line and 2, Ctrl-C is 130."""
    try:
        return main(sys.argv[1:])
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        if error.filename is None:
            raise
        print(f"error: {error.filename}: {error.strerror}; give another path", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; what was written is kept", file=sys.stderr)
        return 130


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
