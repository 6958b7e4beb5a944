"""Tiny unmodified transformers backbones, bound to the packed attention under a name of their own.

The flat side runs the same class with transformers' own attention and its own causal mask.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    LlamaConfig,
    LlamaModel,
    MistralConfig,
    MistralModel,
    Qwen3Config,
    Qwen3Model,
)

from tests.tree.episodes import token_episode
from tests.tree.random_paths import random_paths
from vla_nav.attention import backend
from vla_nav.tree import Layout, Path, paths_of
from vla_nav.verification import Sample

FAMILIES = ("qwen3", "mistral", "llama")
NAME = "vla_nav_test_tree"
VOCABULARY = 40
FEATURES = 6


def _attention(module, query, key, value, attention_mask, scaling, plan=None, attend=None, **_):
    assert attention_mask is None
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    return attend(q, k, v, plan, scaling), None


def _no_mask(*_, **__):
    return None


def register() -> None:
    """Bind the test's attention and mask function."""
    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, _no_mask)


class TinyVLA(nn.Module):
    """Embeddings + projected features -> backbone -> head."""

    def __init__(self, family: str = "qwen3", *, num_layers: int = 2) -> None:
        super().__init__()
        register()
        torch.manual_seed(0)
        shape = {
            "vocab_size": VOCABULARY,
            "hidden_size": 24,
            "intermediate_size": 40,
            "num_hidden_layers": num_layers,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "pad_token_id": None,
            "max_position_embeddings": 512,
            "attn_implementation": NAME,
            "initializer_range": 0.2,
        }
        if family == "qwen3":
            self.backbone = Qwen3Model(Qwen3Config(**shape))
        elif family == "llama":
            self.backbone = LlamaModel(LlamaConfig(**shape))
        else:
            self.backbone = MistralModel(MistralConfig(sliding_window=None, **shape))
        self.projector = nn.Linear(FEATURES, 24)
        self.head = nn.Linear(24, VOCABULARY, bias=False)
        self.double().train()

    def embed(self, token_ids: Tensor, frame: Tensor, patch: Tensor, frames: Tensor) -> Tensor:
        text = self.backbone.embed_tokens(token_ids)
        seen = self.projector(frames[frame.clamp_min(0).long(), patch.clamp_min(0).long()])
        return torch.where((frame >= 0)[:, None], seen, text)


def packed_forward(name: str = "sdpa", *, plan_of=None, attend=None):
    """A forward through the packed attention `name`, or through mistaken parts of it."""
    found = backend(name)

    def forward(model: TinyVLA, packed, frames: Tensor) -> Tensor:
        embeddings = model.embed(packed.token_ids, packed.frame_index, packed.patch_index, frames)
        out = model.backbone(
            inputs_embeds=embeddings[None],
            position_ids=packed.position_ids[None],
            use_cache=False,
            plan=(plan_of or found.plan)(packed),
            attend=attend or found.attend,
        ).last_hidden_state[0]
        return model.head(out[packed.predictor_index])

    return forward


def flat_forward(model: TinyVLA, path, frames: Tensor) -> Tensor:
    """One path, the backbone's own positions and causal attention."""
    embeddings = model.embed(
        torch.from_numpy(path.token_ids),
        torch.from_numpy(path.frame_index),
        torch.from_numpy(path.patch_index),
        frames,
    )
    out = model.backbone(inputs_embeds=embeddings[None], use_cache=False)
    return model.head(out.last_hidden_state[0])


def flat_copy(model: TinyVLA, implementation: str = "sdpa") -> TinyVLA:
    """The same weights under transformers' own attention ("eager" has its softmax in float32)."""
    flat = copy.deepcopy(model)
    flat.backbone.set_attn_implementation(implementation)
    return flat


class Float64Norm(nn.Module):
    """RMS norm in the dtype of its input, in place of the stock one (which computes in float32)."""

    def __init__(self, stock: nn.Module) -> None:
        super().__init__()
        self.weight = stock.weight
        self.eps = stock.variance_epsilon

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)


class Float64Rotary(nn.Module):
    """Rotary angles in float64, in place of the stock ones (float32): (1, n) -> two (1, n, D)."""

    def __init__(self, stock: nn.Module) -> None:
        super().__init__()
        dim = 2 * len(stock.inv_freq)
        base = stock.config.rope_parameters["rope_theta"]
        self.frequency = base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angle = position_ids[..., None].double() * self.frequency
        angle = torch.cat((angle, angle), dim=-1)
        return angle.cos().to(x.dtype), angle.sin().to(x.dtype)


def with_float64_norms(model: nn.Module) -> nn.Module:
    """Replace every stock RMS norm of `model` and its rotary embedding, in place."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if hasattr(child, "variance_epsilon"):
                setattr(module, name, Float64Norm(child))
            elif hasattr(child, "inv_freq"):
                setattr(module, name, Float64Rotary(child))
    return model


def layout_sample(history: str, actions: str, *, num_steps: int = 4, seed: int = 0, **options):
    """A token episode under a layout, with random features."""
    supervise = options.pop("supervise", "own")
    episode = token_episode(num_steps, seed=seed, **options)
    paths = paths_of(episode, Layout(history, actions), supervise=supervise)
    return Sample(paths, features(num_steps, seed))


def random_sample(seed: int) -> Sample:
    """A random tree over three frames; at most six paths (the flat side runs each by itself)."""
    paths = tuple(random_paths(seed, vocabulary=5))[:6]
    taught = [path for path in paths if path.tokens().is_supervised.any()]
    if not taught:
        path = paths[0]
        one = path.all_segments[-1] if len(path.all_segments[-1]) else path.all_segments[0]
        from vla_nav.tree import Segment

        label = Segment(one.token_ids, one.frame_index, one.patch_index, True)
        paths = (*paths, Path((*path.all_segments, label), 1.0))
    return Sample(paths, features(3, seed))


def features(num_frames: int, seed: int) -> Tensor:
    """(F, 8, FEATURES) float64."""
    generator = torch.Generator().manual_seed(seed % 2**31)
    return torch.randn(num_frames, 8, FEATURES, dtype=torch.float64, generator=generator)
