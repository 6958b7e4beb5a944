"""Counts estimated from a sample are those of the trees, for every layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.training.test_recorded_trees import LAYOUTS, prompt
from tests.training.tiny import ENCODER, make_data
from vla_nav.episodes.lerobot_reader import LeRobotDataset
from vla_nav.models.prompt import Layout
from vla_nav.training.cost_model import TreeCounts
from vla_nav.training.dataset import RecordedTrees
from vla_nav.training.recorded_split import open_frames
from vla_nav.training.tree_counts import estimate_counts
from vla_nav.tree import tree_stats
from vla_nav.vision.encoder import TimmEncoder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Episodes of 3 to 24 steps, each with two instructions."""
    root = tmp_path_factory.mktemp("data")
    return make_data(root, num_episodes=40, num_instructions=2, steps=(3, 24))


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
@pytest.mark.parametrize("group", ["episode", "trajectory"])
def test_estimates_are_close_to_what_is_built(data: Path, layout: Layout, group: str) -> None:
    episodes = LeRobotDataset(data / "recorded" / "train")
    frames = open_frames(data, "train", TimmEncoder(**ENCODER))
    trees = RecordedTrees(episodes, prompt(data, layout), frames, group=group)
    real = TreeCounts.of([tree_stats(trees[k].tree) for k in range(len(trees))])
    fresh = RecordedTrees(episodes, prompt(data, layout), frames, group=group)
    found = estimate_counts(fresh, fresh.lengths())
    if group == "episode":
        assert len(fresh._known) <= 48 < len(fresh)  # the others were never built
    # Pairs are a curve through the sample, the others shares of exact numbers.
    for name, bound in (("tokens", 0.1), ("pairs", 0.12), ("predictors", 0.12), ("frames", 0.12)):
        mine, theirs = (getattr(counts, name) for counts in (found.counts, real))
        assert np.abs(mine - theirs).sum() <= bound * theirs.sum(), name
    assert found.pair_error < 0.15
