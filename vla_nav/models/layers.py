"""Decoder layers as two compiled halves around attention; norms, rotary, SwiGLU, residuals fuse.

    hidden --> [ norm, q k v, head norms, rotary ] --> attend --> [ o, norm, SwiGLU, residuals ] -->
                          compiled                    as it is              compiled

Attention stays outside (its plan, a partition's gateway and the hooks of both are Python objects
that change at every call), and so does activation checkpointing, which wraps the layer. A half is a
pure function of tensors, weights among them: one graph serves all layers of a model, and the token
count is its only dynamic size, so that packs of any length reuse it. A further graph is compiled
for another dtype, another gradient mode, other frozen weights or another model shape; beyond
_MAX_GRAPHS a call raises instead of going on uncompiled.

It runs in training mode only. Evaluation, the policy with its cache, and other attentions use the
transformers layer that it was made from, with the same parameters under the same names. Rounding:
what is between two matrix products is computed in float32 (float64 where the layer is) and rounded
once, where the transformers layer rounds at every operation.

Axes: B batch, T tokens, E hidden size, H query heads, Hkv key heads, D head size.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.modeling_layers import GradientCheckpointingLayer

from vla_nav.errors import UserError
from vla_nav.models.weights import StepWeights

_MAX_GRAPHS = 64  # torch's own limit, 8, counts every model shape, dtype and gradient mode


class Heads(NamedTuple):
    """Sizes that split a layer's projections into heads; norms' epsilon."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    epsilon: float


def compile_layers(model: nn.Module, *, is_joined: bool) -> None:
    """Replace the layers of a transformers decoder, in place.

    is_joined: one matrix product for q, k and v, over a joined copy of their weights. (The two of
    SwiGLU stay apart: the gradients of a joined product have to be written side by side, which took
    longer on an H200 than the product saved.) Raises `UserError` for a layer with an activation
    other than SiLU.
    """
    config = model.config
    if config.hidden_act != "silu":
        raise UserError(
            f"models.backbone.compile: hidden_act={config.hidden_act} is not supported, only silu "
            "is; set compile: false"
        )
    limits = torch._dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, _MAX_GRAPHS)
    layers: Any = model.layers
    for index, layer in enumerate(layers):
        layers[index] = CompiledLayer(layer, is_joined=is_joined)


class CompiledLayer(GradientCheckpointingLayer):
    """A transformers layer (its children under their own names) with a faster training forward."""

    def __init__(self, stock: nn.Module, *, is_joined: bool) -> None:
        super().__init__()
        for name, child in stock.named_children():
            self.add_module(name, child)
        self._stock_forward = type(stock).forward  # reads the children alone
        attention: Any = stock.self_attn
        config = attention.config
        self._heads = Heads(
            config.num_attention_heads,
            config.num_key_value_heads or config.num_attention_heads,
            attention.head_dim,
            config.rms_norm_eps,
        )
        self._weights = StepWeights(is_joined=is_joined)
        self.train(stock.training)

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        attend: Callable[..., Tensor] | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Transformers' calling convention: hidden_states (B, T, E) -> (B, T, E)."""
        if not self.training or attend is None:
            given = {**kwargs} if attend is None else {**kwargs, "attend": attend}
            out: Tensor = self._stock_forward(
                self, hidden_states, position_embeddings=position_embeddings, **given
            )
            return out
        assert position_embeddings is not None
        before, after = _compiled()
        attention, mlp = self.self_attn, self.mlp
        device = hidden_states.device.type
        is_mixed = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if is_mixed else hidden_states.dtype
        group = self._weights.group
        with _without_autocast(device, is_mixed):
            q, k, v = _called(
                before,
                _dynamic(hidden_states),
                _dynamic(position_embeddings[0]),
                _dynamic(position_embeddings[1]),
                self.input_layernorm.weight,
                *group((attention.q_proj, attention.k_proj, attention.v_proj), dtype),
                _weight_of(attention, "q_norm"),
                _weight_of(attention, "k_norm"),
                self._heads,
            )
        out = attend(q, k, v, attention.layer_idx, attention.scaling)  # (B, T, H, D)
        with _without_autocast(device, is_mixed):
            done: Tensor = _called(
                after,
                _dynamic(hidden_states),
                _dynamic(out),
                *group((attention.o_proj,), dtype),
                self.post_attention_layernorm.weight,
                *group((mlp.gate_proj, mlp.up_proj), dtype, is_apart=True),
                *group((mlp.down_proj,), dtype),
                self._heads.epsilon,
            )
        return done


