"""Encoding a data set: every unique frame once, in batches, into the encoder's cache.

    episodes -> unique frame keys -> planned shards -> pixels (workers) -> encode -> shard

Batches have a fixed size and start anew with each shard, so an interrupted run that is started
again computes the same batches as one that was not interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from vla_nav.episodes.types import Episode, FrameSource
from vla_nav.errors import UserError
from vla_nav.vision.cache import FeatureCache
from vla_nav.vision.cache_writer import CacheWriter
from vla_nav.vision.frame_batches import SameSizeFrames, read_batches


class FrameEncoder(Protocol):
    """What can fill a cache: `TimmEncoder` and `PixelResizer`."""

    parameter_dtype: torch.dtype

    @property
    def row_shape(self) -> tuple[int, ...]: ...

    def encode(self, pixels: Tensor) -> Tensor: ...

    def fingerprint(self) -> str: ...

    def describe(self) -> dict[str, Any]: ...


class EncodingPlan(NamedTuple):
    """What a run is about to do; passed to `announce` before any work."""

    folder: Path
    num_frames: int  # unique frames of the data set
    num_missing: int  # of them, not in the cache yet
    num_bytes: int  # that will be written


def unique_frame_keys(episodes: Iterable[Episode], cameras: Sequence[str] | None) -> list[str]:
    """The frame keys of all steps, each once, in order of first use. cameras: None means all."""
    steps = chain.from_iterable(episode.steps for episode in episodes)
    return list(
        dict.fromkeys(
            key
            for step in steps
            for camera, key in step.frames.items()
            if cameras is None or camera in cameras
        )
    )


def encode_frames(
    frames: FrameSource,
    keys: Sequence[str],
    encoder: FrameEncoder,
    folder: Path,
    *,
    batch_size: int,
    shard_bytes: int,
    device: torch.device,
    num_workers: int,
    announce: Callable[[EncodingPlan], None],
    advance: Callable[[int], None],
) -> FeatureCache:
    """Encode the frames that the cache in `folder` does not hold yet, and open it.

    announce is called once with the plan, after the check for free space and before any work;
    advance after each batch with its number of frames.
    """
    if getattr(encoder, "is_frozen", True) is False:
        raise UserError(
            "vision.freeze=false: the features of a trainable encoder change with every step; "
            "cache its pixels (vision=pixels vision.image_size=...) or set vision.freeze=true"
        )
    row_bytes = int(np.prod(encoder.row_shape)) * encoder.parameter_dtype.itemsize
    with CacheWriter.locked(folder):
        writer = CacheWriter(
            folder,
            fingerprint=encoder.fingerprint(),
            row_shape=tuple(encoder.row_shape),
            dtype=encoder.parameter_dtype,
            encoder=encoder.describe(),
            rows_per_shard=_rows_per_shard(shard_bytes, row_bytes, batch_size),
        )
        plan = writer.plan(keys)
        writer.require_space(plan)
        num_missing = sum(len(shard.keys) for shard in plan)
        announce(EncodingPlan(folder, len(set(keys)), num_missing, writer.estimate_bytes(plan)))
        batches = read_batches(
            frames,
            [
                shard.keys[first : first + batch_size]
                for shard in plan
                for first in range(0, len(shard.keys), batch_size)
            ],
            num_workers=num_workers,
        )
        for shard in plan:
            features = torch.empty(
                (len(shard.keys), *encoder.row_shape), dtype=encoder.parameter_dtype
            )
            for first in range(0, len(shard.keys), batch_size):
                rows = features[first : first + batch_size]
                _encode_into(rows, next(batches), encoder, device)
                advance(len(rows))
            writer.write(shard, features)
        writer.finish()
    return FeatureCache.open(folder, encoder.fingerprint())


def _encode_into(
    rows: Tensor, batch: list[SameSizeFrames], encoder: FrameEncoder, device: torch.device
) -> None:
    """Encode a batch into its rows (F, *row_shape)."""
    with torch.inference_mode():
        for places, pixels in batch:
            rows[places] = encoder.encode(pixels.to(device)).cpu()


def _rows_per_shard(shard_bytes: int, row_bytes: int, batch_size: int) -> int:
    """Rows that fill a shard, a whole number of batches where more than one fits."""
    rows = max(1, shard_bytes // max(1, row_bytes))
    return rows if rows < batch_size else rows - rows % batch_size
