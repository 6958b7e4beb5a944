"""Frames in folders: the right pixels, or one line that names the file."""

from __future__ import annotations

import io
import pickle
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.episodes.fixtures.marks import marked, read_mark
from tests.episodes.fixtures.videos import write_mp4, write_picture
from vla_nav.episodes import frame_folders
from vla_nav.episodes.frame_folders import FolderFrames, numbered_pictures, picture_size
from vla_nav.errors import UserError


def png_that_states(width: int, height: int) -> bytes:
    """A PNG whose header states a size that its few bytes do not have."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(bytes(1000))
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")
    )


def test_pictures_and_video_frames_come_by_their_key(tmp_path: Path) -> None:
    write_picture(tmp_path / "a" / "001.jpg", 7)
    write_picture(tmp_path / "a" / "step_0001_STOP.png", 8)
    write_mp4(tmp_path / "videos" / "1.mp4", [20, 21, 22, 23, 24], fps=30)
    frames = pickle.loads(pickle.dumps(FolderFrames(tmp_path)))
    for _ in range(2):
        assert read_mark(frames.read("a/001.jpg")) == 7
        assert read_mark(frames.read("a/step_0001_STOP.png")) == 8
        for number in (3, 0, 4, 1, 2):
            assert read_mark(frames.read(f"videos/1.mp4#{number}")) == 20 + number
        frames = pickle.loads(pickle.dumps(frames))  # with a video open


def test_sixteen_bit_pictures_are_depth_in_metres(tmp_path: Path) -> None:
    millimetres = np.array([[0, 1250], [65535, 1]], np.uint16)
    Image.fromarray(millimetres).save(tmp_path / "1.png")
    depth = FolderFrames(tmp_path).read("1.png")
    assert depth.dtype == np.float32
    np.testing.assert_allclose(depth, millimetres / 1000, rtol=1e-6)


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK"])
def test_every_colour_mode_comes_as_rgb(mode: str, tmp_path: Path) -> None:
    suffix = "jpg" if mode == "CMYK" else "png"
    Image.fromarray(marked(5)).convert(mode).save(tmp_path / f"1.{suffix}")
    pixels = FolderFrames(tmp_path).read(f"1.{suffix}")
    assert pixels.shape == (48, 64, 3)
    assert pixels.dtype == np.uint8


KEYS_OF_NO_FRAME = (
    *("/etc/hostname", "../secret.png", "a/../../secret.png", "../1.mp4#0", "", "."),
    *("a\0.png", "a/none.png", "videos/1.mp4#-1", "videos/1.mp4#", "videos/1.mp4#1e3"),
    *("videos/1.mp4#99", "videos/2.mp4#0", "a/1.png#0"),
)


@pytest.mark.parametrize("key", KEYS_OF_NO_FRAME)
def test_a_key_that_is_no_frame_of_the_root_is_refused(key: str, tmp_path: Path) -> None:
    root = tmp_path / "data"
    write_picture(tmp_path / "secret.png", 1)
    write_mp4(tmp_path / "1.mp4", [1], fps=30)
    write_picture(root / "a" / "1.png", 1)
    write_mp4(root / "videos" / "1.mp4", [1, 2], fps=30)
    with pytest.raises(UserError) as error:
        FolderFrames(root).read(key)
    assert str(root) in str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_no_jpeg_or_png_is_refused_whatever_its_name(tmp_path: Path) -> None:
    data = io.BytesIO()
    Image.fromarray(marked(1)).save(data, "GIF")
    for content in (data.getvalue(), b"", b"\x80\x04K\x01.", b"%!PS-Adobe-3.0 EPSF-3.0\n"):
        (tmp_path / "1.jpg").write_bytes(content)
        with pytest.raises(UserError, match=r"1\.jpg: not a JPEG or PNG picture"):
            FolderFrames(tmp_path).read("1.jpg")


def test_sizes_are_checked_before_anything_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "1.png").write_bytes(png_that_states(2**16, 2**15))
    with pytest.raises(UserError, match="a picture has at most 32000000 pixels"):
        FolderFrames(tmp_path).read("1.png")
    (tmp_path / "1.png").write_bytes(png_that_states(10_000, 4_000))
    with pytest.raises(UserError, match="10000x4000; a picture has at most 32000000 pixels"):
        FolderFrames(tmp_path).read("1.png")
    write_picture(tmp_path / "2.png", 1)
    monkeypatch.setattr(frame_folders, "MAX_FILE_BYTES", 10)
    with pytest.raises(UserError, match="bytes; a picture has at most 10"):
        FolderFrames(tmp_path).read("2.png")


@pytest.mark.parametrize("suffix", ["jpg", "png"])
def test_a_file_cut_anywhere_is_an_error_or_a_picture_of_the_same_size(
    suffix: str, tmp_path: Path
) -> None:
    write_picture(tmp_path / f"1.{suffix}", 3)
    whole = (tmp_path / f"1.{suffix}").read_bytes()
    frames = FolderFrames(tmp_path)
    errors = []
    for length in range(0, len(whole), max(1, len(whole) // 60)):
        (tmp_path / f"1.{suffix}").write_bytes(whole[:length])
        try:
            assert frames.read(f"1.{suffix}").shape == (48, 64, 3)
        except UserError as error:
            errors.append(str(error))
    assert len(errors) > 50  # a cut picture is noticed, but for the last bytes after its pixels
    assert all(f"1.{suffix}" in error and "\n" not in error for error in errors)


@pytest.mark.parametrize("suffix", ["jpg", "png"])
def test_a_flipped_bit_is_an_error_or_a_picture(suffix: str, tmp_path: Path) -> None:
    write_picture(tmp_path / f"1.{suffix}", 3)
    whole = (tmp_path / f"1.{suffix}").read_bytes()
    random = np.random.default_rng(5)
    for _ in range(200):
        damaged = bytearray(whole)
        damaged[random.integers(len(whole))] ^= 1 << int(random.integers(8))
        (tmp_path / f"1.{suffix}").write_bytes(damaged)
        try:
            pixels = FolderFrames(tmp_path).read(f"1.{suffix}")
        except UserError:
            continue
        assert pixels.size <= 3 * frame_folders.MAX_PIXELS


def test_pictures_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for name in ("frame_10.jpg", "frame_9.jpg", "frame_0.jpg", "frame_100.JPG"):
        (tmp_path / name).touch()
    for name in ("thumbs.jpg", "frame_3.txt", "12.json"):
        (tmp_path / name).touch()
    assert list(numbered_pictures(tmp_path).items()) == [
        (0, "frame_0.jpg"), (9, "frame_9.jpg"), (10, "frame_10.jpg"), (100, "frame_100.JPG"),
    ]  # fmt: skip
    assert numbered_pictures(tmp_path / "none") == {}


def test_two_pictures_of_one_number_and_endless_folders_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("1.jpg", "2.jpg", "3.jpg"):
        (tmp_path / name).touch()
    monkeypatch.setattr(frame_folders, "MAX_FRAMES", 2)
    with pytest.raises(UserError, match="more than 2 pictures"):
        numbered_pictures(tmp_path)
    (tmp_path / "3.jpg").rename(tmp_path / "001.png")
    with pytest.raises(UserError, match="are both frame 1"):
        numbered_pictures(tmp_path)


def test_the_size_is_read_from_the_header(tmp_path: Path) -> None:
    write_picture(tmp_path / "1.jpg", 3)
    assert picture_size(tmp_path / "1.jpg") == (64, 48)
