"""Damage to a recorded data set gives one line that names the file, and is never read as data."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from made_episodes import body, record, writer

from vla_nav.episodes.lerobot_reader import LeRobotDataset
from vla_nav.errors import UserError
from vla_nav.files import file_digest

DATA = "data/chunk-000/file-000.parquet"
EPISODES = "meta/episodes/chunk-000/file-000.parquet"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("whole")
    record(root, range(6), body())
    writer(root, body()).finalise()
    return root


def read_everything(root: Path) -> None:
    data = LeRobotDataset(root)
    for episode in data:
        for step in episode.steps:
            data.frames.read(step.frames["front"])


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 16
    path.write_bytes(bytes(content))


def info(**changes: object) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        content = json.loads(path.read_text())
        for key, value in changes.items():
            target = content
            *outer, last = key.split("__")
            for name in outer:
                target = target[name]
            target[last] = value
        path.write_text(json.dumps(content))

    return change


FAULTS = [
    (DATA, cut, r"file-000.parquet: has \d+ bytes, \d+ were written"),
    (DATA, flip, r"file-000.parquet: damaged, its checksum"),
    (DATA, Path.unlink, r"file-000.parquet: missing"),
    (EPISODES, cut, r"file-000.parquet: has \d+ bytes"),
    (EPISODES, flip, r"file-000.parquet: damaged, its checksum"),
    ("meta/checksums.json", Path.unlink, r"checksums.json: no such file"),
    ("meta/checksums.json", cut, r"checksums.json: not valid JSON"),
    ("meta/checksums.json", info(more={}), r"checksums.json: does not belong"),
    ("meta/info.json", Path.unlink, r"no recorded data set \(no meta/info.json\); record"),
    ("meta/info.json", cut, r"info.json: not valid JSON"),
    ("meta/info.json", info(codebase_version="v2.1"), r"codebase_version is v2.1; .* v3.0"),
    ("meta/info.json", info(vla_nav=None), r"key vla_nav is missing"),
    ("meta/info.json", info(vla_nav__version=9), r"vla_nav.version is 9; this program reads 1"),
    ("meta/info.json", info(vla_nav__embodiment={}), r"key vla_nav is incomplete"),
    ("meta/info.json", info(total_episodes=7), r"total_episodes is 7, meta/episodes has 6"),
]


@pytest.mark.parametrize(("path", "damage", "message"), FAULTS)
def test_damage_is_named_and_nothing_is_changed(
    whole: Path, tmp_path: Path, path: str, damage: Callable[[Path], None], message: str
) -> None:
    root = tmp_path / "copy"
    shutil.copytree(whole, root)
    damage(root / path)
    before = {file: file_digest(file) for file in root.rglob("*") if file.is_file()}
    with pytest.raises(UserError, match=message) as caught:
        read_everything(root)
    assert "\n" not in str(caught.value)
    assert str(root) in str(caught.value)
    assert {file: file_digest(file) for file in root.rglob("*") if file.is_file()} == before


def test_unknown_frames_and_folders_are_named(whole: Path, tmp_path: Path) -> None:
    frames = LeRobotDataset(whole).frames
    for key in ("00" * 16, "ff" * 16, "front", ""):
        with pytest.raises(UserError, match=f"holds no frame {key}"):
            frames.read(key)
    with pytest.raises(UserError, match="vla-nav record"):
        LeRobotDataset(tmp_path / "nowhere")


def test_the_undamaged_set_is_read(whole: Path) -> None:
    read_everything(whole)
