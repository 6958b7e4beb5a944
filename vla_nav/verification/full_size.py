"""The bfloat16 part: the configured model at full size, on the GPU where there is one.

    attention parity   the configured backend against the reference, forward and gradients
    drift              tree against flat beside flat against flat (drift.py)

It needs room for the weights and three times as much again; where that is not there it refuses
before anything is computed.
"""

from __future__ import annotations

import copy
import math
import platform
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import torch

from vla_nav import __version__
from vla_nav.attention.parity import TOLERANCE, require_parity
from vla_nav.attention.registry import backend
from vla_nav.episodes.types import Embodiment
from vla_nav.errors import UserError
from vla_nav.losses import Normalisation
from vla_nav.models.assembly import assemble
from vla_nav.models.vla import VLA
from vla_nav.verification.drift import check_drift
from vla_nav.verification.equivalence import trees_of
from vla_nav.verification.oracle import Sample
from vla_nav.verification.progress import Progress
from vla_nav.verification.recipe import VerifyRecipe
from vla_nav.verification.report import Finding
from vla_nav.verification.trained_weights import give_weights
from vla_nav.vision.encoder import TimmEncoder

_COPIES = 4  # of float32 weights: themselves, gradients, gradients compared with, room to work
_PACKAGES = ("transformers", "timm", "numpy", "triton")


class FullSize(NamedTuple):
    """Findings of the bfloat16 part, and where and on what they were made."""

    findings: list[Finding]
    summary: dict[str, Any]


def full_model(recipe: VerifyRecipe, encoder: TimmEncoder, embodiment: Embodiment) -> VLA:
    """The model of `recipe` as it is, on the device of the bfloat16 part.

    Raises `UserError` where the memory does not hold its update.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    is_there = device in backend(recipe.attention).device_types
    model = assemble(
        recipe.model,
        action_space=recipe.action_space,
        embodiment=embodiment,
        layout=recipe.layout,
        encoder=copy.deepcopy(encoder),
        attention=recipe.attention if is_there else "sdpa",
    ).model
    give_weights(model, recipe)
    if encoder.is_frozen:
        model.encoder = None
    _require_room(model, device)
    return model.float().to(device).train()


def check_full_size(
    model: VLA,
    samples: Sequence[Sample],
    *,
    normalisation: Normalisation,
    precision: str,
    progress: Progress,
) -> FullSize:
    """Drift of `samples` on a `full_model`. precision: the trainer's, bf16-true or another."""
    device = next(model.parameters()).device
    placed = [Sample(s.paths, _on(s.frames, device)) for s in samples]
    flat = sum(len(path.tokens().token_ids) for s in samples for path in s.paths)
    tree = sum(tree.num_tokens for tree in trees_of(placed))
    size = sum(value.numel() for value in model.parameters())
    progress(
        f"full size: {size / 1e6:.0f} M parameters on {device.type}, 3 x {flat:,} flat tokens and "
        f"{tree:,} tree tokens, about {6e-12 * size * (3 * flat + tree):.3g} TFLOP"
    )
    is_mixed = precision != "bf16-true"
    findings = [_attention_parity(model, device)]
    findings += check_drift(
        model, placed, normalisation=normalisation, is_mixed=is_mixed, progress=progress
    )
    where = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    section = (
        f"full size, {'bf16-mixed' if is_mixed else 'bf16-true'} on {where}, attention "
        f"{model.attention_name}"
    )
    summary = {
        "device": where,
        "precision": "bf16-mixed" if is_mixed else "bf16-true",
        "flat_tokens": flat,
        "tree_tokens": tree,
        "model": describe_model(model),
    }
    return FullSize([replace(finding, section=section) for finding in findings], summary)


def describe_model(model: VLA) -> dict[str, Any]:
    """Sizes of a model as plain values."""
    config = model.backbone.model.config
    return {
        "family": config.model_type,
        "layers": config.num_hidden_layers,
        "hidden_size": config.hidden_size,
        "heads": config.num_attention_heads,
        "kv_heads": config.num_key_value_heads,
        "head": model.head,
        "outputs": model.num_outputs,
        "attention": model.attention_name,
        "parameters": sum(value.numel() for value in model.parameters()),
    }


def versions() -> dict[str, str]:
    """Versions of what computed the numbers."""
    found = {"vla_nav": __version__, "python": platform.python_version()}
    found["torch"] = torch.__version__  # with its CUDA
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "absent"
    return found


def _attention_parity(model: VLA, device: torch.device) -> Finding:
    """The model's attention backend in bfloat16 and its head shape, against the reference."""
    check = f"attention {model.attention_name} against its definition"
    try:
        parity = require_parity(
            model.attention_name,
            device,
            dtype=torch.bfloat16,
            **model.backbone.attention_shape._asdict(),
        )
    except UserError as error:
        return Finding(check, math.inf, None, TOLERANCE[torch.bfloat16], note=str(error))
    worst = parity.differences[0]
    note = f"{worst.tensor} of {worst.case}"
    return Finding(check, worst.relative, None, parity.tolerance, note=note)


def _require_room(model: VLA, device: str) -> None:
    """Raise `UserError` where the weights and three times as much do not fit in free memory."""
    needed = _COPIES * 4 * sum(value.numel() for value in model.parameters())
    free = torch.cuda.mem_get_info()[0] if device == "cuda" else _free_bytes()
    if free is not None and needed > free:
        raise UserError(
            f"verification.drift_episodes: the model at full size needs {needed / 2**30:.0f} GiB "
            f"on {device}, {free / 2**30:.0f} are free; leave the bfloat16 part out with "
            "verification.drift_episodes=0"
        )


def _free_bytes() -> int | None:
    """Memory that the system can give, where it tells."""
    path = Path("/proc/meminfo")
    if not path.is_file():
        return None
    lines = dict(line.split(":", 1) for line in path.read_text(encoding="ascii").splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024


def _on(frames: torch.Tensor, device: torch.device) -> torch.Tensor:
    return (frames.float() if frames.is_floating_point() else frames).to(device)
