"""What of a model does not train: whole parts, and parameters by the pattern of their name.

    learning_rates.vision: 0                     part frozen    encoder.*
    freeze: ["backbone.model.layers.[0-5].*"]    by name        the first six layers
    models.lora                                  backbone       all of it but the adapters (lora.py)

A frozen parameter takes no gradient, has no optimiser state and no average. It is switched off
before anything wraps the model: ranks that wait for the gradient of a frozen parameter hang.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Mapping, Sequence

from torch import nn

from vla_nav.errors import UserError
from vla_nav.models.lora import is_adapter

PARTS = {"vision": "encoder.", "projector": "projector.", "backbone": "backbone.", "heads": ""}


def part_of(name: str) -> str:
    """The part of the model that a parameter of this name belongs to.

    >>> part_of("own_head.weight")
    'heads'
    """
    return next(part for part, prefix in PARTS.items() if name.startswith(prefix))


def freeze(model: nn.Module, *, rates: Mapping[str, float], patterns: Sequence[str]) -> None:
    """Switch off the gradients of parts whose rate is 0 and of names that match a pattern.

    Raises `UserError` for a pattern that no name matches, and where nothing is left to train.
    """
    names = [name for name, _ in model.named_parameters()]
    frozen = {name for name in names if rates[part_of(name)] == 0}
    for pattern in patterns:
        found = fnmatch.filter(names, pattern)
        if not found:
            near = difflib.get_close_matches(pattern, names, n=1, cutoff=0.0)
            raise UserError(
                f"training.optimiser.freeze: no parameter matches '{pattern}'; names look like "
                f"'{near[0]}', a pattern like 'backbone.model.layers.[0-5].*'"
            )
        frozen.update(found)
    adapters = [name for name in names if is_adapter(name)]
    if adapters and frozen.issuperset(adapters):
        raise UserError(
            "training.optimiser: all LoRA adapters are frozen; give learning_rates.backbone a rate "
            "above 0, freeze less, or set models.lora=null"
        )
    for name, parameter in model.named_parameters():
        if name in frozen:
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError(
            "training.optimiser: nothing trains with these learning_rates and this freeze; raise a "
            "rate above 0, or freeze less"
        )
