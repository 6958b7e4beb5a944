"""What a run was started with, every time: `<run>/provenance.jsonl`, a line per start.

    {"started": "2025-03-01T10:00:00+00:00", "from_step": 0, "num_ranks": 2, "data": "5be1...",
     "overrides": ["experiment=quickstart"], "changed": {}, "gpus": [],
     "versions": {"python": "3.11.9", "torch": "2.9.1", ...},
     "git": {"commit": "...", "dirty": false}}

`run.json` holds what the weights come from and may not change. What may (versions, commit, number
of ranks, keys that leave the weights alone) is here, so that a continuation by other software can
be seen afterwards, and is told when it begins. Names of machines and users are left out.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from vla_nav import __version__
from vla_nav.errors import UserError
from vla_nav.files import atomic_path

FILE = "provenance.jsonl"
_PACKAGES = (
    "lightning",
    "transformers",
    "timm",
    "peft",
    "safetensors",
    "hydra-core",
    "numpy",
    "flash-attn-4",
    "flash-linear-attention",
)
_CHECKOUT = Path(__file__).resolve().parents[2]
_WAIT_S = 20  # for git or the driver


def describe_start() -> dict[str, Any]:
    """Versions, GPUs and git state of this process."""
    gpus, driver = _gpus()
    found = {"vla_nav": __version__, "python": platform.python_version()}
    found |= {"torch": torch.__version__, "cuda": torch.version.cuda, "driver": driver}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return {"versions": found, "gpus": gpus, "git": git_state(_CHECKOUT)}


def git_state(folder: Path) -> dict[str, Any] | None:
    """The commit of a checkout, and whether its files differ from it; None where it is none."""
    if not (folder / ".git").exists():
        return None
    commit = _output("git", "-C", str(folder), "rev-parse", "HEAD")
    changes = _output("git", "-C", str(folder), "status", "--porcelain")
    return None if commit is None else {"commit": commit, "dirty": bool(changes)}


def record_start(run: Path, **entry: Any) -> list[str]:
    """Add this start to the run's file; return what is otherwise than at the start before it.

    entry: what the caller knows (overrides, data, from_step, ...).
    """
    before = read_starts(run)
    started = datetime.now(UTC).isoformat(timespec="seconds")
    now = {"started": started, **entry, **describe_start()}
    lines = [json.dumps(item, sort_keys=True) for item in (*before, now)]
    with atomic_path(run / FILE) as temporary:
        temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return differences(before[-1], now) if before else []


def read_starts(run: Path) -> list[dict[str, Any]]:
    """Every start of a run, the first one first. Raises `UserError` for a damaged file."""
    path = run / FILE
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    try:
        return [dict(json.loads(line)) for line in lines]
    except (ValueError, TypeError) as error:
        raise UserError(
            f"{path}: not a JSON object a line ({error}); restore the file, or delete it: the run "
            "continues without the record of its former starts"
        ) from None


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """`torch 2.9.0 -> 2.9.1` and the like: what may change numbers between two starts."""
    pairs = [("num_ranks", before.get("num_ranks"), now.get("num_ranks"))]
    old, new = before.get("versions") or {}, now.get("versions") or {}
    pairs += [(name, old.get(name), new.get(name)) for name in sorted(old.keys() | new.keys())]
    pairs.append(("GPUs", _joined(before.get("gpus")), _joined(now.get("gpus"))))
    pairs.append(("commit", _commit(before.get("git")), _commit(now.get("git"))))
    return [f"{name} {_shown(a)} -> {_shown(b)}" for name, a, b in pairs if a != b]


def _gpus() -> tuple[list[str], str | None]:
    """Names of the machine's GPUs and the driver's version. CUDA is not touched."""
    if shutil.which("nvidia-smi") is None:
        return [], None
    query = ("--query-gpu=name,driver_version", "--format=csv,noheader")
    rows = [line.rpartition(", ") for line in (_output("nvidia-smi", *query) or "").splitlines()]
    found = [(name, driver) for name, comma, driver in rows if comma]
    return [name for name, _ in found], found[0][1] if found else None


def _output(*words: str) -> str | None:
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, check=True, timeout=_WAIT_S, errors="replace"
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _joined(names: list[str] | None) -> str | None:
    return ", ".join(names) if names else None


def _commit(state: Mapping[str, Any] | None) -> str | None:
    return None if state is None else state["commit"][:12] + (" (changed)" * state["dirty"])


def _shown(value: Any) -> str:
    return "none" if value is None else str(value)
