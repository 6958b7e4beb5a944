"""The two forwards of a VLA: packed as in training, and flat through the unmodified backbone.

    packed   model(packed, features, plan)
    flat     embeddings of one path -> transformers' own causal attention -> head at every token

Both share the model's embedding and head (what is proven is the packing), and nothing else.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from vla_nav.attention import backend
from vla_nav.models.vla import VLA
from vla_nav.tree.packing import PackedTree
from vla_nav.tree.types import PathTokens


def packed_forward(model: VLA, packed: PackedTree, frames: Tensor) -> Tensor:
    """Logits (M, V) at the predictors, through the model's attention backend."""
    plan = backend(model.attention_name).plan(packed)
    logits: Tensor = model(packed, frames, plan)
    return logits


def flat_forward(model: VLA, path: PathTokens, frames: Tensor) -> Tensor:
    """Logits (n, V) of one path; `model` comes from `flat_copy`."""
    embeddings = model.embed(
        torch.from_numpy(path.token_ids),
        torch.from_numpy(path.frame_index),
        torch.from_numpy(path.patch_index),
        frames,
    )
    out = model.backbone.model(inputs_embeds=embeddings[None], use_cache=False)
    return model.logits(out.last_hidden_state[0])


def flat_copy(model: VLA) -> VLA:
    """The same weights with transformers' own attention and causal mask."""
    flat = copy.deepcopy(model)
    transformer: Any = flat.backbone.model
    transformer.set_attn_implementation("sdpa")
    return flat
