"""Lightning's model-parallel strategy with all ranks along the data: `trainer=fsdp`.

mesh    data_parallel = every rank of every node,  tensor_parallel = 1
state   checkpoints hold whole tensors under the names that one process gives them, written by
        rank 0 through the trainer's checkpoint format: a run continues on any number of ranks,
        and under any strategy
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor
from torch.optim import Optimizer

from vla_nav.errors import UserError
from vla_nav.models.vla import VLA
from vla_nav.training.parallel_shards import shard_model, sharded_like, whole_state

_GATHERED = {"bf16-mixed": torch.bfloat16, "32-true": None, "64-true": None}
_BACKEND_OFFLOADED = "cpu:gloo,cuda:nccl"  # norms of gradients are summed where they lie


class ShardedStrategy(ModelParallelStrategy):
    """See the module's docstring.

    cpu_offload: weights, gradients and optimiser in the CPU's memory. timeout_minutes: how long a
    rank waits for the others.
    """

    def __init__(self, cpu_offload: bool = False, timeout_minutes: float = 30.0) -> None:
        super().__init__(
            save_distributed_checkpoint=False, timeout=timedelta(minutes=timeout_minutes)
        )
        self.cpu_offload = cpu_offload

    def shard(self, model: VLA) -> None:
        """Spread `model` over the ranks; called by the LightningModule's `configure_model`."""
        precision = str(self.precision_plugin.precision)
        if precision not in _GATHERED:
            raise UserError(
                f"trainer.precision={precision}: sharded training (trainer=fsdp) has "
                f"{', '.join(_GATHERED)}; master weights and reductions are float32 in bf16-mixed"
            )
        shard_model(
            model,
            self.device_mesh["data_parallel"],
            dtype=_GATHERED[precision],
            is_offloaded=self.cpu_offload,
        )

    def setup_environment(self) -> None:
        """All ranks along the data."""
        self._data_parallel_size = self.num_nodes * self.num_processes
        self._tensor_parallel_size = 1
        if self.cpu_offload and self.root_device.type == "cuda":
            self._process_group_backend = _BACKEND_OFFLOADED
        super().setup_environment()

    def model_to_device(self) -> None:
        """Sharded parameters are where they belong; only what is not sharded moves."""
        assert self.model is not None
        model: Any = self.model
        for module in model.modules():
            for group in (module._parameters, module._buffers):
                for name, tensor in group.items():
                    if tensor is not None and not hasattr(tensor, "device_mesh"):
                        group[name] = _moved(tensor, self.root_device)

    @property
    def lightning_restore_optimizer(self) -> bool:
        """Restored by `load_optimizer_state_dict`, from the checkpoint that Lightning has read."""
        return True

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Whole tensors, on rank 0; a collective call."""
        assert self.model is not None
        return whole_state(self.model.state_dict())

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """The optimiser's own state dict with whole tensors, on rank 0; a collective call."""
        plain: Any = getattr(optimizer, "_optimizer", optimizer)
        state = plain.state_dict()
        found = {number: whole_state(values) for number, values in state["state"].items()}
        return {**state, "state": found}

    def load_checkpoint(
        self, checkpoint_path: Any, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """The checkpoint as every rank reads it."""
        return self.checkpoint_io.load_checkpoint(checkpoint_path, weights_only=weights_only)

    @torch.no_grad()
    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Take this rank's part of every tensor."""
        assert self.model is not None
        own, stored = self.model.state_dict(), checkpoint["state_dict"]
        if own.keys() != stored.keys():
            differing = sorted(own.keys() ^ stored.keys())
            raise UserError(f"the checkpoint is of another model: {differing[:3]} are in one alone")
        for name, tensor in own.items():
            tensor.copy_(sharded_like(stored[name], tensor))

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Take this rank's part of the moments."""
        for optimiser, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            parameters = [p for group in optimiser.param_groups for p in group["params"]]
            numbers = [n for group in state["param_groups"] for n in group["params"]]
            assert len(numbers) == len(parameters), "the checkpoint is of another optimiser"
            spread = {
                number: {
                    key: sharded_like(value, parameter)
                    if isinstance(value, Tensor) and value.shape == parameter.shape
                    else value
                    for key, value in state["state"].get(number, {}).items()
                }
                for number, parameter in zip(numbers, parameters, strict=True)
            }
            optimiser.load_state_dict({**state, "state": spread})


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    if not isinstance(tensor, torch.nn.Parameter):
        return tensor.to(device)
    tensor.data = tensor.data.to(device)
    return tensor
