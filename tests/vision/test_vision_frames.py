"""Frames reach an encoder as the same bytes whichever way they come."""

import numpy as np
import pytest
import torch

from vla_nav.episodes.frames import stored_frame
from vla_nav.vision.frames import as_rgb, resize_frames


def test_rgb_passes_unchanged():
    frame = np.random.default_rng(0).integers(0, 256, (7, 5, 3), dtype=np.uint8)
    assert as_rgb(frame) is frame


def test_depth_becomes_grey_that_grows_to_ten_metres():
    depth = np.array([[0.5, 2.0, 5.0, 9.99, 10.0, 60.0]], dtype=np.float32)
    grey = as_rgb(depth)
    assert grey.shape == (1, 6, 3)
    assert grey[0, :, 0].tolist() == [13, 51, 128, 255, 255, 255]
    assert (grey == grey[:, :, :1]).all()


def test_no_return_is_as_far_as_depth_goes():
    depth = np.array([[0.0, np.inf, np.nan, 0.0004]], dtype=np.float32)
    assert as_rgb(depth)[0, :, 0].tolist() == [255, 255, 255, 255]


def test_depth_from_the_camera_and_read_back_become_the_same_bytes():
    rng = np.random.default_rng(1)
    depth = rng.uniform(0, 12, (97, 130)).astype(np.float32)
    depth[rng.random(depth.shape) < 0.1] = 0.0
    assert (as_rgb(depth) == as_rgb(stored_frame(depth))).all()


@pytest.mark.parametrize(
    "frame", [np.zeros((4, 4, 4), np.uint8), np.zeros((4, 4, 3), np.float32), np.zeros((4, 4), int)]
)
def test_other_arrays_are_refused(frame):
    with pytest.raises(ValueError, match="allowed: RGB"):
        as_rgb(frame)


def test_frames_of_the_right_size_are_not_touched():
    pixels = torch.randint(0, 256, (3, 9, 11, 3), dtype=torch.uint8)
    assert resize_frames(pixels, (9, 11)) is pixels


def triangle_weights(size: int, target: int) -> np.ndarray:
    """(target, size) float64: the antialiased bilinear filter, from its definition."""
    scale = max(size / target, 1.0)
    centres = (np.arange(target)[:, None] + 0.5) * size / target
    weights = np.maximum(0, 1 - np.abs(np.arange(size) + 0.5 - centres) / scale)
    return weights / weights.sum(1, keepdims=True)


@pytest.mark.parametrize("size", [(1, 1), (16, 12), (33, 7), (64, 97), (40, 60)])
def test_resizing_is_the_antialiased_bilinear_filter(size):
    pixels = torch.from_numpy(
        np.random.default_rng(0).integers(0, 256, (2, 40, 60, 3), dtype=np.uint8)
    )
    rows, columns = triangle_weights(40, size[0]), triangle_weights(60, size[1])
    expected = np.einsum("ah,bw,fhwc->fabc", rows, columns, pixels.numpy().astype(float))
    resized = resize_frames(pixels, size).numpy()
    # rounded to uint8 from float32 sums: half a level, and a tie may fall either way
    assert np.abs(resized - expected).max() < 0.501


def test_resizing_does_not_depend_on_the_other_frames():
    pixels = torch.randint(0, 256, (5, 30, 41, 3), dtype=torch.uint8)
    together = resize_frames(pixels, (17, 9))
    assert together.dtype == torch.uint8
    assert together.is_contiguous()
    for row, frame in zip(together, pixels, strict=True):
        assert torch.equal(row, resize_frames(frame[None], (17, 9))[0])


def test_no_frames_give_no_frames():
    assert resize_frames(torch.empty(0, 5, 6, 3, dtype=torch.uint8), (8, 9)).shape == (0, 8, 9, 3)
