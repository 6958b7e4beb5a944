"""A page of every format, from data sets that were written from the public readers' code."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from pages import content_of, index_of, view_config
from PIL import Image

from tests.episodes.fixtures.every_format import PLAIN
from vla_nav.episodes.formats import open_source
from vla_nav.viewing.view_run import view_from


@pytest.mark.parametrize("name", PLAIN)
def test_every_format_has_a_page_with_its_actions_and_frames(name: str, tmp_path: Path) -> None:
    made = PLAIN[name](tmp_path / "data")
    config = view_config(tmp_path / "page", "view.max_side_px=2000")
    config["data"] |= {
        "path": str(made.root),
        "split": made.split,
        "format": made.format,
        "role": made.episodes[0].role,
        "turn_deg": 15,
    }
    page = view_from(config, None)
    source = open_source(
        made.root, split=made.split, format=made.format, role=made.episodes[0].role
    )
    episodes = list(islice(source, 200))
    lines = index_of(page)["episodes"]
    assert [line["key"] for line in lines] == ["/".join(episode.key) for episode in episodes]
    for number, episode in enumerate(episodes):
        content = content_of(page, number)
        assert content["instruction"] == episode.instruction
        if not episode.steps:
            has_truth = "ground_truth" in episode.metadata
            assert [track["name"] for track in content["tracks"]] == ["ground truth"] * has_truth
            continue
        (track,) = content["tracks"]
        assert track["actions"] == [list(step.executed) for step in episode.steps]
        for step, files in zip(episode.steps, track["frames"], strict=True):
            assert files.keys() == step.frames.keys()
            for camera, key in step.frames.items():
                assert not files[camera].startswith("!"), files[camera]
                pixels = source.frames.read(key)
                image = Image.open(page.parent / files[camera])
                assert image.size == (pixels.shape[1], pixels.shape[0])
                if files[camera].endswith(".png") and pixels.dtype == np.uint8:
                    np.testing.assert_array_equal(np.asarray(image), pixels)
