"""Every file of every format cut, flipped, filled and doubled: data or a refusal, never a crash.

The plain run takes two cuts and two flips of each kind of file; the long run (VLA_NAV_LONG=1) takes
every class of offset (`tests/episodes/fixtures/damage.py`) and more flips.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.episodes.fixtures.damage import cut, flipped, one_of_each_kind, replaced
from tests.episodes.fixtures.every_format import PLAIN
from tests.episodes.fixtures.limited import GOOD, Limited


@pytest.fixture(scope="module")
def limited() -> Iterator[Limited]:
    with Limited() as child:
        yield child


@pytest.mark.parametrize("name", PLAIN)
def test_damaged_files_are_refused_or_read(limited: Limited, tmp_path: Path, name: str) -> None:
    assert faults(limited, tmp_path, name, is_thorough=False) == []


@pytest.mark.long
@pytest.mark.parametrize("name", PLAIN)
def test_every_class_of_damage(limited: Limited, tmp_path: Path, name: str) -> None:
    assert faults(limited, tmp_path, name, is_thorough=True) == []


@pytest.mark.parametrize("name", PLAIN)
def test_nothing_is_refused_of_undamaged_files(limited: Limited, tmp_path: Path, name: str) -> None:
    expected = PLAIN[name](tmp_path)
    role = expected.episodes[0].role
    outcome = limited.read(expected.root, split=expected.split, format=name, role=role)
    assert outcome.kind == "valid", outcome


def faults(limited: Limited, root: Path, name: str, *, is_thorough: bool) -> list[str]:
    """What went wrong, a line for each damage."""
    expected = PLAIN[name](root)
    role = expected.episodes[0].role
    wrong = []
    for number, file in enumerate(one_of_each_kind(root)):
        data = file.read_bytes()
        damaged = cut(data) + flipped(data, seed=number, count=45) + replaced(data, seed=number)
        if not is_thorough:
            size = len(data)
            few = [(f"cut at {n} of {size}", data[:n]) for n in (size // 2, size - 3)]
            damaged = few + flipped(data, seed=number, count=2)
        for what, changed in damaged:
            file.write_bytes(changed)
            outcome = limited.read(expected.root, split=expected.split, format=name, role=role)
            is_named = outcome.kind != "refused" or str(root) in outcome.text
            if outcome.kind not in GOOD or not is_named:
                where = file.relative_to(root)
                wrong.append(f"{where}, {what}: {outcome.kind} {outcome.text[-600:]}")
        file.write_bytes(data)
    return wrong
