"""Writing a cache: shard after shard, each whole or absent, so that a kill loses one shard's work.

    plan(keys)   keys not held yet, in the order given, cut into shards of `rows_per_shard`
    fill         for each planned shard: features of its keys -> shard-<number>.safetensors
    finish       sorted index, then cache.json; only now do readers see the new frames

A second start reads the shards that are there, plans the rest the same way and continues; the
batches of a shard begin at its first key, so the files equal those of an uninterrupted run byte
for byte. A damaged shard is reported, not replaced. Frames added to a data set later go into
further shards; the old ones stay as they are.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.numpy import save
from torch import Tensor

from vla_nav.errors import UserError
from vla_nav.files import atomic_path, locked, remove_leftovers, require_free_space, write_json
from vla_nav.vision.cache import FORMAT, MANIFEST, read_manifest, require_same_shard
from vla_nav.vision.shards import (
    KEY_BYTES,
    Shard,
    keys_to_bytes,
    read_keys,
    read_shard_header,
    write_shard,
)

_INDEX_BYTES = 2 * KEY_BYTES + 8  # per frame: its key in the shard and in the index, and its row
_SHARD_NAME = "shard-{:05d}.safetensors"
_LOCK = ".lock"
_SHARD_FILES = "shard-?????.safetensors"


class PlannedShard(NamedTuple):
    """A shard still to be written: its number and the keys of its rows, in order."""

    number: int
    keys: tuple[str, ...]


class CacheWriter:
    """Fills the cache of one encoder over one set of frames. Use within `CacheWriter.locked`."""

    def __init__(
        self,
        folder: Path,
        *,
        fingerprint: str,
        row_shape: tuple[int, ...],
        dtype: torch.dtype,
        encoder: dict[str, Any],
        rows_per_shard: int,
    ) -> None:
        self.folder = folder
        self.rows_per_shard = rows_per_shard
        self.row_bytes = int(np.prod(row_shape, dtype=np.int64)) * dtype.itemsize
        self._manifest: dict[str, Any] = {
            "format": FORMAT,
            "fingerprint": fingerprint,
            "row_shape": list(row_shape),
            "dtype": str(dtype).removeprefix("torch."),
            "encoder": encoder,
        }
        found = read_manifest(folder)
        if found is not None and found["fingerprint"] != fingerprint:
            raise UserError(
                f"{folder / MANIFEST}: this cache is of encoder {found['fingerprint']}, not "
                f"{fingerprint}; choose another folder"
            )
        self._shards = [read_shard_header(path) for path in sorted(folder.glob(_SHARD_FILES))]
        for shard in self._shards:
            require_same_shard(shard, self._manifest)

    @staticmethod
    @contextmanager
    def locked(folder: Path) -> Iterator[None]:
        """Make the folder and hold it for one process; another one gets a `UserError`."""
        with locked(folder / _LOCK, what="`vla-nav encode`"):
            remove_leftovers(folder)
            yield

    def plan(self, keys: Iterable[str]) -> list[PlannedShard]:
        """The shards still to be written for these keys (repeats allowed), in order."""
        held = {key.tobytes() for shard in self._shards for key in read_keys(shard)}
        unique = list(dict.fromkeys(keys))
        raw = keys_to_bytes(unique)
        rest = [key for key, own in zip(unique, raw, strict=True) if own.tobytes() not in held]
        taken = {shard.path.name for shard in self._shards}
        starts = range(0, len(rest), self.rows_per_shard)
        free = (n for n in itertools.count() if _SHARD_NAME.format(n) not in taken)
        return [
            PlannedShard(number, tuple(rest[first : first + self.rows_per_shard]))
            for first, number in zip(starts, free, strict=False)
        ]

    def estimate_bytes(self, plan: list[PlannedShard]) -> int:
        """Bytes that the planned shards and the index will take on disk."""
        num_frames = sum(len(shard.keys) for shard in plan)
        return num_frames * (self.row_bytes + _INDEX_BYTES) + 1024 * len(plan)

    def require_space(self, plan: list[PlannedShard]) -> None:
        """Raise `UserError` unless the disk has room for the plan."""
        require_free_space(self.folder, self.estimate_bytes(plan), what="the feature cache")

    def write(self, planned: PlannedShard, features: Tensor) -> None:
        """Write one shard. features: (rows, *row_shape), one row per planned key."""
        assert features.shape == (len(planned.keys), *self._manifest["row_shape"])
        path = self.folder / _SHARD_NAME.format(planned.number)
        keys = keys_to_bytes(planned.keys)
        write_shard(path, features, keys, self._manifest["fingerprint"])
        self._shards.append(read_shard_header(path))

    def finish(self) -> None:
        """Write the index and the manifest: from here on readers see every frame written."""
        self._shards.sort(key=lambda shard: shard.path.name)
        keys = [read_keys(shard) for shard in self._shards]
        index = _write_index(self.folder, np.concatenate(keys) if keys else np.empty(0, "V16"))
        shards = [
            {"file": s.path.name, "frames": s.num_rows, "bytes": s.num_bytes, "digest": s.digest}
            for s in self._shards
        ]
        write_json(self.folder / MANIFEST, {**self._manifest, "index": index, "shards": shards})
        for path in self.folder.glob("index-*"):
            if path.name != index:
                path.unlink()

    @property
    def shards(self) -> tuple[Shard, ...]:
        """The shards on disk so far."""
        return tuple(self._shards)


def _write_index(folder: Path, keys: np.ndarray) -> str:
    """Write sorted keys and their rows; the name carries the count, so old and new differ."""
    as_strings = keys.view(f"S{KEY_BYTES}")
    order = np.argsort(as_strings, kind="stable").astype(np.int64)
    sorted_keys = np.ascontiguousarray(keys[order]).view(np.uint8).reshape(-1, KEY_BYTES)
    name = f"index-{len(keys)}.safetensors"
    with atomic_path(folder / name) as temporary:
        temporary.write_bytes(save({"keys": sorted_keys, "rows": order}))
    return name
