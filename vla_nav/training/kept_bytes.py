"""What autograd keeps between a forward and a backward pass, counted as it is kept and let go.

    with KeptBytes(model.parameters()) as kept:
        loss_of(batch).backward()          kept.peak: activations, each storage once, no weights

Saved tensors are exactly what activation checkpointing and partitions make smaller. A layer that is
recomputed in the backward pass counts by its input alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


class KeptBytes:
    """Bytes that autograd keeps for backward passes begun inside, each storage once, as long as it
    keeps them; not those of `weights`. `peak` is their highest sum.

        with KeptBytes(model.parameters()) as kept: ...
    """

    def __init__(self, weights: Iterable[Tensor] = ()) -> None:
        self.peak = 0
        self._level = 0
        self._count: Counter[int] = Counter()
        self._weights = {local_part(x).untyped_storage().data_ptr() for x in weights}
        self._hooks: Any = None

    def __enter__(self) -> KeptBytes:
        self._hooks = torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: _Kept(tensor, self), lambda kept: kept.tensor
        )
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.__exit__(*error)

    def change(self, tensor: Tensor, by: int) -> None:
        """One more holder of the tensor's storage (by = 1), or one less (-1)."""
        storage = tensor.untyped_storage()
        place = storage.data_ptr()
        if place in self._weights:
            return
        before = self._count[place] > 0
        self._count[place] += by
        self._level += ((self._count[place] > 0) - before) * storage.nbytes()
        self.peak = max(self.peak, self._level)


class _Kept:
    """A tensor in autograd's hands; it goes when autograd lets go."""

    def __init__(self, tensor: Tensor, ledger: KeptBytes) -> None:
        self.tensor, self._ledger = tensor, ledger
        ledger.change(tensor, 1)

    def __del__(self) -> None:
        self._ledger.change(self.tensor, -1)


def local_part(tensor: Any) -> Tensor:
    """A sharded tensor's part of this process; another tensor itself."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
