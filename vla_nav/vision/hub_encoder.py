"""An encoder as timm's own folder: `timm.create_model("local-dir:<folder>", pretrained=True)`.

config.json names the architecture, its arguments and the input (size, mean, std, whole frame
resized); model.safetensors has the weights. How the grid is pooled and folded into vision tokens
is said beside it, by `TimmEncoder.describe`. An encoder cut at `feature_index` lacks its later
stages: `pretrained_strict=False` leaves those random.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from vla_nav.files import write_json
from vla_nav.vision.encoder import TimmEncoder

_BILINEAR = 2  # PIL's number


def save_encoder(encoder: TimmEncoder, folder: Path, state: Mapping[str, Tensor]) -> None:
    """Write the folder. state: the timm model's tensors, by its own names."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.contiguous() for name, tensor in state.items()}
    safetensors.torch.save_file(tensors, str(folder / "model.safetensors"), {"format": "pt"})
    arguments = dict(encoder.model_kwargs)
    is_fixed = bool(encoder.model.pretrained_cfg.get("fixed_input_size"))
    if is_fixed:
        arguments.setdefault("img_size", list(encoder.image_size))
    write_json(
        folder / "config.json",
        {
            "architecture": encoder.name.partition(".")[0],
            "num_classes": 0,
            "num_features": encoder.model.num_features,
            "model_args": arguments,
            "pretrained_cfg": {
                **({"tag": tag} if (tag := encoder.name.partition(".")[2]) else {}),
                "custom_load": False,
                "input_size": [3, *encoder.image_size],
                "fixed_input_size": is_fixed,
                "interpolation": "bilinear",
                "crop_pct": 1.0,
                "crop_mode": "squash",
                "mean": list(encoder.mean),
                "std": list(encoder.std),
                "num_classes": 0,
            },
        },
    )


def preprocessor(encoder: TimmEncoder) -> dict[str, Any]:
    """preprocessor_config.json of transformers: what the encoder does to pixels before it looks."""
    height, width = encoder.image_size
    return {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": height, "width": width},
        "resample": _BILINEAR,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(encoder.mean),
        "image_std": list(encoder.std),
    }
