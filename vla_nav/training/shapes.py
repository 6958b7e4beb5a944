"""The shapes of a configured model without its weights: parameters, FLOPs and tokens per frame.

Everything is built on torch's meta device, which has shapes and no memory, so the costs of a model
of any size are counted on a small machine. Of a pretrained backbone only its config is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import nn

from vla_nav.errors import UserError
from vla_nav.models.assembly import ModelConfig
from vla_nav.models.backbone import Backbone, build_backbone
from vla_nav.models.hybrid import recurrent_flops
from vla_nav.models.tokenizer import locate
from vla_nav.models.vocabulary import Vocabulary
from vla_nav.tree import FlopModel
from vla_nav.vision.encoder import TimmEncoder


class FrameTokens(NamedTuple):
    """Tokens of one image: as the current observation, and pooled, as history (0 = never)."""

    full: int
    pooled: int


def frame_tokens(
    encoder: Mapping[str, Any], *, full: int | None = None, pooled: int | None = None
) -> FrameTokens:
    """Tokens of one image of the configured encoder, or the numbers given instead of its own.

    Raises `UserError` for numbers that no encoder has.
    """
    for name, value, least in (("frame_tokens", full, 1), ("pooled_tokens", pooled, 0)):
        is_count = isinstance(value, int) and not isinstance(value, bool) and value >= least
        if value is not None and not is_count:
            raise UserError(
                f"{name}={value}: allowed: whole numbers from {least} on, or null for the encoder's"
            )
    if pooled is None and full is not None:
        pooled = int(encoder.get("num_pooled", 1))
    if full is None or pooled is None:
        with torch.device("meta"):
            made = TimmEncoder(**{**encoder, "weights": None})
        full = made.num_full if full is None else full
        pooled = made.num_pooled if pooled is None else pooled
    return FrameTokens(full, pooled)


def backbone_shape(model: ModelConfig, *, num_text: int) -> Backbone:
    """The configured backbone on the meta device: shapes, no weights."""
    config = model.backbone
    if config.source != "config":
        config = replace(config, source="config", path=None, **_stored_shape(model))
    with torch.device("meta"):
        return build_backbone(config, num_text=num_text)


def flop_model(
    model: ModelConfig, vocabulary: Vocabulary, *, frame_flops: float = 0.0
) -> tuple[FlopModel, int]:
    """The cost model of a configuration and the parameters of its backbone.

    frame_flops: of encoding one frame in the step, see `encoder_flops`; 0 where it is frozen.
    """
    backbone = backbone_shape(model, num_text=vocabulary.num_text)
    config = backbone.model.config
    linear = sum(
        layer.weight.numel() for layer in backbone.modules() if isinstance(layer, nn.Linear)
    )
    is_small = model.head == "actions"
    outputs = vocabulary.num_actions if is_small else vocabulary.num_tokens
    made = FlopModel(
        linear_parameters=linear,
        head_parameters=outputs * config.hidden_size,
        num_layers=backbone.num_layers - backbone.num_recurrent,
        num_heads=backbone.attention_shape.num_heads,
        head_dim=backbone.attention_shape.head_dim,
        frame_flops=frame_flops,
        recurrent_flops=recurrent_flops(backbone.model),
    )
    return made, sum(value.numel() for value in backbone.parameters())


def encoder_flops(encoder: Mapping[str, Any]) -> float:
    """Forward and backward FLOPs of one frame, counted by torch on the CPU; 0 for a frozen encoder,
    whose features are cached."""
    if encoder.get("freeze", True):
        return 0.0
    from torch.utils.flop_counter import FlopCounterMode

    made = TimmEncoder(**{**encoder, "weights": None})
    frame = torch.zeros((1, *made.image_size, 3), dtype=torch.uint8)
    with FlopCounterMode(display=False) as counter:
        made.encode(frame).float().sum().backward()
    return float(counter.get_total_flops())


def _stored_shape(model: ModelConfig) -> dict[str, Any]:
    """Family and options of a pretrained backbone, from the config beside (or in) its weights."""
    from transformers import AutoConfig

    source = model.backbone
    is_folder = source.source == "folder"
    path = locate(source.path or "", key="models.backbone.path", is_folder=is_folder)
    folder, extra = (path, {}) if is_folder else (path.parent, {"gguf_file": path.name})
    try:
        stored = AutoConfig.from_pretrained(str(folder), local_files_only=True, **extra)
    except (OSError, ValueError, KeyError, ImportError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise UserError(f"models.backbone.path={source.path}: not loadable ({reason})") from None
    known = type(stored)()
    options = {
        key: value
        for key, value in stored.to_diff_dict().items()
        if hasattr(known, key) and not key.startswith("_") and key not in _NO_SHAPE
    }
    return {"family": stored.model_type, "options": options | dict(source.options)}


_NO_SHAPE = {"model_type", "transformers_version", "architectures", "dtype", "quantization_config"}