def before_attention(
    hidden: Tensor,
    cos: Tensor,
    sin: Tensor,
    norm: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    heads: Heads,
) -> tuple[Tensor, Tensor, Tensor]:
    """q (B, T, H, D), k and v (B, T, Hkv, D) of hidden (B, T, E); cos and sin (B, T, D)."""
    x = _normed(hidden, norm, heads.epsilon).to(weights[0].dtype)
    width, kv_width = (n * heads.head_dim for n in (heads.num_heads, heads.num_kv_heads))
    projected = _products(x, weights, biases, (width, kv_width, kv_width))
    q, k, v = (part.unflatten(-1, (-1, heads.head_dim)) for part in projected)
    if q_norm is not None and k_norm is not None:
        q = _normed(q, q_norm, heads.epsilon)
        k = _normed(k, k_norm, heads.epsilon)
    cos, sin = cos[:, :, None], sin[:, :, None]  # (B, T, 1, D)
    return _rotated(q, cos, sin).to(v.dtype), _rotated(k, cos, sin).to(v.dtype), v


def after_attention(
    hidden: Tensor,
    out: Tensor,
    o_weights: Sequence[Tensor],
    o_biases: Sequence[Tensor | None],
    norm: Tensor,
    up_weights: Sequence[Tensor],
    up_biases: Sequence[Tensor | None],
    down_weights: Sequence[Tensor],
    down_biases: Sequence[Tensor | None],
    epsilon: float,
) -> Tensor:
    """The layer's output (B, T, E) of its input and attention's out (B, T, H, D)."""
    hidden = hidden + F.linear(out.flatten(-2), o_weights[0], o_biases[0])
    x = _normed(hidden, norm, epsilon).to(up_weights[0].dtype)
    half = sum(len(weight) for weight in up_weights) // 2
    gate, up = _products(x, up_weights, up_biases, (half, half))
    return hidden + F.linear(F.silu(gate) * up, down_weights[0], down_biases[0])


def _normed(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """w * x / sqrt(mean(x^2) + eps) over the last axis; float32, or float64 where x is."""
    wide = x if x.dtype == torch.float64 else x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
    return wide * scale * weight.to(wide.dtype)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions: the two halves of the last axis are the coordinates of its planes."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def _products(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None], widths: Sequence[int]
) -> Sequence[Tensor]:
    """x times each weight, or times one joined weight and cut into `widths`."""
    products = [F.linear(x, w, b) for w, b in zip(weights, biases, strict=True)]
    return products[0].split(list(widths), dim=-1) if len(products) == 1 else products


def _weight_of(module: Any, name: str) -> Tensor | None:
    child = getattr(module, name, None)
    return None if child is None else child.weight


def _dynamic(x: Tensor) -> Tensor:
    """x (B, T, ...) with its token count marked as a size that changes."""
    torch._dynamo.maybe_mark_dynamic(x, 1)
    return x


def _without_autocast(device: str, is_mixed: bool) -> AbstractContextManager[Any]:
    """The halves say themselves what is computed in which dtype."""
    return torch.autocast(device, enabled=False) if is_mixed else nullcontext()


def _called(half: Any, *arguments: Any) -> Any:
    """`half(...)`; a compiler that is not there is a `UserError`."""
    try:
        return half(*arguments)
    except RuntimeError as error:  # that of torch's compiler is one
        if not re.search(r"(No working|find) (C|C\+\+) compiler", str(error)):
            raise
        reason = str(error).splitlines()[0]
        raise UserError(
            f"models.backbone.compile: torch finds no compiler here ({reason}); install g++ (on a "
            "GPU gcc), name it in CXX (CC), or set models.backbone.compile=false"
        ) from error


@cache
def _compiled() -> tuple[Any, Any]:
    """Both halves; `dynamic=False`: no size is dynamic but the marked one."""
    before, after = (
        torch.compile(half, dynamic=False, fullgraph=True)
        for half in (before_attention, after_attention)
    )
    return before, after
