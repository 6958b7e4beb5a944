"""Pixels as an encoder: the identity on resized frames, for encoders that train inside the step.

A trainable encoder has no features to cache, but decoding and resizing a frame is still worth
doing once. `PixelResizer` has the interface of an encoder and returns uint8 pixels, so the same
cache holds them:

    vla-nav encode vision=pixels vision.image_size=48  ->  FeatureCache rows (48, 48, 3) uint8

Axes: F frames, H x W pixels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vla_nav.errors import UserError
from vla_nav.vision.frames import resize_frames


class PixelResizer:
    """Resizes frames to one size. image_size: pixels, one number or (height, width)."""

    parameter_dtype = torch.uint8

    def __init__(self, image_size: int | tuple[int, int]) -> None:
        height, width = (image_size, image_size) if isinstance(image_size, int) else image_size
        if height < 1 or width < 1:
            raise UserError(f"vision.image_size={image_size}: allowed: positive pixels")
        self.image_size = (int(height), int(width))

    @property
    def row_shape(self) -> tuple[int, int, int]:
        """The shape of one frame: (height, width, 3)."""
        return (*self.image_size, 3)

    def to(self, device: torch.device) -> PixelResizer:
        """Itself: it has no weights to move."""
        return self

    def encode(self, pixels: Tensor) -> Tensor:
        """Frames (F, H, W, 3) uint8 -> (F, *image_size, 3) uint8."""
        return resize_frames(pixels, self.image_size)

    def fingerprint(self) -> str:
        """`pixels-<height>x<width>`: the frames' own bytes are in their keys."""
        return "pixels-{}x{}".format(*self.image_size)

    def describe(self) -> dict[str, Any]:
        """What the rows are, as plain JSON values."""
        return {"encoder": "pixels", "image_size": list(self.image_size)}
