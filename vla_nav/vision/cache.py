"""The cache of features: each unique frame's tokens, found by the frame's content, read by mapping.

    <data.path>/cache/<encoder fingerprint>/<split>/
        cache.json                    fingerprint, row shape, dtype, encoder, shards with digests
        index-<frames>.safetensors    keys sorted, and the row of each
        shard-00000.safetensors ...   see vision/shards.py

`features(keys)` costs a binary search per key and one copy per row: no decoding, and frames that
occur many times are stored once. The mapping is shared by all loader workers of a machine and is
opened again, not copied, when a cache object is sent to another process.

A pixel cache is the same thing with rows (H, W, 3) uint8 and the fingerprint of a `PixelResizer`.

Axes: F frames asked for, N frames held, P tokens per frame, D channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vla_nav.errors import UserError
from vla_nav.files import read_json
from vla_nav.vision.shards import (
    KEY_BYTES,
    Shard,
    keys_to_bytes,
    map_rows,
    read_keys,
    read_shard_header,
    verify_shard,
)

MANIFEST = "cache.json"
FORMAT = "vla_nav feature cache 1"


def cache_folder(data_path: str | Path, fingerprint: str, split: str) -> Path:
    """Where the cache of an encoder over one split of a data set lies."""
    return Path(data_path) / "cache" / fingerprint / split


class FeatureCache:
    """A finished cache, open for reading. Make one with `FeatureCache.open`."""

    def __init__(self, folder: Path, manifest: dict[str, Any], shards: list[Shard]) -> None:
        self.folder = folder
        self.fingerprint: str = manifest["fingerprint"]
        self.encoder: dict[str, Any] = manifest["encoder"]
        self.row_shape = tuple(manifest["row_shape"])
        self.dtype = getattr(torch, manifest["dtype"])
        self._shards = shards
        self._first_rows = np.cumsum([0, *(shard.num_rows for shard in shards)])
        self._maps = [map_rows(shard) if shard.num_rows else None for shard in shards]
        self._sorted_keys, self._sorted_rows = _read_index(folder / manifest["index"], shards)

    @classmethod
    def open(
        cls, folder: str | Path, fingerprint: str | None = None, *, verify: str = "sizes"
    ) -> FeatureCache:
        """Open a cache and check it.

        fingerprint: of the encoder whose features are wanted; another encoder's cache is refused.
            None takes what is there.
        verify: `sizes` reads the headers and compares file sizes; `digests` reads every byte.
        Raises `UserError` when the cache is missing, unfinished, damaged, or another encoder's.
        """
        folder = Path(folder)
        if verify not in ("sizes", "digests"):
            raise UserError(f"verify={verify}: allowed: sizes, digests")
        manifest = read_manifest(folder)
        if manifest is None:
            raise UserError(
                f"{folder}: no finished feature cache here; run `vla-nav encode` with the same "
                "data.path, data.split and vision"
            )
        if fingerprint is not None and manifest["fingerprint"] != fingerprint:
            raise UserError(
                f"{folder / MANIFEST}: this cache is of encoder {manifest['fingerprint']}, asked "
                f"for is {fingerprint}; run `vla-nav encode` with this encoder"
            )
        shards = []
        for entry in manifest["shards"]:
            shard = read_shard_header(folder / entry["file"])
            require_same_shard(shard, manifest, entry["digest"])
            if verify == "digests":
                verify_shard(shard)
            shards.append(shard)
        return cls(folder, manifest, shards)

    def __len__(self) -> int:
        """The number of unique frames held."""
        return int(self._first_rows[-1])

    def __contains__(self, key: str) -> bool:
        return bool(self._find(keys_to_bytes([key]))[1].all())

    def __reduce__(self) -> tuple[Any, ...]:
        return FeatureCache.open, (self.folder, self.fingerprint)

    @property
    def num_bytes(self) -> int:
        """Bytes of all shards on disk."""
        return sum(shard.num_bytes for shard in self._shards)

    def rows(self, keys: Sequence[str]) -> np.ndarray:
        """The row number (F,) int64 of each frame key; `UserError` for a frame that is not held."""
        wanted = keys_to_bytes(list(keys))
        rows, is_held = self._find(wanted)
        if not is_held.all():
            missing = keys[int(np.argmin(is_held))]
            raise UserError(
                f"{self.folder}: frame {missing} is not in this cache ({int((~is_held).sum())} of "
                f"{len(keys)} asked for are missing); run `vla-nav encode` with the same data.path "
                "and data.split"
            )
        return rows

    def read(self, rows: np.ndarray) -> Tensor:
        """The rows (F,) as a new tensor (F, *row_shape) in the cache's dtype."""
        row_bytes = self._shards[0].row_bytes if self._shards else 0
        out = torch.empty((len(rows), row_bytes), dtype=torch.uint8)
        buffer = out.numpy()
        shard_of = np.searchsorted(self._first_rows, rows, side="right") - 1
        local = rows - self._first_rows[shard_of]
        if len(self._maps) == 1 and row_bytes:
            np.take(self._maps[0], local, axis=0, out=buffer, mode="clip")
        else:  # rows go straight to their places: a gather per shard would copy them twice
            for place, (shard, row) in enumerate(
                zip(shard_of.tolist(), local.tolist(), strict=True)
            ):
                buffer[place] = self._maps[shard][row]
        return out.view(self.dtype).view(len(rows), *self.row_shape)

    def features(self, keys: Sequence[str]) -> Tensor:
        """The features of frames by key: (F, *row_shape), one row per key, repeats included."""
        return self.read(self.rows(keys))

    def _find(self, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows (F,) of 16-byte keys and whether each is held; rows of others are arbitrary."""
        if len(self) == 0 or len(wanted) == 0:
            return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), bool)
        places = np.searchsorted(self._sorted_keys, wanted.view(f"S{KEY_BYTES}"))
        places = np.minimum(places, len(self._sorted_keys) - 1)
        is_held = self._sorted_keys[places] == wanted.view(f"S{KEY_BYTES}")
        return self._sorted_rows[places], is_held


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a finished cache, None without one; `UserError` when it is not ours."""
    path = folder / MANIFEST
    if not path.exists():
        return None
    try:
        manifest = read_json(path)
    except UserError as error:
        raise UserError(f"{error}; delete this file and run `vla-nav encode` again") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise UserError(f"{path}: not the manifest of a '{FORMAT}'; choose another folder")
    return manifest


def require_same_shard(shard: Shard, manifest: dict[str, Any], digest: str | None = None) -> None:
    """Raise `UserError` unless the shard belongs to the cache that the manifest describes."""
    dtype = str(shard.dtype).removeprefix("torch.")
    is_same = (
        shard.fingerprint == manifest["fingerprint"]
        and list(shard.row_shape) == list(manifest["row_shape"])
        and dtype == manifest["dtype"]
        and digest in (None, shard.digest)
    )
    if not is_same:
        raise UserError(
            f"{shard.path}: a shard of another cache (encoder {shard.fingerprint}, rows "
            f"{list(shard.row_shape)} {dtype}); expected encoder {manifest['fingerprint']}, rows "
            f"{manifest['row_shape']} {manifest['dtype']}; delete this file and run "
            "`vla-nav encode` again"
        )


def _read_index(path: Path, shards: list[Shard]) -> tuple[np.ndarray, np.ndarray]:
    """Sorted keys (N,) of 16-byte strings and their rows (N,) int64, as the shards have them."""
    try:
        with safe_open(path, "numpy") as handle:
            keys, rows = handle.get_tensor("keys"), handle.get_tensor("rows")
    except (FileNotFoundError, SafetensorError, OSError):
        keys = rows = None
    held = np.concatenate([np.empty(0, f"V{KEY_BYTES}"), *map(read_keys, shards)])
    is_whole = (
        keys is not None
        and rows.shape == (len(held),)
        and keys.shape == (len(held), KEY_BYTES)
        and bool(((rows >= 0) & (rows < len(held))).all())
        and np.ascontiguousarray(keys).tobytes() == held[rows].tobytes()
    )
    if not is_whole:
        raise UserError(
            f"{path}: the index is missing, damaged or not of the shards beside it; "
            "run `vla-nav encode` again"
        )
    return np.ascontiguousarray(keys).view(f"S{KEY_BYTES}").reshape(-1), rows
