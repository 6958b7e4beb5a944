"""Decoding frames ahead of the encoder: worker processes read batches of keys in order.

    batches of keys -> workers (read, depth to grey, stack by size) -> batches of pixels, in order

A batch may hold frames of several sizes (an RxR and an R2R camera in one data set); each size is
one tensor with the places of its frames in the batch.

Axes: F frames, H x W pixels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vla_nav.episodes.types import FrameSource
from vla_nav.errors import UserError
from vla_nav.vision.frames import as_rgb


class SameSizeFrames(NamedTuple):
    """Frames of one size: pixels (F, H, W, 3) uint8, and their places (F,) int64 in the batch."""

    places: Tensor
    pixels: Tensor


class _KeyBatches(Dataset):
    """Batch i of the keys as pixels, or the `UserError` that reading it raised.

    An error travels back as a value: raised in a worker, it would come out with a traceback as
    its text.
    """

    def __init__(self, frames: FrameSource, batches: Sequence[Sequence[str]]) -> None:
        self._frames, self._batches = frames, batches

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, index: int) -> list[SameSizeFrames] | UserError:
        try:
            decoded = [as_rgb(self._frames.read(key)) for key in self._batches[index]]
        except UserError as error:
            return error
        places_of: dict[tuple[int, ...], list[int]] = {}
        for place, frame in enumerate(decoded):
            places_of.setdefault(frame.shape, []).append(place)
        return [
            SameSizeFrames(
                torch.tensor(places), torch.from_numpy(np.stack([decoded[p] for p in places]))
            )
            for places in places_of.values()
        ]


def read_batches(
    frames: FrameSource, batches: Sequence[Sequence[str]], *, num_workers: int
) -> Iterator[list[SameSizeFrames]]:
    """The pixels of each batch of frame keys, in order, whatever the number of workers.

    Raises `UserError` where a frame cannot be read.
    """
    if not batches:
        return
    frames.read(batches[0][0])  # builds the source's index once, before the workers copy it
    loader = DataLoader(_KeyBatches(frames, batches), batch_size=None, num_workers=num_workers)
    for batch in loader:
        if isinstance(batch, UserError):
            raise batch
        yield batch
