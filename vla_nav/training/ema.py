"""An exponential moving average of the weights: what is validated, saved as the policy, evaluated.

    average_n = average_{n-1} + (1 - d_n) (weights_n - average_{n-1})
    d_n = min(decay, (1 + n) / (10 + n))

The rise of d_n lets a short run forget its random start. The average is taken every `every_steps`
steps with d_n to that power, which costs one pass over the weights each time. Kept in float32, and
spread over ranks as the weights are; the state for a checkpoint is whole.
"""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

from vla_nav.errors import UserError, require_count
from vla_nav.training.parallel_shards import local, sharded_like, whole_state


class WeightAverage(Callback):
    """Keeps the average of the trainable parameters of `module.model` and swaps it in on demand."""

    def __init__(self, decay: float = 0.999, every_steps: int = 4) -> None:
        if not 0.0 < decay < 1.0:
            raise UserError(f"callbacks.ema.decay={decay}; allowed: 0 < decay < 1")
        require_count("callbacks.ema.every_steps", every_steps)
        self.decay, self.every_steps = decay, every_steps
        self._average: dict[str, Tensor] = {}
        self._loaded: dict[str, Tensor] = {}
        self._num_updates = 0
        self._stashed: dict[str, Tensor] | None = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin at the initial weights, or where a checkpoint left off."""
        for name, parameter in _trained(pl_module).items():
            source = parameter.detach()
            if name in self._loaded:
                source = sharded_like(self._loaded[name], source)
            self._average[name] = source.to(parameter.device, torch.float32, copy=True)
        self._loaded = {}

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any
    ) -> None:
        """Move the average towards the weights."""
        if trainer.global_step % self.every_steps:
            return
        self._num_updates += 1
        num = self._num_updates * self.every_steps
        decay = min(self.decay, (1 + num) / (10 + num)) ** self.every_steps
        parameters = _trained(pl_module)
        averages = [local(self._average[name]) for name in parameters]
        weights = [local(parameter.detach()).float() for parameter in parameters.values()]
        torch._foreach_lerp_(averages, weights, 1.0 - decay)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Validate the average."""
        if not trainer.sanity_checking:
            self._stashed = self._exchange(pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Go on training the weights."""
        if self._stashed is not None:
            self._restore(pl_module)

    @property
    def average(self) -> dict[str, Tensor]:
        """The average by parameter name of `module.model`, this rank's shards of it."""
        return self._average

    def state_dict(self) -> dict[str, Any]:
        """The average and the number of updates, plain tensors and integers; a collective call
        where the average is spread over ranks."""
        return {"num_updates": self._num_updates, "average": whole_state(self._average)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        self._num_updates = state_dict["num_updates"]
        self._loaded = state_dict["average"]
        for name, average in self._average.items():  # sharded weights are loaded after they began
            if name in self._loaded:
                average.copy_(sharded_like(self._loaded[name], average))

    @torch.no_grad()
    def _exchange(self, pl_module: LightningModule) -> dict[str, Tensor]:
        stashed = {}
        for name, parameter in _trained(pl_module).items():
            stashed[name] = parameter.detach().clone()
            parameter.copy_(self._average[name])
        return stashed

    @torch.no_grad()
    def _restore(self, pl_module: LightningModule) -> None:
        assert self._stashed is not None
        for name, parameter in _trained(pl_module).items():
            parameter.copy_(self._stashed[name])
        self._stashed = None


def _trained(pl_module: LightningModule) -> dict[str, nn.Parameter]:
    model = pl_module.model
    assert isinstance(model, nn.Module)
    return {name: value for name, value in model.named_parameters() if value.requires_grad}
