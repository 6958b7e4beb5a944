"""What the habitat worker imports: it must start in an environment that has little more than
habitat-sim, on Python 3.9.

    worker.py --habitat--> host, habitat --> ... every module of this package that they reach
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
START = ("worker", "host", "habitat", "plain", "agent")
ALLOWED = {"numpy", "msgpack", "habitat_sim", "magnum"}
OLDEST = (3, 9)


def file_of(module: str) -> Path | None:
    path = ROOT / Path(*module.split("."))
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


def imported(path: Path) -> set[str]:
    """Modules that the file imports when it is imported itself, as Python 3.9 reads it."""
    tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=OLDEST)
    names = set()
    for node in tree.body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return names


def reached() -> tuple[set[str], set[str]]:
    """(modules of this package, packages of others) that the worker reaches."""
    todo = {f"vla_nav.simulators.{name}" for name in START}
    ours, others = set(), set()
    while todo:
        module = todo.pop()
        if module in ours:
            continue
        path = file_of(module)
        if path is None:
            if not module.startswith("vla_nav."):
                others.add(module.split(".")[0])
            continue
        ours.add(module)
        parents = module.split(".")
        todo |= {".".join(parents[:end]) for end in range(1, len(parents))}
        todo |= imported(path)
    return ours, others


def test_the_habitat_worker_reaches_only_what_its_environment_has() -> None:
    ours, others = reached()
    assert {"vla_nav.simulators.habitat_scene", "vla_nav.episodes.types"} <= ours
    assert others - ALLOWED - set(sys.stdlib_module_names) == set()


@pytest.mark.habitat
def test_the_worker_starts_where_nothing_else_can_be_imported() -> None:
    """A real start, with everything that only this environment has hidden from it."""
    program = (
        "import sys, runpy\n"
        "hidden = {'torch', 'trimesh', 'scipy', 'omegaconf', 'hydra', 'PIL', 'lightning'}\n"
        "import habitat_sim\n"  # it needs some of them itself
        "before = set(sys.modules)\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "from vla_nav.simulators.worker import make_host\n"
        "print(make_host('habitat').version)\n"
        "new = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "assert not new & hidden, new & hidden\n"
    )
    done = subprocess.run(
        [os.environ["VLA_NAV_HABITAT_PYTHON"], "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().startswith("0.")
