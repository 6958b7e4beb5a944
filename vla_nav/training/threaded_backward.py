"""The packs of a step in threads of one CPU process.

    thread 1   pack 0 -> gradients     thread 2   pack 1 -> gradients
    this one   weights' gradients += those of pack 0, then those of pack 1

Gradients are added in the packs' order, so the result does not depend on which thread is first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from vla_nav.training.batch import Pack


class ThreadedBackward:
    """Adds gradients of packs to parameters, `num_threads` packs at once."""

    def __init__(self, num_threads: int) -> None:
        self._threads = ThreadPoolExecutor(num_threads)

    def run(
        self,
        packs: Sequence[Pack],
        loss_of: Callable[[Pack], Tensor],
        parameters: Sequence[torch.nn.Parameter],
        total: Tensor,
        *,
        context: Callable[[], AbstractContextManager[Any]],
    ) -> Tensor:
        """`total` with the packs' losses added, in place. context: around a forward pass."""

        def gradients(pack: Pack) -> tuple[Tensor, tuple[Tensor | None, ...]]:
            with context():  # autocast is per thread
                loss = loss_of(pack)
            return loss.detach(), torch.autograd.grad(loss, parameters, allow_unused=True)

        for loss, parts in self._threads.map(gradients, packs):
            total += loss
            for parameter, part in zip(parameters, parts, strict=True):
                if part is None:
                    continue
                if parameter.grad is None:
                    parameter.grad = part
                else:
                    parameter.grad += part
        return total
