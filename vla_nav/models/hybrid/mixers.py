"""Recurrent mixers of transformers models with this project's routing inside.

    hidden (B, T, E) --> in projections --> recur.convolve --> recur.scan --> gated norm --> out

A mixer of ours takes the place of the one in a layer and adopts its parameters under their names,
so state dicts stay as they are. Without `recur` it computes what transformers computes, on plain
sequences (its own attention is then bound as well). Projections and norms are the adopted ones.

    gated delta net   Qwen3.5 (one projection for q k v, others for z, b, a)
    Mamba-2           Bamba (one projection for gate, x B C, dt)

Axis legend: B rows, T tokens, E hidden size, H value heads, Hk key heads, G groups, C channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vla_nav.errors import UserError
from vla_nav.models.hybrid.chunks import Rule, wide
from vla_nav.models.hybrid.conv import causal_conv
from vla_nav.models.hybrid.fused import fused_conv, uses_fused
from vla_nav.models.hybrid.gated_delta import GATED_DELTA
from vla_nav.models.hybrid.mamba2 import MAMBA2
from vla_nav.models.hybrid.routing import Recurrence
from vla_nav.tree.heavy_paths import MAX_KERNEL


class RuleShape(NamedTuple):
    """A rule and the sizes that kernels are compiled for; num_inputs: 5 with beta."""

    rule: Rule
    num_heads: int
    num_keys: int
    key_size: int
    value_size: int
    num_inputs: int


class Mixer(nn.Module):
    """A transformers mixer, adopted whole: `mix` is what differs between kinds."""

    layer_idx: int

    def __init__(self, stock: nn.Module) -> None:
        super().__init__()
        self.__dict__.update(stock.__dict__)  # parameters, children and sizes
        self._stock_forward: Callable[..., Tensor] = type(stock).forward
        self.kernels = "auto"

    def forward(
        self, hidden_states: Tensor, recur: Recurrence | None = None, **kwargs: Any
    ) -> Tensor:
        """Transformers' calling convention: hidden_states (B, T, E) -> (B, T, E)."""
        if recur is not None:
            return self.mix(hidden_states, recur)
        if "attend" in kwargs:  # a packed tree: one state for all would leak between branches
            raise UserError(
                f"recurrent layer {self.layer_idx} was called without `recur`: the model's forward "
                "did not hand its keywords to the layers; this transformers version is not "
                "supported"
            )
        return self._stock_forward(self, hidden_states, **kwargs)

    def mix(self, hidden: Tensor, recur: Recurrence) -> Tensor:
        """hidden (B, T, E) -> (B, T, E)."""
        raise NotImplementedError

    def flops(self) -> float:
        """Floating-point operations of the recurrence and the conv per token, forward."""
        raise NotImplementedError

    def shape(self) -> RuleShape:
        """The recurrence as kernels see it."""
        raise NotImplementedError

    def _scanned(self, rule: Rule, inputs: Sequence[Tensor], recur: Recurrence) -> Tensor:
        """The rule's inputs through the recurrence, by fused kernels where these are to run."""
        if not uses_fused(self.kernels, inputs[0].device.type, inputs[0].dtype):
            rule = rule._replace(fused=None)
        return recur.scan(rule, inputs, self.layer_idx)

    def _convolved(self, x: Tensor, recur: Recurrence) -> Tensor:
        """x (B, T, C) through the conv and SiLU."""
        conv: Any = self.conv1d
        is_fused = uses_fused(self.kernels, x.device.type, x.dtype)
        plain = fused_conv if is_fused else causal_conv
        out = recur.convolve(x, conv.weight.squeeze(1), conv.bias, self.layer_idx, plain)
        return F.silu(out).to(x.dtype)


