"""One shard of a cache: a safetensors file of equal rows and their keys, read through a mapping.

    | header length (8) | JSON header | features (rows, *row_shape) | keys (rows, 16) uint8 |

The header's `__metadata__` holds one entry, `vla_nav`: JSON with the encoder's fingerprint and the
xxh3-128 digest of the two tensors' bytes. One entry, because the order of several would depend on
the run and a resumed cache has to equal an uninterrupted one byte for byte.

A key is a frame's content digest: 32 hexadecimal digits, 16 bytes. Files are written whole or not
at all (`vla_nav/files.py`), so a shard that exists under its name was complete when written.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import xxhash
from safetensors.torch import save
from torch import Tensor

from vla_nav.errors import UserError
from vla_nav.files import atomic_path

KEY_BYTES = 16
_REMEDY = "delete this file and run `vla-nav encode` again"
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "U8": torch.uint8,
}


class Shard(NamedTuple):
    """A shard's header: where its rows lie in the file and what they must hash to."""

    path: Path
    fingerprint: str
    digest: str
    row_shape: tuple[int, ...]
    dtype: torch.dtype
    num_rows: int
    num_bytes: int  # of the whole file
    features_offset: int  # bytes from the start of the file
    keys_offset: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return int(np.prod(self.row_shape, dtype=np.int64)) * self.dtype.itemsize


def keys_to_bytes(keys: list[str] | tuple[str, ...]) -> np.ndarray:
    """Frame keys (32 hexadecimal digits each) as (F,) of 16-byte strings; `UserError` otherwise."""
    try:
        raw = bytes.fromhex("".join(keys))
    except ValueError:
        raw = b""
    if len(raw) != KEY_BYTES * len(keys) or any(len(key) != 2 * KEY_BYTES for key in keys):
        odd = next((k for k in keys if not _is_key(k)), "")
        raise UserError(f"frame key '{odd}': a frame key is 32 hexadecimal digits")
    return np.frombuffer(raw, dtype=f"V{KEY_BYTES}")


def write_shard(path: Path, features: Tensor, keys: np.ndarray, fingerprint: str) -> None:
    """Write rows and keys atomically. features: (rows, *row_shape) on the CPU, contiguous."""
    key_rows = torch.from_numpy(keys.view(np.uint8).reshape(-1, KEY_BYTES).copy())
    metadata = {"fingerprint": fingerprint, "digest": _digest(_as_bytes(features), keys.tobytes())}
    with atomic_path(path) as temporary:
        temporary.write_bytes(
            save(
                {"features": features, "keys": key_rows},
                metadata={"vla_nav": json.dumps(metadata, sort_keys=True)},
            )
        )


def read_shard_header(path: Path) -> Shard:
    """Parse a shard's header and check the file's size against it; `UserError` when damaged."""
    try:
        num_bytes = path.stat().st_size
        with open(path, "rb") as handle:
            header_bytes = int.from_bytes(handle.read(8), "little")
            header: dict[str, Any] = json.loads(handle.read(min(header_bytes, num_bytes)))
        own = json.loads(header["__metadata__"]["vla_nav"])
        features, keys = header["features"], header["keys"]
        start = 8 + header_bytes
        shard = Shard(
            path=path,
            fingerprint=own["fingerprint"],
            digest=own["digest"],
            row_shape=tuple(features["shape"][1:]),
            dtype=_DTYPES[features["dtype"]],
            num_rows=features["shape"][0],
            num_bytes=start + max(features["data_offsets"][1], keys["data_offsets"][1]),
            features_offset=start + features["data_offsets"][0],
            keys_offset=start + keys["data_offsets"][0],
        )
    except FileNotFoundError:
        raise UserError(f"{path}: missing; run `vla-nav encode` again") from None
    except (ValueError, KeyError, TypeError, IndexError, OverflowError):
        raise UserError(f"{path}: not a shard of a vla_nav cache; {_REMEDY}") from None
    if num_bytes != shard.num_bytes:
        raise UserError(
            f"{path}: truncated or overwritten: {num_bytes} bytes, expected {shard.num_bytes}; "
            f"{_REMEDY}"
        )
    return shard


def map_rows(shard: Shard) -> np.ndarray:
    """The rows as a read-only mapping (num_rows, row_bytes) uint8; nothing is read yet."""
    mapped = np.memmap(
        shard.path,
        dtype=np.uint8,
        mode="r",
        offset=shard.features_offset,
        shape=(shard.num_rows, shard.row_bytes),
    )
    return mapped.view(np.ndarray)  # np.memmap's own indexing costs microseconds per row


def read_keys(shard: Shard) -> np.ndarray:
    """The keys as (num_rows,) of 16-byte strings."""
    with open(shard.path, "rb") as handle:
        handle.seek(shard.keys_offset)
        return np.frombuffer(handle.read(shard.num_rows * KEY_BYTES), dtype=f"V{KEY_BYTES}")


def verify_shard(shard: Shard) -> None:
    """Read the whole shard and compare its digest; `UserError` when its bytes have changed."""
    if _digest(map_rows(shard), read_keys(shard).tobytes()) != shard.digest:
        raise UserError(f"{shard.path}: its content does not match its digest; {_REMEDY}")


def _is_key(key: str) -> bool:
    return len(key) == 2 * KEY_BYTES and all(c in "0123456789abcdefABCDEF" for c in key)


def _digest(features: np.ndarray, keys: bytes) -> str:
    digest = xxhash.xxh3_128(features)
    digest.update(keys)
    return digest.hexdigest()


def _as_bytes(features: Tensor) -> np.ndarray:
    return features.contiguous().view(-1).view(torch.uint8).numpy()
