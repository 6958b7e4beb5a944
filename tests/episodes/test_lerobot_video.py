"""Video storage: the frame asked for is the frame shown, across files, episodes and cameras.

The frames carry their number as brightness, so the test sees which frame it was given, whatever the
codec does to the pixels.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from made_episodes import Frames, body, keep, made, writer

from vla_nav.episodes.frames import stored_frame
from vla_nav.episodes.lerobot_finalise import finalise
from vla_nav.episodes.lerobot_reader import LeRobotDataset
from vla_nav.episodes.types import Embodiment, Episode
from vla_nav.errors import UserError
from vla_nav.files import file_digest

EMBODIMENT = body(size=(32, 16), num_cameras=2, depth=True)
LENGTHS = [1, 7, 0, 8, 9, 16, 17, 3, 2, 11]  # around the distance of key frames


def numbered(number: int, embodiment: Embodiment = EMBODIMENT) -> tuple[Episode, Frames]:
    """Episode `number`; step s of the data set has brightness 3 * s (front) and 255 - 3 * s."""
    episode, _ = made(number, embodiment, num_steps=LENGTHS[number])
    first = sum(LENGTHS[:number])
    frames: Frames = {}
    steps = []
    for at, step in enumerate(episode.steps):
        names = {}
        for camera in embodiment.cameras:
            level = level_of(first + at, camera.name)
            grey = np.full((camera.height_px, camera.width_px, 3), level, np.uint8)
            grey[0, 0] = number, at, 0  # equal brightness must not mean an equal key
            names[camera.name] = keep(frames, grey)
            if camera.has_depth:
                depth = np.full(grey.shape[:2], (first + at) / 8, np.float32)
                names[f"{camera.name}.depth"] = keep(frames, depth)
        steps.append(replace(step, frames=names))
    return replace(episode, steps=tuple(steps)), frames


def level_of(step: int, camera: str) -> int:
    return 3 * step if camera == "front" else 255 - 3 * step


def record_numbered(root: Path, *, per_part: int, video_file_bytes: int) -> None:
    with writer(root, EMBODIMENT, storage="video", fps=5, episodes_per_part=per_part) as out:
        for number in range(len(LENGTHS)):
            out.add(*numbered(number))
    order = [numbered(number)[0].key for number in range(len(LENGTHS))]
    finalise(root, order, video_file_bytes=video_file_bytes)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("video")
    record_numbered(root, per_part=3, video_file_bytes=4000)
    return root


def shown(pixels: np.ndarray, camera: str) -> int:
    """The step whose brightness a frame has; levels are 3 apart, the codec errs by less than 1.5"""
    level = float(pixels[4:, 4:].mean())
    return round((level if camera == "front" else 255 - level) / 3)


@pytest.mark.parametrize("way", ["forwards", "backwards", "shuffled"])
def test_every_frame_read_is_the_one_asked_for(recorded: Path, way: str) -> None:
    data = LeRobotDataset(recorded)
    wanted = []
    for index, episode in enumerate(data):
        assert episode == replace(numbered(index)[0], reference_path=episode.reference_path)
        first = sum(LENGTHS[:index])
        for at, step in enumerate(episode.steps):
            wanted += [(first + at, camera, step.frames[camera]) for camera in ("front", "left")]
    assert len(wanted) == 2 * sum(LENGTHS)
    if way == "backwards":
        wanted.reverse()
    if way == "shuffled":
        np.random.default_rng(0).shuffle(wanted)  # type: ignore[arg-type]
    for step, camera, key in wanted:
        pixels = data.frames.read(str(key))
        assert pixels.shape == (16, 32, 3)
        assert shown(pixels, camera) == int(step)


def test_one_data_file_and_many_video_files(recorded: Path) -> None:
    """The layout in which indexing videos by the data's file number reads wrong frames."""
    assert len(list((recorded / "data").rglob("*.parquet"))) == 1
    fronts = list((recorded / "videos/observation.images.front").rglob("*.mp4"))
    assert len(fronts) >= 3
    table = pq.read_table(recorded / "meta/episodes/chunk-000/file-000.parquet")
    start = table["videos/observation.images.front/from_timestamp"].to_pylist()
    stop = table["videos/observation.images.front/to_timestamp"].to_pylist()
    assert [round((b - a) * 5) for a, b in zip(start, stop, strict=True)] == LENGTHS
    assert start.count(0.0) >= 3


def test_depth_stays_exact(recorded: Path) -> None:
    data = LeRobotDataset(recorded)
    for index in (1, 5, 9):
        episode, frames = numbered(index)
        for step in episode.steps:
            key = step.frames["left.depth"]
            assert np.array_equal(data.frames.read(key), stored_frame(frames[key]))


def test_how_parts_were_cut_leaves_no_trace(recorded: Path, tmp_path: Path) -> None:
    record_numbered(tmp_path, per_part=1, video_file_bytes=4000)
    for path in recorded.rglob("*.*"):
        if path.is_file():
            assert file_digest(path) == file_digest(tmp_path / path.relative_to(recorded)), path


def test_a_damaged_video_is_named(recorded: Path, tmp_path: Path) -> None:
    record_numbered(tmp_path, per_part=5, video_file_bytes=10**9)
    (path,) = (tmp_path / "videos/observation.images.left").rglob("*.mp4")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(bytes(content))
    data = LeRobotDataset(tmp_path)
    with pytest.raises(UserError, match=r"left/chunk-000/file-000.mp4: damaged"):
        data.frames.read(data[1].steps[0].frames["left"])


def test_odd_sizes_and_missing_frames_are_refused(tmp_path: Path) -> None:
    odd = body(size=(31, 16))
    with pytest.raises(UserError, match="both sides must be even"):
        writer(tmp_path / "odd", odd, storage="video").add(*numbered(1, odd))
    episode, frames = numbered(1)
    bare = replace(episode.steps[0], frames={})
    out = writer(tmp_path / "bare", EMBODIMENT, storage="video")
    with pytest.raises(UserError, match="step 0 has no frame 'front'"):
        out.add(replace(episode, steps=(bare,)), frames)
    with pytest.raises(UserError, match="unknown storage 'mp4'"):
        writer(tmp_path / "mp4", EMBODIMENT, storage="mp4")
