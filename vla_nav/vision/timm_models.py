"""Building a timm model by name: sizes, seeded random weights, and errors in one line.

timm takes seconds to import, so it is imported when a model is built: caches and loader workers
do without it.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from vla_nav.errors import UserError
from vla_nav.vision.weights import load_weights, locate_weights

_HUB = "hub"


def create_model(
    name: str,
    weights: str | None,
    image_size: int | tuple[int, int] | None,
    seed: int,
    model_kwargs: Mapping[str, Any],
) -> nn.Module:
    """A timm model without its classifier, its weights loaded or drawn from `seed`.

    image_size is passed on to models of a fixed size (ViTs); others take any. Raises `UserError`
    for an unknown name or tag, wrong arguments, and weights that do not fit.
    """
    import timm

    architecture = name.partition(".")[0]
    if not timm.is_model(architecture):
        near = difflib.get_close_matches(architecture, timm.list_models(), n=1)
        hint = f"did you mean '{near[0]}'? " if near else ""
        raise UserError(f"vision.name={name}: not a timm model; {hint}allowed: timm.list_models()")
    arguments = dict(model_kwargs)
    try:
        settings = timm.get_pretrained_cfg(name, allow_unregistered=True)
    except RuntimeError as error:
        raise UserError(f"vision.name={name}: {error} Allowed: timm.list_pretrained()") from None
    if image_size is not None and settings is not None and settings.fixed_input_size:
        arguments.setdefault("img_size", as_size(image_size))
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = timm.create_model(name, pretrained=weights == _HUB, num_classes=0, **arguments)
    except (TypeError, AssertionError, RuntimeError, ValueError, OSError) as error:
        raise UserError(
            f"vision.name={name}: timm cannot build it with vision.weights={weights}, "
            f"vision.image_size={image_size}, vision.model_kwargs={dict(model_kwargs)}: "
            f"{first_line(error)}"
        ) from None
    if weights not in (None, _HUB):
        load_weights(model, locate_weights(weights))
    return model


def data_config(model: nn.Module) -> dict[str, Any]:
    """timm's settings of a model's input: input_size (3, H, W), mean and std of RGB in [0, 1]."""
    from timm.data import resolve_model_data_config

    return resolve_model_data_config(model)


def as_size(image_size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    """One number or (height, width) as (height, width); None stays None."""
    if image_size is None:
        return None
    height, width = (image_size, image_size) if isinstance(image_size, int) else image_size
    if height < 1 or width < 1:
        raise UserError(f"vision.image_size={image_size}: allowed: positive pixels")
    return int(height), int(width)


def first_line(error: Exception) -> str:
    """What an exception says, cut to one line."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__
