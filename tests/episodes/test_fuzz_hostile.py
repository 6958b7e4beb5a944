"""Data made to harm: refused in bounded time and memory, and nothing of it is executed."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.episodes.fixtures import hostile
from tests.episodes.fixtures.every_format import PLAIN
from tests.episodes.fixtures.interndata_n1 import CAMERAS
from tests.episodes.fixtures.limited import Limited, Outcome

# the file in which a format's episodes are
INDEX = {
    "r2r_ce": "val_unseen/val_unseen.json.gz",
    "rxr_ce": "val_unseen/val_unseen_guide.json.gz",
    "pointnav": "val/content/sceneA.json.gz",
    "objectnav": "val/content/sceneA.json.gz",
    "streamvln": "annotations.json",
    "navila": "annotations.json",
    "janusvln": "datasets/r2r/train/train.json.gz",
    "interndata_n1": "sceneA/meta/episodes.jsonl",
    "lerobot_v2": "meta/episodes.jsonl",
    "lerobot_v3": "meta/info.json",
}
PACKED = [name for name, path in INDEX.items() if path.endswith(".gz")]
PICTURES = {
    "streamvln": "images/scanA_r2r_000007/rgb/001.jpg",
    "navila": "train/1/frame_0.jpg",
    "janusvln": "trajectory_data/R2R/train/7/step_0000_TURN_RIGHT.png",
    "interndata_n1": f"sceneA/videos/chunk-000/{CAMERAS[0]}/episode_000000_0.jpg",
}
FRONT = "observation.images.front"
VIDEOS = {
    "lerobot_v2": f"videos/chunk-000/{FRONT}/episode_000000.mp4",
    "lerobot_v3": f"videos/{FRONT}/chunk-000/file-000.mp4",
}
TABLES = {
    "lerobot_v2": ("data/chunk-000/episode_000000.parquet", 5),
    "lerobot_v3": ("data/chunk-000/file-000.parquet", 23),
    "interndata_n1": ("sceneA/data/chunk-000/episode_000000.parquet", 5),
}
INFO = {name: f"{'sceneA/' * (name == 'interndata_n1')}meta/info.json" for name in TABLES}


@pytest.fixture(scope="module")
def limited() -> Iterator[Limited]:
    with Limited() as child:
        yield child


def spoilt(limited: Limited, root: Path, name: str, file: str, data: bytes | None) -> Outcome:
    """The outcome of reading a fixture of which one file has other bytes (None: left as it is)."""
    expected = PLAIN[name](root)
    if data is not None:
        (root / file).write_bytes(data)
    return again(limited, name, expected.root, expected.split, expected.episodes[0].role)


def again(limited: Limited, name: str, root: Path, split: str, role: str = "") -> Outcome:
    return limited.read(root, split=split, format=name, role=role)


def is_refused(outcome: Outcome, root: Path) -> bool:
    """Refused in words that name a file of the data."""
    assert outcome.kind == "refused", outcome
    assert str(root) in outcome.text, outcome
    return True


@pytest.mark.parametrize("name", INDEX)
def test_nested_json_is_refused(limited: Limited, tmp_path: Path, name: str) -> None:
    for data in (hostile.nested_lists(), hostile.nested_objects()):
        packed = gzip.compress(data) if name in PACKED else data
        assert is_refused(spoilt(limited, tmp_path, name, INDEX[name], packed), tmp_path)


@pytest.mark.parametrize("name", PACKED)
def test_nesting_within_an_episode_is_refused(limited: Limited, tmp_path: Path, name: str) -> None:
    data = b'{"episodes": [{"episode_id": "1", "info": ' + hostile.nested_lists() + b"}]}"
    file = INDEX[name]
    assert is_refused(spoilt(limited, tmp_path, name, file, gzip.compress(data)), tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("unit", [b" ", b"[0, 0], ", b"A"], ids=["spaces", "numbers", "text"])
@pytest.mark.parametrize("name", PACKED)
def test_gzip_bomb_is_refused(limited: Limited, tmp_path: Path, name: str, unit: bytes) -> None:
    before = {b" ": b'{"episodes": [', b"A": b'{"episodes": [{"episode_id": "'}
    data = hostile.gzip_bomb(before.get(unit, b'{"episodes": [{"reference_path": ['), unit)
    assert is_refused(spoilt(limited, tmp_path, name, INDEX[name], data), tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", INDEX)
def test_file_of_eight_gigabytes_is_refused(limited: Limited, tmp_path: Path, name: str) -> None:
    expected = PLAIN[name](tmp_path)
    hostile.write_sparse(tmp_path / INDEX[name])
    role = expected.episodes[0].role
    assert is_refused(again(limited, name, expected.root, expected.split, role), tmp_path)


@pytest.mark.parametrize("name", [*PICTURES, *VIDEOS])
def test_frame_of_eight_gigabytes_is_refused(limited: Limited, tmp_path: Path, name: str) -> None:
    expected = PLAIN[name](tmp_path)
    hostile.write_sparse(tmp_path / {**PICTURES, **VIDEOS}[name])
    assert is_refused(again(limited, name, expected.root, expected.split), tmp_path)


@pytest.mark.parametrize("name", INDEX)
def test_pickle_by_another_name_is_not_loaded(limited: Limited, tmp_path: Path, name: str) -> None:
    data = hostile.pickled(tmp_path / "executed")
    packed = gzip.compress(data) if name in PACKED else data
    assert is_refused(spoilt(limited, tmp_path, name, INDEX[name], packed), tmp_path)
    if name in PICTURES | VIDEOS:
        file = {**PICTURES, **VIDEOS}[name]
        assert is_refused(spoilt(limited, tmp_path, name, file, data), tmp_path)
    if name in TABLES:
        assert is_refused(spoilt(limited, tmp_path, name, TABLES[name][0], data), tmp_path)
    assert not (tmp_path / "executed").exists()


@pytest.mark.long
@pytest.mark.parametrize("name", PICTURES)
def test_picture_of_absurd_size_is_refused(limited: Limited, tmp_path: Path, name: str) -> None:
    file = PICTURES[name]
    for data in (
        hostile.png_of(13000, 13000),  # 500 MB of RGB from 30 kB; pillow alone only warns
        hostile.png_of(60000, 60000),
        hostile.png_of(0x7FFFFFFF, 1),
        hostile.jpeg_of(65500, 65500),
    ):
        assert is_refused(spoilt(limited, tmp_path, name, file, data), tmp_path)


@pytest.mark.parametrize("name", VIDEOS)
def test_video_of_absurd_size_is_no_harm(limited: Limited, tmp_path: Path, name: str) -> None:
    PLAIN[name](tmp_path)
    data = hostile.wide_mp4((tmp_path / VIDEOS[name]).read_bytes())
    outcome = spoilt(limited, tmp_path, name, VIDEOS[name], data)
    assert outcome.kind in ("valid", "refused"), outcome  # the stream itself has the true size


@pytest.mark.parametrize("name", TABLES)
def test_row_counts_of_a_forged_footer_are_refused(
    limited: Limited, tmp_path: Path, name: str
) -> None:
    file, num_rows = TABLES[name]
    PLAIN[name](tmp_path)
    data = hostile.more_rows((tmp_path / file).read_bytes(), num_rows)
    assert pq.ParquetFile(pa.BufferReader(data)).metadata.num_rows == 1 << 40
    assert is_refused(spoilt(limited, tmp_path, name, file, data), tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", VIDEOS)
def test_two_hundred_million_rows_do_no_harm(limited: Limited, tmp_path: Path, name: str) -> None:
    expected = PLAIN[name](tmp_path)
    file = tmp_path / TABLES[name][0]
    row = pq.read_table(file).slice(0, 1)
    hostile.parquet_bomb(file, row.schema, row.to_pylist()[0], 200_000_000)
    outcome = again(limited, name, expected.root, expected.split)
    assert outcome.kind in ("valid", "refused"), outcome


@pytest.mark.long
@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("data_path", "/etc/passwd"),
        ("data_path", "../outside/{episode_index}.parquet"),
        ("data_path", "{episode_index.__class__.__mro__}"),
        ("data_path", "{0}"),
        ("data_path", "{episode_index"),
        ("data_path", "{episode_index:0999999999d}{file_index:0999999999d}"),
        ("data_path", "{nothing}"),
        ("data_path", 7),
        ("data_path", "a\0b"),
        ("data_path", "a" * 100_000),
        ("chunks_size", 0),
        ("chunks_size", -1),
        ("chunks_size", "many"),
        ("features", {}),
        ("features", []),
        ("features", {FRONT: None}),
        ("codebase_version", None),
        ("codebase_version", "v99"),
    ],
)
def test_info_that_lies_is_refused(
    limited: Limited, tmp_path: Path, name: str, key: str, value: object
) -> None:
    expected = PLAIN[name](tmp_path)
    hostile.edit_json(tmp_path / INFO[name], **{key: value})
    outcome = again(limited, name, expected.root, expected.split)
    assert outcome.kind in ("valid", "refused"), outcome
    if key in ("data_path", "codebase_version") and name != "interndata_n1":
        assert is_refused(outcome, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", ["streamvln", "navila"])
@pytest.mark.parametrize(
    "path",
    ["../secret", "/etc", "images/../../secret", "a\0b", "", "x" * 5000, "x/" * 2500, "\ud800"],
    ids=["up", "absolute", "down and up", "nul", "none", "long name", "long path", "surrogate"],
)
def test_frames_outside_the_data_are_refused(
    limited: Limited, tmp_path: Path, name: str, path: str
) -> None:
    expected = PLAIN[name](tmp_path / "data")
    secret = tmp_path / "secret" / "rgb"
    secret.mkdir(parents=True)
    picture = (tmp_path / "data" / PICTURES[name]).read_bytes()
    for at in range(1, 8):
        (secret / f"{at:03d}.jpg").write_bytes(picture)
    file = tmp_path / "data" / "annotations.json"
    records = json.loads(file.read_text())
    for record in records:
        if name == "streamvln":
            record["video"] = path
        else:
            record["frames"] = [f"{path}/rgb/00{at + 1}.jpg" for at in range(len(record["frames"]))]
    file.write_text(json.dumps(records))
    assert is_refused(again(limited, name, expected.root, expected.split), tmp_path)


@pytest.mark.parametrize("name", INDEX)
def test_pipe_in_place_of_a_file_does_not_hang(limited: Limited, tmp_path: Path, name: str) -> None:
    expected = PLAIN[name](tmp_path)
    role = expected.episodes[0].role
    for file in (INDEX[name], PICTURES.get(name), VIDEOS.get(name)):
        if file is not None:
            data = (tmp_path / file).read_bytes()
            (tmp_path / file).unlink()
            os.mkfifo(tmp_path / file)
            assert is_refused(again(limited, name, expected.root, expected.split, role), tmp_path)
            (tmp_path / file).unlink()
            (tmp_path / file).write_bytes(data)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("r2r_ce", "val_unseen/val_unseen_gt.json.gz"),
        ("rxr_ce", "val_unseen/val_unseen_guide_gt.json.gz"),
        ("pointnav", "val/val.json.gz"),
        ("pointnav", "val/content"),
        ("objectnav", "val/content"),
        ("navila", "videos/7.mp4"),
    ],
)
def test_pipe_in_place_of_another_file_is_refused(
    limited: Limited, tmp_path: Path, name: str, file: str
) -> None:
    expected = PLAIN[name](tmp_path)
    path = tmp_path / file
    if name == "navila":
        record = {"video_id": "7", "instruction": "Go."}
        (tmp_path / "annotations.json").write_text(json.dumps([record]))
        path.parent.mkdir(exist_ok=True)
    if path.exists():
        path.rename(tmp_path / "away")
    os.mkfifo(path)
    role = expected.episodes[0].role
    assert is_refused(again(limited, name, expected.root, expected.split, role), tmp_path)


@pytest.mark.parametrize("name", ["streamvln", "navila"])
def test_a_first_record_without_end_is_not_read_to_tell_the_format(
    limited: Limited, tmp_path: Path, name: str
) -> None:
    expected = PLAIN[name](tmp_path)
    data = b'[{"video_id": [' + b"[0], " * 3_000_000 + b"0]}]"  # within what one value may have
    (tmp_path / "annotations.json").write_bytes(gzip.compress(data, 1))
    outcome = limited.read(expected.root, split=expected.split, format=None)
    assert is_refused(outcome, tmp_path)
    assert outcome.peak_bytes < 400 << 20, outcome  # 760 MB and 12 s if the record is decoded


@pytest.mark.parametrize("name", INDEX)
def test_folder_in_place_of_a_file_is_refused(limited: Limited, tmp_path: Path, name: str) -> None:
    expected = PLAIN[name](tmp_path)
    (tmp_path / INDEX[name]).unlink()
    (tmp_path / INDEX[name]).mkdir()
    role = expected.episodes[0].role
    assert is_refused(again(limited, name, expected.root, expected.split, role), tmp_path)
