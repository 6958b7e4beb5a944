"""R2R-CE: fixture, releases, ground truth, and the real files where present."""

from __future__ import annotations

import gzip
import json
import math
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.episodes.fixtures import r2r_ce
from tests.episodes.fixtures.expected import differences
from vla_nav.episodes.formats import open_source
from vla_nav.episodes.r2r_release import BEFORE_V1_3, OTHER, V1_3
from vla_nav.episodes.source import EpisodeError, episodes_and_errors
from vla_nav.episodes.vlnce import release_of_file
from vla_nav.errors import UserError

SPLIT = "val_unseen"


def edit(root: Path, change: Any, name: str = SPLIT) -> Path:
    """Change the decoded file in place."""
    path = root / SPLIT / f"{name}.json.gz"
    content = json.loads(gzip.decompress(path.read_bytes()))
    change(content)
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    return path


@pytest.mark.parametrize("ending", [".json.gz", ".json", ".json.zst"])
def test_the_fixture_is_read_in_every_compression(tmp_path: Path, ending: str) -> None:
    expected = r2r_ce.write(tmp_path)
    for path in (tmp_path / SPLIT).glob("*.json.gz"):
        text = gzip.decompress(path.read_bytes())
        path.unlink()
        data = {
            ".json.gz": gzip.compress(text),
            ".json": text,
            ".json.zst": pa.compress(text, "zstd", asbytes=True),
        }
        path.with_name(path.name.removesuffix(".json.gz") + ending).write_bytes(data[ending])
    assert differences(open_source(tmp_path, split=SPLIT), expected) == []


@pytest.mark.parametrize("folder", ["R2R_VLNCE_v1-3_preprocessed", "episodes"])
def test_the_folder_above_is_enough(tmp_path: Path, folder: str) -> None:
    expected = r2r_ce.write(tmp_path / folder)
    assert differences(open_source(tmp_path, split=SPLIT), expected) == []
    assert differences(open_source(tmp_path / folder / SPLIT, split=SPLIT), expected) == []
    file = tmp_path / folder / SPLIT / f"{SPLIT}.json.gz"
    assert differences(open_source(file, split=SPLIT), expected) == []


