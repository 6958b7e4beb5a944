"""Frames of foreign videos by number: frames out of order, late starts, long gaps, damage."""

from __future__ import annotations

import io
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from tests.episodes.fixtures.marks import marked, read_mark
from vla_nav.episodes import video_index
from vla_nav.episodes.video_index import VideoByNumber, VideoCache, stated_frames
from vla_nav.errors import UserError

COUNT = 67


def write(
    path: Path, *, codec: str = "libx264", first: int = 0, gaps: bool = False, **options: str
) -> None:
    """`COUNT` marked frames. first: time stamp of the first. gaps: a variable frame rate."""
    with av.open(str(path), "w", format="mp4") as container:
        stream = container.add_stream(codec, rate=10, options={"crf": "18", **options})
        stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"
        for number in range(COUNT):
            frame = av.VideoFrame.from_ndarray(marked(100 + number), format="rgb24")
            frame.pts = first + number + (number // 5 if gaps else 0)
            frame.time_base = Fraction(1, 10)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


KINDS = {
    "frames out of order": {"bf": "3", "g": "12"},
    "one key frame": {"g": "999", "sc_threshold": "0", "bf": "2"},
    "only key frames": {"g": "1"},
    "open groups": {"bf": "3", "g": "8", "x264-params": "open-gop=1"},
    "late start": {"first": 37},
    "variable rate": {"gaps": True},
    "av1, as lerobot writes": {"codec": "libsvtav1", "g": "2"},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["forwards", "backwards", "shuffled"])
def test_the_frame_of_a_number_is_that_one(tmp_path: Path, kind: str, way: str) -> None:
    path = tmp_path / "a.mp4"
    write(path, **KINDS[kind])
    video = VideoByNumber(path)
    assert len(video) == COUNT == stated_frames(path)
    order = list(range(COUNT))
    if way == "backwards":
        order = order[::-3]
    if way == "shuffled":
        order = np.random.default_rng(3).permutation(COUNT).tolist()[:30]
    assert [read_mark(video.read(n)) - 100 for n in order] == order
    video.close()


def test_reading_forwards_decodes_each_frame_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.mp4"
    write(path, g="999", sc_threshold="0", bf="0")
    video = VideoByNumber(path)
    video.read(0)
    frames = video._frames
    for number in range(1, COUNT):
        video.read(number)
    assert video._frames is frames  # one decoder all along, never a seek
    video.read(3)
    assert video._frames is not frames


def test_asking_beyond_the_end_names_both_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    write(path)
    video = VideoByNumber(path)
    for number in (-1, COUNT, 10**9):
        with pytest.raises(UserError, match=rf"a\.mp4: has {COUNT} frames, asked .* {number}"):
            video.read(number)


def test_a_file_that_is_no_mp4_is_not_followed(tmp_path: Path) -> None:
    """ffmpeg would open what a playlist or a script of it names."""
    other = tmp_path / "other.mp4"
    write(other)
    path = tmp_path / "a.mp4"
    for text in (
        f"#EXTM3U\n#EXTINF:10,\n{other}\n",
        f"ffconcat version 1.0\nfile {other}\n",
        f"<MPD><BaseURL>{other}</BaseURL></MPD>",
        "",
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=r"a\.mp4: (not a readable video|holds no video)"):
            VideoByNumber(path)


def test_sound_alone_is_no_video(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    with av.open(str(path), "w", format="mp4") as container:
        stream = container.add_stream("aac", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    with pytest.raises(UserError, match="holds no video"):
        VideoByNumber(path)


def test_frames_larger_than_the_limit_are_not_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.mp4"
    write(path)
    monkeypatch.setattr(video_index, "MAX_PIXELS", 48 * 64 - 1)
    with pytest.raises(UserError, match="64x48"):
        VideoByNumber(path)


def test_every_cut_gives_right_frames_or_an_error(tmp_path: Path) -> None:
    whole = tmp_path / "whole.mp4"
    write(whole, movflags="faststart")
    data = whole.read_bytes()
    path = tmp_path / "a.mp4"
    num_errors = 0
    for size in range(0, len(data), len(data) // 41):
        path.write_bytes(data[:size])
        try:
            video = VideoByNumber(path)
        except UserError:
            num_errors += 1
            continue
        for number in range(0, COUNT, 6):
            try:
                mark = read_mark(video.read(number))
            except UserError:
                num_errors += 1
            else:
                assert mark == 100 + number
        video.close()
    assert num_errors > 40


def test_the_cache_closes_files_and_keeps_indices(tmp_path: Path) -> None:
    names = [f"{n}.mp4" for n in range(4)]
    for name in names:
        write(tmp_path / name)
    cache = VideoCache(tmp_path, files=2, indices=3)
    first = cache.open("0.mp4")
    for name in names[1:3]:
        cache.open(name)
    again = cache.open("0.mp4")
    assert again is not first
    assert again.index is first.index
    cache.open("3.mp4")
    assert len(cache._open) == 2
    assert len(cache._indices) == 3
    assert read_mark(cache.open("0.mp4").read(5)) == 105


def test_missing_av_is_said_only_where_there_are_videos(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.mp4"
    path.write_bytes(io.BytesIO(b"x").getvalue())
    monkeypatch.setitem(__import__("sys").modules, "av", None)
    with pytest.raises(UserError, match="videos need the package av"):
        VideoByNumber(path)
