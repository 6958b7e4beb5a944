"""AdamW with a learning rate per part of the model: vision, projector, backbone and the rest.

    part        parameters whose name starts with      weight decay
    vision      encoder.                                matrices only (ndim >= 2); norms,
    projector   projector.                              biases and token tables have none
    backbone    backbone.
    heads       everything else

A rate of 0 freezes a part (freezing.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from vla_nav.errors import UserError, unknown_name
from vla_nav.training.freezing import PARTS, freeze, part_of
from vla_nav.training.table_rows import TableRows


@dataclass(frozen=True, slots=True)
class OptimiserSettings:
    """AdamW's values. `learning_rates` overrides `learning_rate` for some of `PARTS`. freeze:
    patterns of parameter names that do not train (`backbone.model.layers.[0-5].*`).

    used_rows: train the text table by its used rows (`vla_nav.training.table_rows`): the same
    update, faster on a CPU; for one process and `models.head: actions`.
    """

    learning_rate: float = 1e-3
    learning_rates: Mapping[str, float | None] = field(default_factory=dict)
    weight_decay: float = 0.05
    betas: tuple[float, float] = (0.9, 0.98)
    clip_norm: float = 1.0
    freeze: Sequence[str] = ()
    used_rows: bool = False

    def __post_init__(self) -> None:
        for part in self.learning_rates:
            if part not in PARTS:
                raise unknown_name("part in training.optimiser.learning_rates", part, PARTS)
        rates = {
            f"learning_rates.{part}": rate
            for part, rate in self.learning_rates.items()
            if rate is not None
        }
        plain = ("learning_rate", "weight_decay", "clip_norm")
        for name, value in {**{name: getattr(self, name) for name in plain}, **rates}.items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not value >= 0 or (value == math.inf and name != "clip_norm"):
                raise UserError(f"training.optimiser.{name}={value!r}; a number >= 0 is needed")
        is_pair = isinstance(self.betas, Sequence) and len(self.betas) == 2
        if not is_pair or not all(0 <= beta < 1 for beta in self.betas):
            raise UserError(
                f"training.optimiser.betas={self.betas}; two numbers are needed, 0 <= beta < 1 "
                "(like [0.9, 0.98])"
            )
        if isinstance(self.freeze, str) or not all(isinstance(x, str) for x in self.freeze):
            raise UserError(
                f"training.optimiser.freeze={self.freeze!r}; give a list of patterns such as "
                "['encoder.*']"
            )

    def rate_of(self, part: str) -> float:
        """The learning rate of one of `PARTS`."""
        rate = self.learning_rates.get(part)
        return self.learning_rate if rate is None else rate

    def freeze_in(self, model: nn.Module) -> None:
        """Switch off the gradients of what does not train; a second call changes nothing."""
        freeze(model, rates={part: self.rate_of(part) for part in PARTS}, patterns=self.freeze)


def build_optimiser(
    model: nn.Module, settings: OptimiserSettings, *, text_rows: TableRows | None = None
) -> torch.optim.AdamW:
    """One parameter group per part and decay; each group keeps its rate as `base_lr`.

    text_rows: its `rows` are optimised in place of its table.
    """
    settings.freeze_in(model)
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    groups: dict[tuple[str, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            part = part_of(name)
            is_decayed = parameter.ndim >= 2 and id(parameter) not in tables
            if text_rows is not None and parameter is text_rows.table:
                parameter = text_rows.rows
            groups.setdefault((part, is_decayed), []).append(parameter)
    return torch.optim.AdamW(
        [
            {
                "params": parameters,
                "lr": settings.rate_of(part),
                "base_lr": settings.rate_of(part),
                "weight_decay": settings.weight_decay if is_decayed else 0.0,
                "name": f"{part}/{'decay' if is_decayed else 'no_decay'}",
            }
            for (part, is_decayed), parameters in groups.items()
        ],
        betas=tuple(settings.betas),
        fused=True,
    )