def test_a_release_is_told_by_its_headings_and_ids(tmp_path: Path) -> None:
    r2r_ce.write(tmp_path)
    path = tmp_path / SPLIT / f"{SPLIT}.json.gz"
    release = release_of_file(path)
    assert (release.name, release.num_off, release.id_types) == (V1_3, 0, ("int",))
    assert release.differences(SPLIT) == (
        "episodes: 3, published 1839",
        "scenes: 2, published 11",
    )
    assert release.differences("mine") == ()

    def turn(content: Any) -> None:
        half = math.radians(47.3) / 2
        content["episodes"][2]["start_rotation"] = [0.0, math.sin(half), 0.0, math.cos(half)]

    edit(tmp_path, turn)
    release = release_of_file(path)
    assert (release.name, release.num_off, release.off_ids) == (BEFORE_V1_3, 1, ("3",))
    with pytest.warns(UserWarning, match=r"val_unseen.json.gz: .*v1 or v1-2, whose headings are"):
        source = open_source(tmp_path, split=SPLIT)
    assert any("v1 or v1-2" in note for note in source.facts.notes)
    assert source.facts.turn_deg == 15.0


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content["episodes"][0].update(episode_id="7"),
        lambda content: content["episodes"][0].update(scene_id="hm3d/a/a.glb"),
        lambda content: content.pop("instruction_vocab"),
    ],
)
def test_of_another_projects_file_turn_and_body_are_not_known(tmp_path: Path, change: Any) -> None:
    r2r_ce.write(tmp_path)
    edit(tmp_path, change)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        source = open_source(tmp_path, split=SPLIT)
    assert release_of_file(source.files[0].path).name == OTHER
    facts = source.facts
    assert (facts.turn_deg, facts.step_m, facts.embodiment) == (None, None, None)
    assert [episode.episode_id for episode in source] == ["7", "12", "3"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda gt: gt.pop("12"), "is not in the file"),
        (lambda gt: gt.update({"12": gt["7"]}), "starts .* m from the episode's start_position"),
        (lambda gt: gt["12"]["locations"].pop(), "2 locations do not fit 2 MOVE_FORWARD"),
        (lambda gt: gt["12"].update(x=[float("nan")]), r"key x\[0\] is nan"),
        (lambda gt: gt["12"]["locations"].__setitem__(1, [10**400, 0, 0]), "non-finite"),
    ],
)
def test_a_ground_truth_that_is_broken_is_named_and_the_others_are_joined(
    tmp_path: Path, change: Any, message: str
) -> None:
    r2r_ce.write(tmp_path)
    gt = edit(tmp_path, change, f"{SPLIT}_gt")
    first, fault, last = episodes_and_errors(open_source(tmp_path, split=SPLIT))
    assert isinstance(fault, EpisodeError)
    assert (fault.episode_id, fault.key) == ("12", "ground_truth")
    with pytest.raises(EpisodeError, match=rf"^{gt}: episode 12: .*{message}"):
        raise fault
    assert first.metadata["ground_truth"]["actions"] == [2, 2, 1, 1, 3, 1, 0]
    assert last.metadata["ground_truth"]["forward_steps"] == 3


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"info": {"geodesic_distance": float("inf")}}, "info.geodesic_distance"),  # an island
        ({"instruction": {"instruction_text": "\ud800"}}, "instruction.instruction_text"),
        ({"scene_id": "\udfff"}, "scene_id"),
        ({"more": {"\ud800": 1}}, "more"),
        ({"start_position": [10**400, 0, 0]}, "start_position"),
        ({"episode_id": "a\nb"}, "episode_id"),
        ({"more": json.loads("[" * 70 + "]" * 70)}, "more" + "[0]" * 63),
        ({"start_rotation": json.loads("[" * 800 + "]" * 800)}, "start_rotation"),
    ],
)
def test_what_nothing_downstream_can_store_is_refused_in_one_line(
    tmp_path: Path, change: dict[str, Any], key: str
) -> None:
    r2r_ce.write(tmp_path, has_gt=False)
    edit(tmp_path, lambda content: content["episodes"][0].update(change))
    fault, *others = episodes_and_errors(open_source(tmp_path, split=SPLIT))
    assert isinstance(fault, EpisodeError)
    assert fault.key == key
    assert str(fault).isprintable()
    assert len(str(fault)) < 600
    assert [episode.episode_id for episode in others] == ["12", "3"]


def test_a_file_cut_short_is_named_before_its_first_episode(tmp_path: Path) -> None:
    r2r_ce.write(tmp_path)
    path = tmp_path / SPLIT / f"{SPLIT}.json.gz"
    data = path.read_bytes()
    for length in range(0, len(data), 37):
        path.write_bytes(data[:length])
        with pytest.raises(UserError, match=r"val_unseen.json.gz: "):
            open_source(tmp_path, split=SPLIT, format="r2r_ce")


@pytest.fixture
def real() -> Path:
    folder = os.environ.get("VLA_NAV_REAL_DATA")
    if not folder:
        pytest.skip("VLA_NAV_REAL_DATA is unset: no real R2R-CE files to read")
    return Path(folder) / "r2r_ce_v1-3"


def test_the_real_splits_are_v1_3_and_whole(real: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train = open_source(real, split="train")
        val = open_source(real, split=SPLIT)
    for source, count, scenes in ((train, 10_819, 61), (val, 1_839, 11)):
        assert source.facts.format == "r2r_ce"
        assert f"{count} episodes of {scenes} scenes: r2r-ce v1-3" in source.facts.notes
        assert not any("differs" in note for note in source.facts.notes)
    assert sum(1 for _ in train) == 10_819
    actions = [episode.metadata["ground_truth"]["actions"] for episode in val]
    assert (round(np.mean([len(a) for a in actions]), 1), len(actions)) == (57.3, 1839)
    assert all(a.count(0) == 1 and a[-1] == 0 for a in actions)
