"""Frames as every encoder sees them: three uint8 channels at the encoder's size.

Training may read frames that were resized when the pixel cache was written; the policy gets them
from the camera. Both go through `resize_frames`, which rounds back to uint8, so that an encoder
is given the same bytes in both cases.

Axes: F frames, H x W pixels, channels last.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

MAX_DEPTH_M = 10.0


def as_rgb(frame: np.ndarray) -> np.ndarray:
    """A camera's frame as (H, W, 3) uint8: RGB as it is, depth as grey.

    frame: RGB (H, W, 3) uint8, or depth (H, W) float in metres. Depth d becomes
    round(255 * min(d, 10 m) / 10 m) in all three channels; where nothing was hit (0, infinite or
    NaN) it is 255. Depth is first rounded to millimetres, as recorded frames are, so that a frame
    from a camera and the same frame read back become the same bytes.
    """
    if frame.ndim == 3 and frame.shape[2] == 3 and frame.dtype == np.uint8:
        return frame
    if frame.ndim != 2 or frame.dtype.kind != "f":
        raise ValueError(
            f"a frame of shape {frame.shape} and type {frame.dtype}; allowed: RGB (H, W, 3) uint8, "
            "depth (H, W) float metres"
        )
    is_hit = np.isfinite(frame) & (frame > 0)
    depth_m = np.where(is_hit, np.minimum(frame, MAX_DEPTH_M), MAX_DEPTH_M).astype(np.float32)
    millimetres = np.rint(depth_m * 1000.0)
    millimetres[millimetres == 0] = 1000.0 * MAX_DEPTH_M  # below half a millimetre: stored as 0
    grey = np.rint(millimetres * (255.0 / (1000.0 * MAX_DEPTH_M))).astype(np.uint8)
    return np.repeat(grey[:, :, None], 3, axis=2)


def resize_frames(pixels: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize (F, H, W, 3) uint8 to (F, *size, 3) uint8, bilinear with antialiasing.

    Frames of that size already are returned as they are. The aspect ratio is not kept: a camera's
    whole view is used, whatever its shape.
    """
    if tuple(pixels.shape[1:3]) == tuple(size) or pixels.shape[0] == 0:
        return pixels if pixels.shape[0] else pixels.new_empty((0, *size, 3))
    channels_first = pixels.permute(0, 3, 1, 2).float()  # (F, 3, H, W)
    resized = F.interpolate(channels_first, size=size, mode="bilinear", antialias=True)
    return resized.round_().clamp_(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous()
