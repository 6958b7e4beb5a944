"""What is measured on the validation episodes: the loss, and how many tokens, actions and stops are
right; summed over packs, then over ranks."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import Tensor

from vla_nav.losses import Loss, weighted_cross_entropy
from vla_nav.models.vla import VLA
from vla_nav.training.accuracy import Counts, count
from vla_nav.training.batch import Pack
from vla_nav.training.partitioned import partitioned_logits


class Validation:
    """Sums of the packs since the last `clear`.

    stop_id: the token that alone is the STOP action.
    """

    def __init__(self, model: VLA, *, normalisation: str, stop_id: int) -> None:
        self._model, self._normalisation, self._stop_id = model, normalisation, stop_id
        self.clear()

    def clear(self) -> None:
        """Begin again."""
        self._counts = Counts()
        self._loss_sum, self._loss_weight = 0.0, 0.0

    def add(self, pack: Pack, *, within: AbstractContextManager[None]) -> None:
        """Take a pack. within: around its forward passes."""
        with within:
            loss, columns = self._measured(pack)
        self._counts += count(
            self._model.head_tokens(columns),
            pack.packed.target_ids,
            predictor_index=pack.packed.predictor_index,
            target_index=pack.packed.target_index,
            stop_id=self._stop_id,
        )
        self._loss_sum += float(loss.numerator)
        self._loss_weight += float(loss.denominator)

    def sums(self, device: torch.device) -> Tensor:
        """All of it as one vector, to be added over ranks."""
        return torch.tensor([self._loss_sum, self._loss_weight, *self._counts], device=device)

    @staticmethod
    def values(sums: Tensor) -> dict[str, float]:
        """The curves' values by name, from a vector of `sums`."""
        loss_sum, loss_weight, *counts = sums.tolist()
        return {"loss": loss_sum / max(loss_weight, 1e-9), **Counts(*counts).rates()}

    def _measured(self, pack: Pack) -> tuple[Loss, Tensor]:
        """Loss of a pack, and the columns (M,) of its largest logits."""

        def of_whole(model: VLA) -> tuple[Loss, Tensor]:
            found = model.predictions(pack.packed, pack.frames, pack.plan)
            loss = weighted_cross_entropy(found, pack.packed, normalisation=self._normalisation)
            return loss, found.argmax()

        if pack.partitions is None:
            return self._model.through(of_whole)
        logits = partitioned_logits(self._model, pack.partitions, pack.frames)  # (M, V)
        loss = weighted_cross_entropy(logits, pack.packed, normalisation=self._normalisation)
        return loss, logits.argmax(-1)
