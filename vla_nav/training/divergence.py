"""A loss or a gradient that is no number any more: found, named, and never saved.

    every step             loss and gradient norm are compared on the device, nobody waits for it
    every logged step,     the host reads the first bad step, rank by rank, and ends the run with
    every checkpoint       its episodes; weights are looked at too before they are written

So the newest checkpoint is always of a step before the first bad one, and continuing repeats the
same steps up to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn

from vla_nav.errors import StoppedError

NEVER = 2**53  # a step that a float64 still tells from its neighbours
_MOST_NAMES = 12


class FiniteWatch:
    """Remembers the first step whose loss or gradient norm is not finite, without reading it."""

    def __init__(self) -> None:
        self._first: Tensor | None = None  # (3,) float64: step, loss, gradient norm

    @torch.no_grad()
    def note(self, step: int, loss: Tensor, norm: Tensor) -> None:
        """Look at step `step`; the device compares, the host goes on."""
        values = torch.stack([loss.detach().double(), norm.detach().double()])
        if self._first is None:
            self._first = torch.full((3,), NEVER, dtype=torch.float64, device=values.device)
        now = torch.cat([torch.full_like(values[:1], step), values])
        is_first = ~torch.isfinite(values).all() & (self._first[0] == NEVER)
        self._first = torch.where(is_first, now, self._first)

    def first(self, device: torch.device) -> Tensor:
        """(3,) float64 on the device: the step, or `NEVER`; its loss and gradient norm."""
        if self._first is None:
            return torch.full((3,), NEVER, dtype=torch.float64, device=device)
        return self._first


def require_finite(
    trainer: Trainer,
    pl_module: LightningModule,
    *,
    with_weights: bool = False,
    newest: Callable[[], str | None],
) -> None:
    """Raise `StoppedError` naming the first step that was not finite, its episodes and the remedy.

    with_weights: also where a weight is not finite. newest: gives the newest checkpoint's name.
    A collective call; it waits for the device.
    """
    row = pl_module.finite.first(pl_module.device)
    are_weights = torch.ones((), dtype=torch.float64, device=row.device)
    if with_weights:
        are_weights = _are_finite(pl_module.model).to(row)
    rows = pl_module.all_gather(torch.cat([row, are_weights[None]])).reshape(-1, 4).tolist()
    step = min(int(row[0]) for row in rows)
    if step < NEVER:
        _, loss, norm, _ = min(rows, key=lambda row: (row[0], math.isfinite(row[1])))
        ranks = [k for k, row in enumerate(rows) if row[0] == step and not math.isfinite(row[1])]
        packs = trainer.datamodule.episodes_of_step(step, trainer.world_size)
        what = f"step {step}: the loss is {loss:g}, the norm of its gradient {norm:g}"
        message = f"{what}; {_told(packs, ranks)}; {_remedy(newest())}"
        raise StoppedError(message, code=2, is_shared=True)
    if not all(row[3] for row in rows):
        message = f"step {trainer.global_step}: a weight is not finite after the update"
        raise StoppedError(f"{message}; {_remedy(newest())}", code=2, is_shared=True)


def _are_finite(model: nn.Module) -> Tensor:
    """() bool on the device: every trained weight of this rank is finite."""
    parts = [parameter.detach() for parameter in model.parameters() if parameter.requires_grad]
    own = [part.to_local() if hasattr(part, "to_local") else part for part in parts]
    return torch.stack([torch.isfinite(part).all() for part in own]).all()


def _told(packs: Sequence[Sequence[Sequence[str]]], ranks: Sequence[int]) -> str:
    """The episodes of the step, of the ranks that met it where only some did."""
    is_some = 0 < len(ranks) < len(packs)
    chosen = [packs[rank] for rank in ranks] if is_some else packs
    names = [name for rank in chosen for pack in rank for name in pack]
    shown = ", ".join(names[:_MOST_NAMES])
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    where = f" of rank {', '.join(map(str, ranks))}" if is_some else ""
    return f"its packs{where} hold {shown}{more}"


def _remedy(newest: str | None) -> str:
    kept = "no checkpoint was written" if newest is None else f"{newest} is from before it"
    return (
        f"{kept}. The same command meets the same step again: look at these episodes, or begin "
        "anew (overwrite=true) with a lower training.optimiser.learning_rate"
    )