class GatedDeltaMixer(Mixer):
    """Qwen3_5GatedDeltaNet."""

    def mix(self, hidden: Tensor, recur: Recurrence) -> Tensor:
        """hidden (B, T, E) -> (B, T, E)."""
        this: Any = self
        mixed = this.in_proj_qkv(hidden)
        z = this.in_proj_z(hidden).unflatten(-1, (-1, this.head_v_dim))
        b, a = this.in_proj_b(hidden), this.in_proj_a(hidden)
        with _without_autocast(hidden):
            convolved = self._convolved(mixed, recur)
            query, key, value = convolved.split([this.key_dim, this.key_dim, this.value_dim], -1)
            decay = -wide(this.A_log).exp() * F.softplus(wide(a) + this.dt_bias)
            inputs = (
                query.unflatten(-1, (-1, this.head_k_dim)),
                key.unflatten(-1, (-1, this.head_k_dim)),
                value.unflatten(-1, (-1, this.head_v_dim)),
                decay,
                b.sigmoid(),
            )
            out = self._scanned(GATED_DELTA, inputs, recur).to(mixed.dtype)  # (B, T, H, Dv)
        normed = this.norm(out.flatten(0, 2), z.flatten(0, 2))
        projected: Tensor = this.out_proj(normed.view(*hidden.shape[:2], -1))
        return projected

    def shape(self) -> RuleShape:
        """See `Mixer`."""
        this: Any = self
        sizes = (this.num_v_heads, this.num_k_heads, this.head_k_dim, this.head_v_dim)
        return RuleShape(GATED_DELTA, *sizes, num_inputs=5)

    def flops(self) -> float:
        """Three products with the state: what the key holds, what is written, the output."""
        this: Any = self
        products = 6.0 * this.num_v_heads * this.head_k_dim * this.head_v_dim
        return products + 2.0 * this.conv_dim * this.conv_kernel_size


class Mamba2Mixer(Mixer):
    """BambaMixer."""

    def mix(self, hidden: Tensor, recur: Recurrence) -> Tensor:
        """hidden (B, T, E) -> (B, T, E)."""
        this: Any = self
        sizes = [this.intermediate_size, this.conv_dim, this.num_heads]
        gate, mixed, raw = this.in_proj(hidden).split(sizes, -1)
        group_width = this.n_groups * this.ssm_state_size
        with _without_autocast(hidden):
            convolved = self._convolved(mixed, recur)
            x, key, query = convolved.split([this.intermediate_size, group_width, group_width], -1)
            x = wide(x).unflatten(-1, (-1, this.head_dim))
            step = F.softplus(wide(raw) + this.dt_bias).clamp(*this.time_step_limit)
            inputs = (
                query.unflatten(-1, (-1, this.ssm_state_size)),
                key.unflatten(-1, (-1, this.ssm_state_size)),
                x * step[..., None],
                -wide(this.A_log).exp() * step,
            )
            out = self._scanned(MAMBA2, inputs, recur) + this.D[:, None] * x
            normed = this.norm(out.flatten(2), gate)
        projected: Tensor = this.out_proj(normed.to(hidden.dtype))
        return projected

    def shape(self) -> RuleShape:
        """See `Mixer`."""
        this: Any = self
        sizes = (this.num_heads, this.n_groups, this.ssm_state_size, this.head_dim)
        return RuleShape(MAMBA2, *sizes, num_inputs=4)

    def flops(self) -> float:
        """Two products with the state: what is written, the output."""
        this: Any = self
        products = 4.0 * this.num_heads * this.head_dim * this.ssm_state_size
        return products + 2.0 * this.conv_dim * this.conv_kernel_size


_KINDS = {"Qwen3_5GatedDeltaNet": GatedDeltaMixer, "BambaMixer": Mamba2Mixer}
_KERNEL_KEYS = ("linear_conv_kernel_dim", "mamba_d_conv")


def adopt_mixers(model: nn.Module, kernels: str = "auto") -> None:
    """Replace the recurrent mixers of a transformers model, in place. kernels: `auto`, `fla` or
    `torch` (fused.py)."""
    for layer in model.layers:  # type: ignore[union-attr]
        for name, child in list(layer.named_children()):
            kind = _KINDS.get(type(child).__name__)
            if kind is not None:
                mixer = kind(child)
                mixer.kernels = kernels
                setattr(layer, name, mixer)


def mixers_of(model: nn.Module) -> list[Mixer]:
    """The adopted mixers, in the order of the layers."""
    return [module for module in model.modules() if isinstance(module, Mixer)]


def recurrent_flops(model: nn.Module) -> float:
    """Operations of all recurrences of a model per token, forward and backward."""
    return 3.0 * sum(mixer.flops() for mixer in mixers_of(model))


def check_recurrence(config: Any) -> None:
    """Raise `UserError` for a conv that sees more tokens than are routed."""
    for key in _KERNEL_KEYS:
        kernel = getattr(config, key, None)
        if kernel is not None and not 1 <= kernel <= MAX_KERNEL:
            raise UserError(
                f"backbone {config.model_type}: {key}={kernel} is not supported, the causal conv "
                f"of a recurrent layer may see 1 to {MAX_KERNEL} tokens"
            )


def _without_autocast(like: Tensor) -> AbstractContextManager[Any]:
    """Recurrences say themselves what is computed in which dtype."""
    device = like.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()
