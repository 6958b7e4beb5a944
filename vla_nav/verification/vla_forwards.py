"""The forwards of a VLA that are compared: packed as in training, and flat as the definition.

    packed   model(packed, features, plan)
    flat     embeddings of one path -> transformers' own causal attention (and recurrences) -> head
             at every token
    defined  the same with recurrences token by token in the model's dtype (transformers' kernels
             compute in float32); for decoders of attention alone the same as flat

Both share the model's embedding and head (what is proven is the packing), and nothing else. A flat
path encodes its own frames alone, as it would if it were trained by itself.

Axis legend: n tokens of a path, F frames, M targets, V logits, E hidden size.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vla_nav.attention import backend
from vla_nav.models.backbone import ATTENTION_NAME
from vla_nav.models.hybrid import SequenceRouting
from vla_nav.models.vla import VLA
from vla_nav.tree.packing import PackedTree
from vla_nav.tree.types import PathTokens


def packed_forward(model: VLA, packed: PackedTree, frames: Tensor) -> Tensor:
    """Logits (M, V) at the predictors, through the model's attention backend."""
    plan = backend(model.attention_name).plan(packed).to(frames.device)
    logits: Tensor = model(packed.to(frames.device), frames, plan)
    return logits


def flat_forward(model: VLA, path: PathTokens, frames: Tensor) -> Tensor:
    """Logits (n, V) of one path; `model` comes from `flat_copy`."""
    (embeddings,) = path_embeddings(model, [path], frames)
    return model.logits(causal_hidden(model, embeddings[None])[0])


def defined_forward(model: VLA, path: PathTokens, frames: Tensor) -> Tensor:
    """Logits (n, V) of one path, recurrences by their definition; `model` from `flat_copy`."""
    (embeddings,) = path_embeddings(model, [path], frames)
    return model.logits(causal_hidden(model, embeddings[None], SequenceRouting())[0])


def path_embeddings(model: VLA, paths: Sequence[PathTokens], frames: Tensor) -> list[Tensor]:
    """Embeddings (n, E) of every path; frames: the sample's frame table, of which each path reads
    its own, all of them encoded in one call.

    frame_index  -1  4  4 -1  7  7      rows read  4 7      index among them  -1  0  0 -1  1  1
    """
    device = frames.device
    tables, indices = [], []
    for path in paths:
        is_vision = path.frame_index >= 0
        rows, local = np.unique(path.frame_index[is_vision], return_inverse=True)
        index = np.full(len(path.frame_index), -1, dtype=np.int32)
        index[is_vision] = local
        tables.append(rows.astype(np.int64))
        indices.append(index)
    wanted = torch.from_numpy(np.concatenate(tables)).to(device)
    seen = torch.split(model.features(frames[wanted]), [len(rows) for rows in tables])
    return [
        model.embed(
            torch.from_numpy(path.token_ids).to(device),
            torch.from_numpy(index).to(device),
            torch.from_numpy(path.patch_index).to(device),
            features,
        )
        for path, index, features in zip(paths, indices, seen, strict=True)
    ]


def causal_hidden(model: VLA, embeddings: Tensor, recur: SequenceRouting | None = None) -> Tensor:
    """(B, n, E) embeddings through the unmodified backbone: hidden states (B, n, E). recur: what
    computes its recurrences instead of transformers, where it has any.

    Rows shorter than n are padded at their end, which causality hides from their own tokens.
    """
    routed = {"recur": recur} if recur is not None and model.backbone.num_recurrent else {}
    hidden: Tensor = model.backbone.model(
        inputs_embeds=embeddings, use_cache=False, **routed
    ).last_hidden_state
    return hidden


def flat_copy(model: VLA) -> VLA:
    """The same weights with transformers' own attention and causal mask."""
    flat = copy.deepcopy(model)
    use_stock_attention(flat)
    return flat


def use_stock_attention(model: VLA) -> None:
    """Bind transformers' own attention, in place."""
    transformer: Any = model.backbone.model
    transformer.set_attn_implementation("sdpa")


def use_packed_attention(model: VLA) -> None:
    """Bind the project's attention again, in place."""
    transformer: Any = model.backbone.model
    transformer.set_attn_implementation(ATTENTION_NAME)
