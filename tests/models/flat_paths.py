"""The oracle: flat paths one by one through an unmodified transformers model, plain causal.

Nothing here knows trees, packs or plans: every token is embedded by a loop over the definition, and
the backbone is a stock `AutoModel` with torch's causal attention holding the same weights (its
eager attention computes the softmax in float32).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import AutoModel

from vla_nav.models.vla import VLA
from vla_nav.tree import Path


def stock_backbone(model: VLA) -> nn.Module:
    """A copy of the backbone with torch's causal attention."""
    config = type(model.backbone.model.config)(**model.backbone.model.config.to_dict())
    stock = AutoModel.from_config(config, attn_implementation="sdpa")
    stock.load_state_dict(model.backbone.model.state_dict())
    return stock.to(next(model.parameters()).dtype)


def use_plain_norms(module: nn.Module) -> None:
    """Replace transformers' norms, which compute in float32, by torch's in the module's dtype."""
    for name, child in list(module.named_children()):
        if type(child).__name__.endswith("RMSNorm") and hasattr(child, "variance_epsilon"):
            norm = nn.RMSNorm(child.weight.shape[0], eps=child.variance_epsilon)
            norm.weight = child.weight
            setattr(module, name, norm)
        else:
            use_plain_norms(child)


def flat_logits(model: VLA, stock: nn.Module, path: Path, frames: Tensor) -> Tensor:
    """Logits (n, V) that predict the path's supervised tokens, in order. frames: pixels."""
    tokens = path.tokens()
    features = model.encoder.encode(frames)
    rows = []
    places = tokens.token_ids.tolist(), tokens.frame_index.tolist(), tokens.patch_index.tolist()
    for token, frame, patch in zip(*places, strict=True):
        if token >= model.vocabulary.num_own:
            row = stock.embed_tokens.weight[token - model.vocabulary.num_own]
        else:
            row = model.own_embedding.weight[token]
        if frame >= 0:
            row = row + model.projector(features[frame, patch])
            row = row + model.patch_embedding.weight[patch]
        rows.append(row)
    hidden = stock(inputs_embeds=torch.stack(rows)[None], use_cache=False).last_hidden_state[0]
    targets = torch.from_numpy(tokens.is_supervised).nonzero()[:, 0]
    return model.logits(hidden[targets - 1])


def flat_targets(path: Path) -> Tensor:
    """The ids of the path's supervised tokens."""
    tokens = path.tokens()
    return torch.from_numpy(tokens.token_ids[tokens.is_supervised])
