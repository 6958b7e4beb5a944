"""Frames come back exactly, their keys name content, and damage is never decoded into pixels."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from vla_nav.episodes.frames import (
    MAX_DEPTH_M,
    decode_png,
    encode_png,
    frame_key,
    millimetres_to_depth,
    stored_frame,
)
from vla_nav.errors import UserError

SIZES = [(1, 1), (1, 63), (63, 1), (97, 130), (48, 48)]


def rgb(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(height).integers(0, 256, (height, width, 3), np.uint8)


@pytest.mark.parametrize(("height", "width"), SIZES)
def test_rgb_comes_back_exactly_here_and_in_pillow(height: int, width: int) -> None:
    frame = rgb(height, width)
    data = encode_png(frame)
    assert np.array_equal(decode_png(data), frame)
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(data))), frame)


@pytest.mark.parametrize(("height", "width"), SIZES)
def test_pngs_of_other_writers_are_read(height: int, width: int) -> None:
    frame = rgb(height, width)
    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, "PNG")
    assert np.array_equal(decode_png(buffer.getvalue()), frame)


def test_every_millimetre_comes_back_exactly() -> None:
    depth = millimetres_to_depth(np.arange(2**16, dtype=np.uint16).reshape(256, 256))
    read = decode_png(encode_png(depth))
    assert read.dtype == np.float32
    assert np.array_equal(read, depth)
    by_pillow = np.asarray(Image.open(io.BytesIO(encode_png(depth))))
    assert np.array_equal(by_pillow.astype(np.int64).ravel(), np.arange(2**16))


def test_depth_is_rounded_to_the_nearest_millimetre_and_clipped() -> None:
    depth = np.array([[0.0, 0.0004, 0.0006, 1.23456, 80.0]], np.float32)
    expected = np.array([[0.0, 0.0, 0.001, 1.235, MAX_DEPTH_M]], np.float32)
    assert np.array_equal(decode_png(encode_png(depth)), expected)
    assert np.array_equal(stored_frame(depth), expected)


def test_a_rendered_and_a_stored_depth_frame_have_one_key() -> None:
    depth = np.random.default_rng(0).random((33, 17), np.float32) * 20
    assert frame_key(depth) == frame_key(decode_png(encode_png(depth)))


def test_keys_differ_with_pixels_shape_and_kind_and_with_nothing_else() -> None:
    frame = rgb(12, 8)
    changed = frame.copy()
    changed[3, 4, 1] ^= 1
    black = np.zeros((4, 6, 3), np.uint8)
    frames = [frame, changed, frame.reshape(8, 12, 3), black, np.zeros((4, 6), np.float32)]
    assert len({frame_key(one) for one in frames}) == len(frames)
    strided = np.repeat(frame, 2, axis=1)[:, ::2]
    assert not strided.flags.c_contiguous
    assert frame_key(strided) == frame_key(frame)
    assert np.array_equal(decode_png(encode_png(strided)), frame)


@pytest.mark.parametrize("value", [np.nan, np.inf, -0.1])
def test_impossible_depth_is_refused(value: float) -> None:
    with pytest.raises(UserError, match="negative or non-finite"):
        encode_png(np.full((2, 2), value, np.float32))


@pytest.mark.parametrize("shape", [(4, 4), (4, 4, 4), (4,)])
def test_other_arrays_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match="allowed: RGB"):
        encode_png(np.zeros(shape, np.uint8))


@pytest.mark.parametrize("is_depth", [False, True])
def test_no_cut_and_no_flipped_bit_gives_pixels_silently(is_depth: bool) -> None:
    frame = np.float32(rgb(9, 7)[:, :, 0]) / 10 if is_depth else rgb(9, 7)
    data = encode_png(frame)
    damaged = [data[:size] for size in range(len(data))]
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 4
        damaged.append(bytes(flipped))
    num_refused = 0
    for one in damaged:
        try:
            read = decode_png(one)
        except UserError:
            num_refused += 1
            continue
        assert np.array_equal(read, frame)  # only what follows the pixels was hit
    assert num_refused > 0.9 * len(damaged)
