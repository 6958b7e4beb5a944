"""Evaluated houses of two floors, a page of them, and a browser, each made once."""

from pathlib import Path

import pytest
from chromium import Browser, why_missing
from pages import view_config, write_r2r

from vla_nav.commands.cli import main
from vla_nav.viewing.view_run import view_from

_CAMERA = (
    "simulators.embodiment.cameras=[{name: front, width_px: 16, height_px: 12, hfov_deg: 90.0, "
    "height_m: 1.25, pitch_deg: 0.0, has_depth: false}]"
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `browser` are skipped with the reason where there is no Chromium."""
    if (reason := why_missing()) is not None:
        for item in items:
            if item.get_closest_marker("browser"):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def run(tmp_path_factory) -> Path:
    """The folder of an evaluation of two rows: one house of two floors, four episodes."""
    path = tmp_path_factory.mktemp("world")
    made = main([
        "houses", f"data.path={path}", "houses.num_train=0", "houses.num_val_unseen=1",
        "houses.episodes_per_house=4", "houses.num_floors=2", "houses.num_rooms=[5,5]",
        "houses.route.max_geodesic_m=30", "num_workers=0", f"paths.output_dir={path}/houses",
    ])  # fmt: skip
    assert made == 0
    evaluated = main([
        "evaluate", f"data.path={path}", "evaluation.rows=[random,expert]", "num_workers=0",
        "evaluation.num_episodes=4", "evaluation.max_primitives=150",
        "evaluation.num_threads=1", f"paths.output_dir={path}/run",
        _CAMERA,
    ])  # fmt: skip
    assert evaluated == 0
    return path / "run"


@pytest.fixture(scope="session")
def run_page(run, tmp_path_factory) -> Path:
    """The page of the evaluation."""
    folder = tmp_path_factory.mktemp("run page")  # a folder with a blank in its name
    return view_from(view_config(folder, f"view.run={run}"), None)


@pytest.fixture(scope="session")
def data_page(tmp_path_factory) -> Path:
    """The page of an episode file with hostile texts."""
    data = write_r2r(tmp_path_factory.mktemp("r2r"), 60)
    folder = tmp_path_factory.mktemp("data page #1")
    return view_from(
        view_config(folder, f"data.path={data}", "data.split=val", "data.turn_deg=15"), None
    )


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """One browser for all tests."""
    with Browser(tmp_path_factory.mktemp("browser")) as session:
        yield session
