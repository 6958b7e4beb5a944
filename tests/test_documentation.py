"""Every `vla-nav` command in README, docs and configuration headers is accepted as written."""

import re
import shlex
from pathlib import Path

import pytest

from scripts.demo import plan
from vla_nav.commands.cli import command_names
from vla_nav.commands.compose import compose_config
from vla_nav.commands.overrides import check_overrides, split_flags

ROOT = Path(__file__).parent.parent
_LINE = re.compile(r"^(?:# |\$ )?vla-nav ([a-z]+)((?: +[^\s#]+)*) *(?:#.*)?$", re.MULTILINE)


def documented_commands() -> list[tuple[str, str]]:
    """(command, its overrides) of whole lines in fenced blocks and YAML headers; `...` left out."""
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
