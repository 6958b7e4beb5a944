"""A small world for the tests of this folder: generated houses with routes, made once."""

from pathlib import Path

import pytest
from worlds import run_command


@pytest.fixture(scope="session")
def world(tmp_path_factory) -> Path:
    """Three houses of five episodes in split val_unseen; `data.path` of the commands."""
    path = tmp_path_factory.mktemp("world")
    code = run_command(
        "houses",
        f"data.path={path}",
        "houses.num_train=0",
        "houses.num_val_unseen=3",
        "houses.episodes_per_house=5",
        "num_workers=0",
        f"paths.output_dir={path}/runs",
    )
    assert code == 0
    return path
