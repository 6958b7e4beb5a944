"""Flat paths through hybrid backbones, one by one: unmodified, and by definition in float64.

    stock     transformers' own layers and kernels, which compute in float32 whatever the dtype
    defined   recurrences token by token and norms written out here, all in float64

Nothing here knows trees, packs or the product's mixers: a stock model of the same config gets the
weights by name, and its recurrent layers are replaced by loops over the definition.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModel

from tests.verification.tiny_models import FEATURES, VOCABULARY
from vla_nav.models.backbone import BackboneConfig, build_backbone
from vla_nav.models.vla import VLA
from vla_nav.models.vocabulary import Vocabulary

SHAPE = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
}
OPTIONS = {
    "qwen3_5_text": {
        **SHAPE,
        "head_dim": 8,
        "num_hidden_layers": 3,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 6,
    },
    "bamba": {
        **SHAPE,
        "num_hidden_layers": 3,
        "attn_layer_indices": [1],
        "mamba_n_heads": 6,
        "mamba_d_head": 8,
        "mamba_n_groups": 2,
        "mamba_d_state": 5,
    },
}


def tiny_hybrid(family: str, *, dtype: torch.dtype = torch.float64, **options: object) -> VLA:
    """The product's VLA over a tiny hybrid, with random weights in all of its parameters."""
    shape = {**OPTIONS[family], **options}
    backbone = build_backbone(BackboneConfig(family=family, options=shape, seed=3), num_text=1)
    torch.manual_seed(0)
    model = VLA(
        backbone,
        nn.Linear(FEATURES, SHAPE["hidden_size"]),
        Vocabulary(VOCABULARY, (), 0, 1),
        num_patches=8,
        attention="sdpa",
    )
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if name.endswith(("dt_bias", ".D", "norm.weight", "conv1d.bias")):  # constant at the start
            parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)
        if "conv1d.weight" in name:
            parameter.data += 0.4 * torch.randn(parameter.shape, generator=generator)
        if name.endswith("A_log"):  # slow decays, so that a state reaches far
            parameter.data = torch.rand(parameter.shape, generator=generator) - 3
    return model.to(dtype)


def stock_copy(model: VLA) -> VLA:
    """The same weights in an unmodified transformers model."""
    flat = copy.deepcopy(model)
    config = type(model.backbone.model.config)(**model.backbone.model.config.to_diff_dict())
    stock = AutoModel.from_config(config, attn_implementation="sdpa")
    stock.load_state_dict(model.backbone.model.state_dict())
    flat.backbone.model = stock.to(model.own_embedding.weight.dtype)
    return flat


def defined_copy(model: VLA) -> VLA:
    """The same weights, every recurrence token by token and every norm in the model's dtype."""
    flat = stock_copy(model)
    layers = flat.backbone.model.layers
    for layer in layers:
        if hasattr(layer, "linear_attn"):
            layer.linear_attn = DefinedDelta(layer.linear_attn)
        if hasattr(layer, "mamba"):
            layer.mamba = DefinedMamba(layer.mamba)
    use_defined_norms(flat.backbone.model)
    return flat


def flat_forward(model: VLA, path, frames: Tensor) -> Tensor:
    """Logits (n, V) of one path."""
    embeddings = model.embed(
        torch.from_numpy(path.token_ids),
        torch.from_numpy(path.frame_index),
        torch.from_numpy(path.patch_index),
        frames,
    )
    out = model.backbone.model(inputs_embeds=embeddings[None], use_cache=False)
    return model.logits(out.last_hidden_state[0])


