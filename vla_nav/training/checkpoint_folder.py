"""A training checkpoint on disk: one folder, whole or absent, and checked when it is read.

    <run>/checkpoints/
      step_00000120/
        weights.safetensors   the model's weights
        training.pt           optimiser, averages, random states, position: tensors and plain values
        manifest.json         step, elapsed time, and the size and digest of both; written last
      step_00000090/          the one before

A folder is filled beside its place and renamed, so a kill leaves whole checkpoints only. Damage
that comes later (a disk, a copy that was cut short) shows in the digests, and is never trained
from. Nothing is unpickled: weights
are safetensors, the rest is read by torch's `weights_only` loader.
"""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
import xxhash
from torch import Tensor

from vla_nav.errors import UserError
from vla_nav.files import (
    atomic_folder,
    file_digest,
    read_json,
    require_free_space,
    require_regular,
    write_json,
)

FORMAT = 1
WEIGHTS, TRAINING, MANIFEST = "weights.safetensors", "training.pt", "manifest.json"
_SEAL = "xxh3_128"  # of the manifest, in the manifest
_NAME = re.compile(r"step_(\d{8,})")

_UNREADABLE = (
    OSError,
    RuntimeError,
    ValueError,
    EOFError,
    KeyError,
    pickle.UnpicklingError,
    safetensors.SafetensorError,
)


class DamagedCheckpointError(UserError):
    """A checkpoint that is not what its writer wrote."""


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint says of itself. aliases: names of weights that are the same tensor."""

    step: int
    elapsed_s: float
    files: Mapping[str, Mapping[str, Any]]
    aliases: Mapping[str, str]


def step_folder(checkpoints: str | Path, step: int) -> Path:
    """The folder of step `step`'s checkpoint.

    >>> step_folder("run/checkpoints", 120).name
    'step_00000120'
    """
    return Path(checkpoints) / f"step_{step:08d}"


def step_of(folder: str | Path) -> int:
    """The step of a checkpoint folder, by its name."""
    found = _NAME.fullmatch(Path(folder).name)
    assert found is not None, folder
    return int(found[1])


def checkpoint_folders(checkpoints: str | Path) -> list[Path]:
    """The checkpoints of a run, newest first."""
    root = Path(checkpoints)
    found = [path for path in root.glob("step_*") if _NAME.fullmatch(path.name)]
    return sorted(found, key=step_of, reverse=True)


def write_checkpoint(state: Mapping[str, Any], folder: str | Path) -> None:
    """Write what Lightning collected (`state_dict`, `global_step`, ...) as the folder `folder`.

    Raises `UserError` where the disk has no room for it, and `OSError` naming the folder where
    the disk refuses the writing; then `folder` is as it was.
    """
    folder = Path(folder)
    tensors, aliases = _distinct(state["state_dict"])
    rest = {key: value for key, value in state.items() if key != "state_dict"}
    rest["state_dict"] = {k: v for k, v in state["state_dict"].items() if not torch.is_tensor(v)}
    require_free_space(folder.parent, _num_bytes([tensors, rest]), what="a checkpoint")
    with atomic_folder(folder) as temporary:
        safetensors.torch.save_file(tensors, str(temporary / WEIGHTS))
        torch.save(rest, temporary / TRAINING)
        manifest = {
            "format": FORMAT,
            "step": int(state["global_step"]),
            "elapsed_s": float(state.get("run", {}).get("elapsed_s", 0.0)),
            "aliases": aliases,
            "files": {
                name: {
                    "bytes": (temporary / name).stat().st_size,
                    "xxh3_128": file_digest(temporary / name),
                }
                for name in (WEIGHTS, TRAINING)
            },
        }
        write_json(temporary / MANIFEST, {**manifest, _SEAL: _digest(manifest)})


def read_manifest(folder: str | Path) -> Manifest:
    """The manifest of a checkpoint. Raises `DamagedCheckpointError`."""
    path = Path(folder) / MANIFEST
    try:
        found = read_json(path)
    except (UserError, OSError) as error:
        raise DamagedCheckpointError(f"{path}: damaged ({error})") from None
    if not isinstance(found, dict) or found.pop(_SEAL, None) != _digest(found):
        raise DamagedCheckpointError(f"{path}: damaged, its content is not that of its {_SEAL}")
    if found["format"] != FORMAT:
        raise UserError(
            f"{path}: format {found['format']}, this version reads {FORMAT}; continue with the "
            "version that wrote it"
        )
    return Manifest(found["step"], found["elapsed_s"], found["files"], found["aliases"])


def verify_checkpoint(folder: str | Path) -> Manifest:
    """Read every byte of a checkpoint; raise `DamagedCheckpointError` naming what has changed."""
    folder = Path(folder)
    manifest = read_manifest(folder)
    for name, entry in manifest.files.items():
        path = folder / name
        try:
            size = require_regular(path).st_size
            digest = file_digest(path) if size == entry["bytes"] else None
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise DamagedCheckpointError(f"{path}: damaged, cannot be read ({reason})") from None
        except UserError as error:
            raise DamagedCheckpointError(f"{path}: damaged ({error})") from None
        if size != entry["bytes"]:
            raise DamagedCheckpointError(
                f"{path}: damaged, it has {size} bytes and {MANIFEST} says {entry['bytes']}"
            )
        if digest != entry["xxh3_128"]:
            raise DamagedCheckpointError(
                f"{path}: damaged, its digest is {digest} and {MANIFEST} says {entry['xxh3_128']}"
            )
    return manifest


def read_checkpoint(folder: str | Path, *, is_verified: bool = False) -> dict[str, Any]:
    """What `write_checkpoint` was given, on the CPU.

    is_verified: the digests have just been compared. Raises `DamagedCheckpointError`.
    """
    folder = Path(folder)
    manifest = read_manifest(folder) if is_verified else verify_checkpoint(folder)
    try:
        state = torch.load(folder / TRAINING, map_location="cpu", weights_only=True)
        weights = safetensors.torch.load_file(str(folder / WEIGHTS))
    except _UNREADABLE as error:
        raise DamagedCheckpointError(f"{folder}: cannot be read ({error})") from None
    weights |= {alias: weights[name] for alias, name in manifest.aliases.items()}
    return {**state, "state_dict": {**weights, **state["state_dict"]}}


def _distinct(state: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a state dict on the CPU, each once, and the names that mean another's."""
    names: dict[tuple[Any, ...], str] = {}
    tensors, aliases = {}, {}
    for name, value in state.items():
        if not torch.is_tensor(value):
            continue
        tensor = value.detach()
        place = (
            tensor.untyped_storage().data_ptr(),
            tensor.storage_offset(),
            tensor.shape,
            tensor.stride(),
            tensor.dtype,
        )
        if tensor.numel() and place in names:
            aliases[name] = names[place]
            continue
        names[place] = name
        is_part = tensor.untyped_storage().nbytes() != tensor.nbytes
        tensors[name] = (tensor.clone() if is_part else tensor).contiguous().cpu()
    return tensors, aliases


def _num_bytes(node: Any) -> int:
    if torch.is_tensor(node):
        return int(node.nbytes)
    if isinstance(node, Mapping):
        return sum(map(_num_bytes, node.values()))
    if isinstance(node, list | tuple):
        return sum(map(_num_bytes, node))
    return 0


def _digest(manifest: Mapping[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(manifest, sort_keys=True).encode())
