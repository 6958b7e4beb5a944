"""Simulator backends for the tests here: `bench` is every one of them in turn, one worker each."""

from collections.abc import Iterator

import pytest
from backends import Bench, make_bench


@pytest.fixture(
    scope="session", params=["mesh", pytest.param("habitat", marks=pytest.mark.habitat)]
)
def bench(request: pytest.FixtureRequest, tmp_path_factory) -> Iterator[Bench]:
    """Each backend; habitat where it is installed."""
    made = make_bench(request.param, tmp_path_factory.mktemp(request.param))
    yield made
    made.close()