def conv(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x (n, C), weight (C, 1, K): each token with the K - 1 before it, then SiLU."""
    kernel = weight.shape[-1]
    rows = []
    for t in range(len(x)):
        row = torch.zeros_like(x[0]) if bias is None else bias
        for j in range(kernel):
            source = t - kernel + 1 + j
            if source >= 0:
                row = row + weight[:, 0, j] * x[source]
        rows.append(row)
    return F.silu(torch.stack(rows))


class DefinedDelta(nn.Module):
    """The gated delta net of one path, S <- S (I - beta k k^T) e^g + beta v k^T per head."""

    def __init__(self, stock: nn.Module) -> None:
        super().__init__()
        self.inner = [stock]  # not a child: parameters keep their names
        for name, child in stock.named_children():
            self.add_module(name, child)
        self.dt_bias, self.A_log = stock.dt_bias, stock.A_log

    def forward(self, hidden_states: Tensor, **_: object) -> Tensor:
        x, (stock,) = hidden_states[0], self.inner
        mixed = conv(self.in_proj_qkv(x), self.conv1d.weight, None)
        width, value_width = stock.key_dim, stock.head_v_dim
        q = mixed[:, :width].view(len(x), stock.num_k_heads, -1)
        k = mixed[:, width : 2 * width].view(len(x), stock.num_k_heads, -1)
        v = mixed[:, 2 * width :].view(len(x), stock.num_v_heads, value_width)
        beta = torch.sigmoid(self.in_proj_b(x))
        g = -torch.exp(self.A_log) * F.softplus(self.in_proj_a(x) + self.dt_bias)
        heads = []
        for head in range(stock.num_v_heads):
            of_key = head // (stock.num_v_heads // stock.num_k_heads)
            state = x.new_zeros(value_width, stock.head_k_dim)
            outs = []
            for t in range(len(x)):
                key = k[t, of_key] / torch.sqrt(k[t, of_key].square().sum() + 1e-6)
                query = q[t, of_key] / torch.sqrt(q[t, of_key].square().sum() + 1e-6)
                erased = state - beta[t, head] * torch.outer(state @ key, key)
                state = torch.exp(g[t, head]) * erased
                state = state + beta[t, head] * torch.outer(v[t, head], key)
                outs.append(state @ query / stock.head_k_dim**0.5)
            heads.append(torch.stack(outs))
        out = torch.stack(heads, dim=1).reshape(-1, value_width)
        z = self.in_proj_z(x).reshape(-1, value_width)
        return self.out_proj(self.norm(out, z).view(len(x), -1))[None]


class DefinedMamba(nn.Module):
    """The Mamba-2 mixer of one path, S <- e^{dt A} S + dt B x^T per head."""

    def __init__(self, stock: nn.Module) -> None:
        super().__init__()
        self.inner = [stock]
        for name, child in stock.named_children():
            self.add_module(name, child)
        self.dt_bias, self.A_log, self.D = stock.dt_bias, stock.A_log, stock.D

    def forward(self, hidden_states: Tensor, **_: object) -> Tensor:
        x, (stock,) = hidden_states[0], self.inner
        inner, groups, size = stock.intermediate_size, stock.n_groups, stock.ssm_state_size
        projected = self.in_proj(x)
        gate, mixed = projected[:, :inner], projected[:, inner : inner + stock.conv_dim]
        dt = F.softplus(projected[:, inner + stock.conv_dim :] + self.dt_bias)
        mixed = conv(mixed, self.conv1d.weight, self.conv1d.bias)
        values = mixed[:, :inner].view(len(x), stock.num_heads, -1)
        b = mixed[:, inner : inner + groups * size].view(len(x), groups, size)
        c = mixed[:, inner + groups * size :].view(len(x), groups, size)
        heads = []
        for head in range(stock.num_heads):
            group = head // (stock.num_heads // groups)
            state = x.new_zeros(values.shape[-1], size)
            outs = []
            for t in range(len(x)):
                state = torch.exp(-dt[t, head] * torch.exp(self.A_log[head])) * state
                state = state + dt[t, head] * torch.outer(values[t, head], b[t, group])
                outs.append(state @ c[t, group] + self.D[head] * values[t, head])
            heads.append(torch.stack(outs))
        out = torch.stack(heads, dim=1).reshape(len(x), -1)
        return self.out_proj(self.norm(out, gate))[None]


class DefinedNorm(nn.Module):
    """A norm in the dtype of its input; `kind` is the stock class's name."""

    def __init__(self, stock: nn.Module) -> None:
        super().__init__()
        self.weight, self.kind = stock.weight, type(stock).__name__
        self.epsilon = stock.eps if hasattr(stock, "eps") else stock.variance_epsilon
        self.group_size = getattr(stock, "group_size", len(stock.weight))

    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        if self.kind == "BambaRMSNormGated":
            x = x * F.silu(gate)
        parts = [
            part / torch.sqrt((part * part).mean(-1, keepdim=True) + self.epsilon)
            for part in x.split(self.group_size, dim=-1)
        ]
        y = torch.cat(parts, dim=-1) * self.weight
        if self.kind == "Qwen3_5RMSNorm":
            y = y + torch.cat(parts, dim=-1)
        return y * F.silu(gate) if self.kind == "Qwen3_5RMSNormGated" else y


def use_defined_norms(module: nn.Module) -> None:
    """Replace every norm below `module`."""
    for name, child in list(module.named_children()):
        if "RMSNorm" in type(child).__name__:
            setattr(module, name, DefinedNorm(child))
        else:
            use_defined_norms(child)
