"""Every reader against a data set that someone else wrote from the public reader's code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.episodes.fixtures.every_format import PLAIN, VARIANTS
from tests.episodes.fixtures.expected import differences
from vla_nav.episodes.formats import FORMATS, detect, open_source
from vla_nav.errors import UserError


@pytest.mark.parametrize("name", VARIANTS)
def test_everything_in_the_files_comes_out(name: str, tmp_path: Path) -> None:
    expected = VARIANTS[name](tmp_path)
    role = expected.episodes[0].role
    source = open_source(expected.root, split=expected.split, format=expected.format, role=role)
    assert differences(source, expected) == []


@pytest.mark.parametrize("name", VARIANTS)
def test_the_format_is_detected(name: str, tmp_path: Path) -> None:
    expected = VARIANTS[name](tmp_path)
    assert detect(expected.root, expected.split) == expected.format


def test_a_folder_of_two_formats_is_not_guessed(tmp_path: Path) -> None:
    expected = VARIANTS["r2r_ce"](tmp_path)
    assert VARIANTS["streamvln"](tmp_path).root == expected.root
    with pytest.raises(UserError, match="r2r_ce or streamvln"):
        detect(expected.root, expected.split)


def test_every_foreign_format_has_a_fixture() -> None:
    assert set(PLAIN) == set(FORMATS) - {"recorded"}
