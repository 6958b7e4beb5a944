"""Documents are true: commands are accepted as written, tables hold what was measured."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from scripts.demo import plan
from vla_nav.commands.cli import command_names
from vla_nav.commands.compose import compose_config
from vla_nav.commands.overrides import check_overrides, split_flags
from vla_nav.profiling.step_row import HEADING, StepRow

ROOT = Path(__file__).parent.parent
BENCHMARKS = ROOT / "docs" / "benchmarks"
_LINE = re.compile(r"^(?:# |\$ | {4})?vla-nav ([a-z]+)((?: +[^\s#]+)*) *(?:#.*)?$", re.MULTILINE)


def documented_commands() -> list[tuple[str, str]]:
    """(command, its overrides) of whole lines in blocks and YAML headers; `...` left out."""
    found = set()
    pages = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("conf/**/*.yaml")]
    for page in pages:
        for command, words in _LINE.findall(page.read_text(encoding="utf-8")):
            are_overrides = all("=" in word or word.startswith("-") for word in words.split())
            if "..." not in words and are_overrides:
                found.add((command, words.strip()))
    return sorted(found)


def test_the_documents_have_commands() -> None:
    assert len(documented_commands()) >= 10


@pytest.mark.parametrize(("command", "words"), documented_commands())
def test_documented_command_is_accepted(command: str, words: str) -> None:
    assert command in command_names()
    flags, overrides = split_flags(shlex.split(words))
    if {"-m", "--multirun", "--help"}.isdisjoint(flags):
        if not any(word.startswith("data.path=") for word in overrides) and command != "verify":
            overrides = [*overrides, "data.path=x"]
        check_overrides(command, overrides)
        compose_config(command, overrides)


def test_the_demo_composes_in_order() -> None:
    commands = plan(Path("demo"), ["seed=3"])
    assert [command for command, _ in commands] == [
        "houses",
        "record",
        "encode",
        "train",
        "evaluate",
    ]
    for command, words in commands:
        check_overrides(command, words)
        assert compose_config(command, words).data.path == "demo/data"


def table(page: str) -> list[list[str]]:
    """The cells of every line of `page`'s tables."""
    lines = (BENCHMARKS / page).read_text(encoding="utf-8").splitlines()
    return [[x.strip() for x in line.strip("| ").split("|")] for line in lines if line[:1] == "|"]


def measured(name: str) -> dict[str, Any]:
    """A benchmark's file, or the test is skipped."""
    path = BENCHMARKS / name
    if not path.exists():
        pytest.skip(f"docs/benchmarks/{name} is not there: nothing is measured yet")
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    assert found["rows"]
    return found


def test_the_step_table_is_what_was_measured() -> None:
    rows = measured("step_h200.json")["rows"]
    commits = {row.pop("commit") for row in rows}
    page = (BENCHMARKS / "step.md").read_text(encoding="utf-8")
    assert all(commit in page for commit in commits)
    models = {row["model"] for row in rows}
    assert HEADING in page
    assert [line for line in page.splitlines() if line[2:].split(" |")[0] in models] == [
        StepRow(**row).line() for row in rows
    ]


def test_the_attention_table_is_what_was_measured() -> None:
    rows = measured("attention_h200.json")["rows"]
    page = (BENCHMARKS / "attention.md").read_text(encoding="utf-8")
    backends = {row["backend"] for row in rows}
    lines = {tuple(x[:2]): x for x in table("attention.md") if x[1:2] and x[1] in backends}
    assert lines.keys() == {(row["tree"], row["backend"]) for row in rows}
    for row in rows:
        assert row["commit"] in page
        cells = [x.split(" (")[0] for x in lines[row["tree"], row["backend"]]]
        assert cells[2:8] == [
            f"{row['fwd_tflops']:.0f}",
            f"{row['causal_fwd_tflops']:.0f}",
            f"{row['fwd_ratio']:.2f}",
            f"{row['fwd_bwd_tflops']:.0f}",
            f"{row['causal_tflops']:.0f}",
            f"{row['ratio']:.3f}",
        ]
